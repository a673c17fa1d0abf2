package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Options say what Run is to do.
type Options struct {
	// Vectors are folders of recorded cases. Without any, random cases are
	// compared with the reference.
	Vectors []string

	// Ops, Cases and Variants choose by name; empty means all. A case may be
	// written operation.case. A name that nothing has gives a row with the status
	// missing.
	Ops, Cases, Variants []string

	// Best tries only the best variant that the device can run.
	Best bool

	// Most bounds the random cases of an operation that are tried, spread over all; 0: all.
	Most int

	// Seed makes the random cases.
	Seed uint64

	// Progress, if set, is called before every row that takes work.
	Progress func(done, total int, op, name string)

	known map[string]Op // the registry, or a test's own
}

// Status of a row.
type Status string

// What can become of a case and variant.
const (
	Pass    Status = "pass"
	Fail    Status = "fail"
	Skip    Status = "skip"    // the device cannot, or the case is informational
	Missing Status = "missing" // asked for, or recorded, and not known here
)

// Row is the outcome of one case on one variant. Error and Bound are those of
// Result; they are nil where nothing was measured, and an infinite error is
// given as the largest float64 so that JSON can hold it.
type Row struct {
	Op      string   `json:"op"`
	Case    string   `json:"case"`
	Variant string   `json:"variant"`
	Class   string   `json:"class"`
	Status  Status   `json:"status"`
	Error   *float64 `json:"error"`
	Bound   *float64 `json:"bound"`
	Detail  string   `json:"detail,omitempty"`
	Source  string   `json:"source,omitempty"` // "random", "recorded" (and in the program), or the folder

	// Unjudged are recorded outputs that the operation does not give, and that
	// nothing was compared with therefore.
	Unjudged []string `json:"unjudged,omitempty"`
}

// Summary counts rows.
type Summary struct {
	Pass    int `json:"pass"`
	Fail    int `json:"fail"`
	Skip    int `json:"skip"`
	Missing int `json:"missing"`
}

// OK reports whether all that was asked for passed: something did, and nothing
// failed or was missing.
func (s Summary) OK() bool { return s.Pass > 0 && s.Fail == 0 && s.Missing == 0 }

// Add counts a row.
func (s *Summary) Add(st Status) {
	switch st {
	case Pass:
		s.Pass++
	case Fail:
		s.Fail++
	case Skip:
		s.Skip++
	case Missing:
		s.Missing++
	}
}

// job is one case with the variants to try.
type job struct {
	op       Op
	name     string
	source   string
	load     func() (Case, error)
	recorded bool
	variants []tuning.Variant
}

// Run tries every chosen case with every chosen variant and hands each row to emit. It returns an
// error, and then the summary is not complete, if a folder cannot be read (the error wraps
// vectors.ErrFormat or is the file system's), if ctx ends, or after the row that lost the device. A
// failing or panicking operation is a row and not an error.
func Run(ctx context.Context, dev *vk.Device, opts Options, emit func(Row)) (Summary, error) {
	if opts.known == nil {
		opts.known = registry
	}
	var sum Summary
	put := func(r Row) { sum.Add(r.Status); emit(r) }
	p := plan{dev: dev, opts: opts, seenOp: map[string]bool{}, seenCase: map[string]bool{}, seenVariant: map[string]bool{}}
	if err := p.collect(); err != nil {
		return sum, err
	}
	done, total := 0, 0
	for _, j := range p.jobs {
		if opts.Best {
			j.variants = j.variants[:min(len(j.variants), 1)]
		}
		total += len(j.variants)
	}
	for _, r := range p.rows {
		put(r)
	}
	for _, j := range p.jobs {
		c, failed := prepare(j)
		for i, v := range j.variants {
			if ctx.Err() != nil {
				return sum, ctx.Err()
			}
			if opts.Progress != nil {
				opts.Progress(done, total, j.op.Name, j.name)
			}
			row, err := one(ctx, dev, j, v, c, failed)
			if ctx.Err() != nil {
				return sum, ctx.Err()
			}
			if opts.Best && row.Status == Skip && i+1 < len(j.variants) {
				continue // the next best may run
			}
			done++
			if put(row); errors.Is(err, vk.ErrDeviceLost) {
				return sum, fmt.Errorf("verify: %d of %d rows were not run: %w", total-done, total, err)
			}
			if opts.Best {
				break
			}
		}
	}
	return sum, nil
}

func (j job) row(variant string, st Status, detail string) Row {
	return Row{Op: j.op.Name, Case: j.name, Variant: variant, Class: j.op.Class, Status: st, Detail: oneLine(detail), Source: j.source}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// prepare loads a case and, if it is a random one, has the reference compute
// what is wanted.
func prepare(j job) (c Case, err error) {
	err = guard(func() error {
		if c, err = j.load(); err != nil || j.recorded {
			return err
		}
		c.Want, err = j.op.Ref(c)
		if err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		return nil
	})
	return c, err
}

// guard turns a panic of f into an error.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return f()
}

// one runs and judges a case on a variant, unless the case could not be made. The error is that of
// running it, which is in the row.
func one(ctx context.Context, dev *vk.Device, j job, v tuning.Variant, c Case, failed error) (Row, error) {
	if failed != nil {
		return j.row(v.Name, Fail, failed.Error()), nil
	}
	if lacks := lacking(dev, v); len(lacks) > 0 {
		return j.row(v.Name, Skip, "device lacks "+strings.Join(lacks, ", ")), nil
	}
	var res Result
	var unjudged []string
	err := guard(func() error {
		got, err := j.op.Run(ctx, dev, v.Name, c)
		if err == nil {
			res, unjudged = j.op.Compare(c, got, alike(c.Want, got)), leftOut(c, got)
		}
		return err
	})
	if errors.Is(err, vk.ErrLimit) || errors.Is(err, vk.ErrMissingFeature) && len(v.Requires) > 0 {
		// The base variant requires no feature and must run where the limits allow it.
		return j.row(v.Name, Skip, err.Error()), nil
	}
	if err != nil {
		return j.row(v.Name, Fail, err.Error()), err
	}
	row := j.row(v.Name, Pass, res.Detail)
	row.Unjudged = unjudged
	if !res.Pass {
		row.Status = Fail
	}
	row.Error, row.Bound = Finite(res.Error), Finite(res.Bound)
	if res.Class != "" {
		row.Class = res.Class
	}
	return row, nil
}

// Refused returns what a device lacks for a variant, its limits included, and whether for all of
// the cases, by making what they need; the device may be absent.
func (op Op) Refused(dev *vk.Device, variant string, cases []Case) (lacks []string, all bool) {
	all = true
	for _, c := range cases {
		if op.Lacks != nil && op.Lacks(c, variant) {
			continue
		}
		err := guard(func() error { return op.Make(dev, variant, c) })
		if !errors.Is(err, vk.ErrMissingFeature) {
			all = false
			continue
		}
		for _, what := range missing(err) {
			if !slices.Contains(lacks, what) {
				lacks = append(lacks, what)
			}
		}
	}
	return lacks, all
}

// missing lists what an error says that a device lacks.
func missing(err error) []string {
	e := new(vk.MissingError)
	if !errors.As(err, &e) {
		_, what, _ := strings.Cut(err.Error(), vk.ErrMissingFeature.Error()+": ")
		return []string{what}
	}
	list := slices.Clone(e.Missing)
	for i, need := range list {
		if errors.Is(err, vk.ErrLimit) {
			list[i] = fmt.Sprintf("%s (allows %s)", need, strings.Fields(e.Available[i])[0])
		}
	}
	return list
}

// alike returns what is wanted in the shapes of what was computed, where only dimensions of 1
// tell them apart (upstream's outputs of one query a token are [T, 1, heads, 512]), and in
// its type, where both are integers: as for inputs, the values count.
func alike(want, got Arrays) Arrays {
	ones := func(a Array) []int {
		return slices.DeleteFunc(slices.Clone(a.Shape), func(d int) bool { return d == 1 })
	}
	out := maps.Clone(want)
	for name, a := range out {
		g, ok := got[name]
		if !ok {
			continue
		}
		if slices.Equal(ones(a), ones(g)) {
			a.Shape = g.Shape
		}
		if same, ok := a.Integers(g.Type); ok {
			a = same
		}
		out[name] = a
	}
	return out
}

// leftOut returns a recorded case's outputs that are not among those computed.
func leftOut(c Case, got Arrays) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.Want)) {
		if _, ok := got[name]; !ok && (c.Role[name] == vectors.RoleOut || c.Role[name] == vectors.RoleAfter) {
			names = append(names, name)
		}
	}
	return names
}

// lacking returns what a variant requires and the device does not offer; no device
// offers nothing.
func lacking(dev *vk.Device, v tuning.Variant) []string {
	if dev == nil || len(v.Requires) == 0 {
		return v.Requires
	}
	return dev.Caps().Missing(v.Requires)
}

// Finite returns a number as a Row holds it: the largest float64 for infinity and NaN.
func Finite(x float64) *float64 {
	if math.IsNaN(x) {
		x = math.MaxFloat64
	}
	x = max(min(x, math.MaxFloat64), -math.MaxFloat64)
	return &x
}

// plan turns options into jobs, and into rows for what needs no work.
type plan struct {
	dev  *vk.Device
	opts Options
	jobs []job
	rows []Row

	cases []string // names of all cases of the operations asked for

	// names that were asked for and found somewhere
	seenOp, seenCase, seenVariant map[string]bool
}

func (p *plan) collect() error {
	if len(p.opts.Vectors) == 0 {
		p.random()
	}
	for _, dir := range p.opts.Vectors {
		if err := p.folder(dir); err != nil {
			return err
		}
	}
	for _, name := range p.opts.Ops {
		if !p.seenOp[name] {
			p.rows = append(p.rows, Row{Op: name, Status: Missing, Detail: "no such operation; --list has them"})
		}
	}
	for _, name := range p.opts.Cases {
		if !p.seenCase[name] {
			p.rows = append(p.rows, Row{Op: p.anyOp(), Case: name, Status: Missing, Detail: p.noCase()})
		}
	}
	for _, name := range p.opts.Variants {
		if !p.seenVariant[name] {
			p.rows = append(p.rows, Row{Op: p.anyOp(), Variant: name, Status: Missing,
				Detail: "no such variant of the operations asked for; --list has them"})
		}
	}
	p.withoutVariant()
	return nil
}

// withoutVariant says which operations that were asked for by name have none of the variants, where
// others do.
func (p *plan) withoutVariant() {
	for _, name := range p.opts.Ops {
		op, known := p.opts.known[name]
		named := func(v tuning.Variant) bool { return slices.Contains(p.opts.Variants, v.Name) }
		if known && p.seenOp[name] && len(p.seenVariant) > 0 && !slices.ContainsFunc(op.Variants, named) {
			var has []string
			for _, v := range op.Variants {
				has = append(has, v.Name)
			}
			p.rows = append(p.rows, Row{Op: name, Class: op.Class, Variant: strings.Join(p.opts.Variants, ", "), Status: Missing,
				Detail: "no such variant of this operation, which has " + strings.Join(has, ", ")})
		}
	}
}

// noCase lists the valid case names, unless there are too many.
func (p *plan) noCase() string {
	switch names := slices.Compact(slices.Sorted(slices.Values(p.cases))); {
	case len(names) == 0:
		return "no such case in the operations asked for"
	case len(p.opts.Ops) != 1:
		return "no such case in the operations asked for; with one --op, its cases are named here"
	default:
		return "no such case of the operation, which has " + strings.Join(names, ", ")
	}
}

// anyOp returns what stands for the operation in a row about a name that belongs to
// none.
func (p *plan) anyOp() string {
	if len(p.opts.Ops) == 1 {
		return p.opts.Ops[0]
	}
	return "*"
}

// want reports whether a name is chosen, and remembers what chose it.
func want(chosen []string, name string, seen map[string]bool) bool {
	if len(chosen) == 0 {
		return true
	}
	found := false
	for _, asked := range chosen {
		if asked == name || Matches(asked, name) {
			seen[asked], found = true, true
		}
	}
	return found
}

func (p *plan) wantCase(op, name string) bool {
	p.cases = append(p.cases, name)
	short := want(p.opts.Cases, name, p.seenCase)
	return short || want(p.opts.Cases, op+"."+name, p.seenCase)
}

func (p *plan) variants(op Op) []tuning.Variant {
	var vs []tuning.Variant
	for _, v := range op.Variants {
		if want(p.opts.Variants, v.Name, p.seenVariant) && !(p.opts.Best && len(lacking(p.dev, v)) > 0) {
			vs = append(vs, v)
		}
	}
	return vs
}

// size returns how many numbers a case has.
func size(c Case) (n int) {
	for _, a := range c.In {
		n += a.Len()
	}
	return n
}

// random adds the random cases of each operation, the smallest first: a device may be too slow for
// the others.
func (p *plan) random() {
	for _, name := range slices.Sorted(maps.Keys(p.opts.known)) {
		if !want(p.opts.Ops, name, p.seenOp) {
			continue
		}
		op := p.opts.known[name]
		vs := p.variants(op)
		var cases []Case
		if err := guard(func() error { cases = op.RandomCases(p.opts.Seed); return nil }); err != nil {
			p.rows = append(p.rows, Row{Op: name, Class: op.Class, Status: Fail, Detail: oneLine(err.Error()), Source: "random"})
			continue
		}
		if n := p.opts.Most; n > 0 {
			few := make([]Case, 0, n)
			for _, i := range Some(n, len(cases)) {
				few = append(few, cases[i])
			}
			cases = few
		}
		slices.SortStableFunc(cases, func(a, b Case) int { return size(a) - size(b) })
		for _, c := range cases {
			if !p.wantCase(name, c.Name) {
				continue
			}
			has := slices.Clone(vs)
			if op.Lacks != nil {
				has = slices.DeleteFunc(has, func(v tuning.Variant) bool { return op.Lacks(c, v.Name) })
			}
			p.jobs = append(p.jobs, job{op: op, name: c.Name, source: c.Source, variants: has,
				load: func() (Case, error) { return c, nil }})
		}
	}
}

func (p *plan) folder(dir string) error {
	set, err := vectors.Open(dir)
	if err != nil {
		return err
	}
	for _, name := range set.Ops() {
		if !want(p.opts.Ops, name, p.seenOp) {
			continue
		}
		var cases []string
		for _, c := range set.Cases(name) {
			if p.wantCase(name, c) {
				cases = append(cases, c)
			}
		}
		op, ok := p.opts.known[name]
		if !ok {
			if len(cases) > 0 || len(p.opts.Cases) == 0 {
				p.rows = append(p.rows, Row{Op: name, Status: Missing, Source: dir, Detail: "this program does not have the operation"})
			}
			continue
		}
		if len(cases) == 0 {
			continue
		}
		if err := set.Check(name); err != nil {
			return err
		}
		p.add(set, op, cases)
	}
	return nil
}

func (p *plan) add(set *vectors.Set, op Op, cases []string) {
	vs := p.variants(op)
	for _, c := range cases {
		j := job{op: op, name: c, source: set.Dir, recorded: true, variants: vs,
			load: func() (Case, error) { return set.Case(op.Name, c) }}
		if (Case{Name: c}).Informational() {
			p.rows = append(p.rows, j.row("", Skip, "informational: not a requirement"))
			continue
		}
		p.jobs = append(p.jobs, j)
	}
}
