// Package check shows a user what of vkmla is right on a device, in a minute or two, and
// makes one report of it.
//
// A list of checks runs in a process of its own, the worker, which the caller's process
// supervises: a driver that crashes or never returns costs that process and nothing else.
// The supervisor opens no device and waits for nothing without a limit. See [Run] and [Work].
package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/sequences"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// Check is one thing to be checked.
type Check struct {
	Group string // of Groups
	Name  string // in its group
	About string // what it shows, or the public report that it stands for; may be empty

	// Run gives rows and measurements to the environment. An error is a wrong result.
	Run func(ctx context.Context, e *Env) error

	// Smaller names a check of the same group that is a smaller form of this one, whose work
	// is Grows times that. Where this one would not end in time, it is not begun.
	Smaller string
	Grows   float64
}

// ID is group/name.
func (c Check) ID() string { return c.Group + "/" + c.Name }

// Groups of checks, in the order in which they run.
const (
	GroupLimits     = "limits"
	GroupOperations = "operations"
	GroupLayers     = "layers"
	GroupCuts       = "cuts"
	GroupTimes      = "times"
)

// Group is a kind of checks, with the share of the budget that it has at least, in percent: what
// groups do not use is for those after them.
type Group struct {
	Name, About string
	share       int
}

// Groups has all groups.
var Groups = []Group{
	{GroupLimits, "what the device's memory and arithmetic units give a shader", 5},
	{GroupOperations, "each operation, in each variant that the device has, against its definition in plain Go", 35},
	{GroupLayers, "a whole layer of each kind", 15},
	{GroupCuts, "sequences that are cut, shared, restored and rejected against the same in one piece", 20},
	{GroupTimes, "layers of decode steps and prefills, checked and then timed", 25},
}

// reserved returns the percentage of the budget that groups after one have.
func reserved(group string) (share int) {
	for _, g := range slices.Backward(Groups) {
		if g.Name == group {
			break
		}
		share += g.share
	}
	return share
}

// Status is what became of a check.
type Status string

// Statuses of a Result.
const (
	Right    Status = "right"
	Wrong    Status = "wrong"
	TimedOut Status = "timed out" // it did not end and was ended
	Crashed  Status = "crashed"   // it ended the process, or the device was lost
	NotRun   Status = "not run"   // Result.Why says why
)

// Statuses has all of them, in the order in which they are counted.
var Statuses = []Status{Right, Wrong, TimedOut, Crashed, NotRun}

// Bad reports whether something is wrong where a check has ended so.
func (s Status) Bad() bool { return s == Wrong || s == Crashed }

// Result is what became of a check.
type Result struct {
	Group   string  `json:"group"`
	Name    string  `json:"name"`
	About   string  `json:"about,omitempty"`
	Status  Status  `json:"status"`
	Why     string  `json:"why,omitempty"` // what is wrong, or why it was not run
	Seed    uint64  `json:"seed"`
	Seconds float64 `json:"seconds"`

	Rows   []Row            `json:"rows,omitempty"`
	Limits *bench.Limits    `json:"limits,omitempty"` // that were measured
	Times  []bench.LayerRow `json:"times,omitempty"`
	Output string           `json:"output,omitempty"` // the end of what a crashed process wrote
}

// Row is a part of a check: a case of an operation in a variant, a kind of layer, a step of a
// scenario.
type Row struct {
	verify.Row
	Seconds float64 `json:"seconds"`
}

// Env is what a check runs with, and hands its results to. It belongs to one run of a check.
type Env struct {
	Dev    *vk.Device
	Seed   uint64
	Quick  bool          // the least that says something
	Limits bench.Limits  // measured before; zero if they could not be
	Share  time.Duration // after which it is to begin nothing more

	result *Result
	last   time.Time         // of the last row
	beat   func(what string) // tells the supervisor that something goes on
	shared *shared
}

// shared is what checks of a worker have in common. The worker closes it.
type shared struct {
	labs    map[sequences.Model]*sequences.Lab // of scenarios; each opened when the first asks for it
	stepped func()                             // called after each of their steps
}

// close frees what checks shared.
func (s *shared) close() {
	for _, l := range s.labs {
		l.Close()
	}
}

// cuts returns what a scenario runs in.
func (e *Env) cuts(ctx context.Context, m sequences.Model) (*sequences.Lab, error) {
	steps, s := 0, e.shared
	s.stepped = func() {
		steps++
		e.Doing(fmt.Sprintf("step %d", steps))
	}
	if s.labs[m] == nil {
		e.Doing("making a model")
		l, err := sequences.Open(ctx, e.Dev, sequences.Options{Model: m, Stepped: func() { s.stepped() }})
		if err != nil {
			return nil, err
		}
		if s.labs == nil {
			s.labs = map[sequences.Model]*sequences.Lab{}
		}
		s.labs[m] = l
	}
	return s.labs[m], nil
}

// Doing says what the check is doing.
func (e *Env) Doing(what string) { e.beat(what) }

// Row adds a row.
func (e *Env) Row(r verify.Row) {
	now := time.Now()
	e.result.Rows = append(e.result.Rows, Row{r, now.Sub(e.last).Seconds()})
	e.last = now
}

// Measured notes the device's limits.
func (e *Env) Measured(l bench.Limits) { e.result.Limits = &l }

// Timed adds the times of a layer. A clock may be too coarse for an operation, whose share of a
// limit is then no number.
func (e *Env) Timed(r bench.LayerRow) {
	for _, v := range []*float64{&r.Time.Median, &r.Time.P95, &r.Limit, &r.Share, &r.GBs, &r.Error, &r.Bound} {
		*v = *verify.Finite(*v)
	}
	r.Ops = slices.Clone(r.Ops)
	for i := range r.Ops {
		op := &r.Ops[i]
		for _, v := range []*float64{&op.Time.Median, &op.Time.P95, &op.Limit, &op.Share} {
			*v = *verify.Finite(*v)
		}
	}
	e.result.Times = append(e.result.Times, r)
}

// run runs a check and judges it. A panic is a wrong result.
func (c Check) run(ctx context.Context, e *Env) Result {
	start := time.Now()
	e.result, e.last = &Result{Group: c.Group, Name: c.Name, About: c.About, Seed: e.Seed}, start
	err := guard(func() error { return c.Run(ctx, e) })
	r := *e.result
	r.Seconds = time.Since(start).Seconds()
	r.judge(err)
	return r
}

// errNotRun is in the error of a check that could not be run, which is no fault; errShare is that
// of one whose share of the budget lasted for a part of it.
var (
	errNotRun = errors.New("not run")
	errShare  = errors.New("its share of the budget lasted for some of its cases")
)

// judge makes a status of a check's error, rows and times.
func (r *Result) judge(err error) {
	row := func(s ...verify.Status) int {
		return slices.IndexFunc(r.Rows, func(x Row) bool { return slices.Contains(s, x.Status) })
	}
	time := func(s string) int {
		return slices.IndexFunc(r.Times, func(x bench.LayerRow) bool { return x.Status == s })
	}
	failed, skipped := row(verify.Fail, verify.Missing), row(verify.Skip)
	switch wrong, left := max(time("wrong"), time("failed")), time("skipped"); {
	case failed >= 0:
		r.Status, r.Why = Wrong, r.Rows[failed].text()
	case wrong >= 0:
		r.Status, r.Why = Wrong, oneLine(r.Times[wrong].Detail)
	case errors.Is(err, errShare):
		if r.Status, r.Why = Right, oneLine(err.Error()); row(verify.Pass) < 0 {
			r.Status = NotRun
		}
	case errors.Is(err, errNotRun) || errors.Is(err, vk.ErrMissingFeature):
		r.Status, r.Why = NotRun, oneLine(err.Error())
	case err != nil:
		r.Status, r.Why = Wrong, oneLine(err.Error())
	case row(verify.Pass) < 0 && skipped >= 0:
		r.Status, r.Why = NotRun, r.Rows[skipped].Detail
	case left >= 0:
		r.Status, r.Why = NotRun, oneLine(r.Times[left].Detail)
	case r.Rows == nil && r.Limits == nil && r.Times == nil:
		r.Status, r.Why = Wrong, "the check had no result"
	default:
		r.Status = Right
	}
}

// text says which row it is and what is said of it.
func (r Row) text() string {
	name := r.Case
	if r.Variant != "" {
		name += ", variant " + r.Variant
	}
	return name + ": " + oneLine(r.Detail)
}

// Counts returns how many rows passed, failed and were skipped.
func (r Result) Counts() (sum verify.Summary) {
	for _, x := range r.Rows {
		sum.Add(x.Status)
	}
	return sum
}
