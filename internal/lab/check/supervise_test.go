//go:build unix

package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// TestMain is a worker, too, in the processes that tests supervise.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != "worker" {
		os.Exit(m.Run())
	}
	open := func() (*vk.Device, describe.Device, int, func(), error) {
		return nil, describe.Device{Name: "fake <device>"}, 1, func() {}, nil
	}
	switch os.Args[2] {
	case "none":
		open = func() (*vk.Device, describe.Device, int, func(), error) {
			return nil, describe.Device{}, 0, nil, vk.ErrNoDevice
		}
	case "crash":
		open = func() (*vk.Device, describe.Device, int, func(), error) { panic("driver") }
	case "hang":
		open = func() (*vk.Device, describe.Device, int, func(), error) { select {} }
	}
	var out uintptr
	if _, err := fmt.Sscanf(os.Args[len(os.Args)-1], outFlag+"%d", &out); err != nil {
		panic(err)
	}
	if err := Work(os.Stdin, os.NewFile(out, "out"), fakes, WorkerOptions{Seed: 5, Open: open}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fakes do what checks can come to.
var fakes = []Check{
	fake("right", func(_ context.Context, e *Env) error { e.Row(row("a", verify.Pass, "")); return nil }),
	fake("wrong", func(_ context.Context, e *Env) error {
		e.Row(row("a", verify.Pass, ""))
		e.Row(row("b", verify.Fail, "7 instead of 8"))
		return nil
	}),
	fake("error", func(context.Context, *Env) error { return errors.New("the engine said no") }),
	fake("panic", func(context.Context, *Env) error { panic("a slip") }),
	fake("nothing", func(context.Context, *Env) error { return nil }),
	fake("lacking", func(_ context.Context, e *Env) error { e.Row(row("a", verify.Skip, "device lacks x")); return nil }),
	fake("missing", func(context.Context, *Env) error { return fmt.Errorf("no clock: %w", vk.ErrMissingFeature) }),
	fake("lost", func(context.Context, *Env) error { return fmt.Errorf("submit: %w", vk.ErrDeviceLost) }),
	fake("hung", func(context.Context, *Env) error { return fmt.Errorf("wait: %w", vk.ErrDeviceHung) }),
	fake("segfault", func(_ context.Context, e *Env) error {
		e.Doing("compiling attn_decode")
		syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		select {}
	}),
	fake("killed", func(context.Context, *Env) error { syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }),
	fake("slow", func(ctx context.Context, e *Env) error { <-ctx.Done(); return ctx.Err() }),
	fake("long", func(ctx context.Context, e *Env) error {
		for ctx.Err() == nil {
			e.Row(row("a", verify.Pass, ""))
			e.Doing("more")
			time.Sleep(time.Millisecond)
		}
		return ctx.Err()
	}),
	fake("hang", func(_ context.Context, e *Env) error { e.Doing("waiting for a fence"); select {} }),
	fake("limits", func(_ context.Context, e *Env) error {
		e.Measured(bench.Limits{CopyGBs: 1000, MatrixTFLOPs: 100, MatrixKind: "f16 <16x16x16>"})
		return nil
	}),
	fake("timed", func(_ context.Context, e *Env) error {
		if e.Limits.CopyGBs != 1000 {
			return errors.New("no limits")
		}
		e.Timed(bench.LayerRow{Status: "ok", Time: bench.Time{Median: 1e5}})
		return nil
	}),
	{Group: GroupTimes, Name: "larger", Smaller: "timed", Grows: 1000, Run: never},
	{Group: GroupTimes, Name: "longer", Smaller: "timed", Grows: 70, Run: never},
	{Group: GroupTimes, Name: "orphan", Smaller: "error", Grows: 1, Run: never},
}

func never(context.Context, *Env) error { return errors.New("it was run") }

func fake(name string, run func(context.Context, *Env) error) Check {
	return Check{Group: GroupTimes, Name: name, Run: run}
}

func row(name string, s verify.Status, detail string) verify.Row {
	return verify.Row{Op: "op", Case: name, Variant: "base", Class: "E", Status: s, Detail: detail}
}

// Limits of checks here, told apart by their lengths.
const (
	budget  = time.Minute
	silence = 30 * time.Second
	grace   = 300 * time.Millisecond
)

// limits is a clock that a test moves: some limits are over once a check begins, or has said
// something, "check what". The others never are.
type limits struct {
	over    map[string][]time.Duration
	past    time.Duration
	ended   map[time.Duration]bool // while this check runs
	waiting map[time.Duration]chan time.Time
}

func (l *limits) now() time.Time { return time.Unix(0, 0).Add(l.past) }

func (l *limits) after(d time.Duration) <-chan time.Time {
	l.waiting[d] = make(chan time.Time, 1)
	if l.ended[d] {
		l.waiting[d] <- l.now()
	}
	return l.waiting[d]
}

func (l *limits) doing(_, _ int, c Check, what string) {
	if what == "" {
		l.ended, l.waiting = map[time.Duration]bool{}, map[time.Duration]chan time.Time{}
	}
	for _, d := range l.over[strings.TrimSpace(c.Name+" "+what)] {
		if l.ended[d] = true; d == budget {
			l.past = d
		}
		select {
		case l.waiting[d] <- l.now():
		default: // it is not waited for, or has been told
		}
	}
}

// supervise runs fakes by their names in a worker that opens its device as told.
func supervise(t *testing.T, open string, o Options, l limits, names ...string) *Report {
	t.Helper()
	var list []Check
	for _, n := range names {
		c, ok := find(fakes, GroupTimes+"/"+n)
		require.True(t, ok, n)
		list = append(list, c)
	}
	o.Worker, o.Budget, o.Silence, o.Grace = []string{os.Args[0], "worker", open}, budget, silence, grace
	o.clock, o.Doing = clock{l.now, l.after}, l.doing
	r := &Report{Form: Form, Seed: 5}
	Run(t.Context(), list, o, r)
	require.Len(t, r.Results, len(names))
	return r
}

// TestStatuses holds what becomes of checks that end, and that a crash costs one of them.
func TestStatuses(t *testing.T) {
	want := []struct {
		name   string
		status Status
		why    string
	}{
		{"right", Right, ""}, {"wrong", Wrong, "b, variant base: 7 instead of 8"}, {"error", Wrong, "the engine said no"},
		{"panic", Wrong, "panic: a slip"}, {"nothing", Wrong, "the check had no result"}, {"lacking", NotRun, "device lacks x"},
		{"missing", NotRun, "no clock"}, {"segfault", Crashed, "SIGSEGV"}, {"killed", Crashed, "signal: killed"},
		{"lost", Crashed, "device lost"}, {"right", Right, ""}, {"limits", Right, ""}, {"timed", Right, ""},
		{"larger", NotRun, "the device is too slow for it"}, {"longer", NotRun, "it might not end within the budget"},
		{"orphan", NotRun, "error has no result"},
	}
	var names, heard []string
	for _, w := range want {
		names = append(names, w.name)
	}
	r := supervise(t, "", Options{Result: func(x Result) { heard = append(heard, x.Name) }}, limits{}, names...)
	assert.Equal(t, names, heard)
	for i, w := range want {
		x := r.Results[i]
		assert.Equal(t, w.status, x.Status, "%s: %s", w.name, x.Why)
		assert.Contains(t, x.Why, w.why, w.name)
		assert.Equal(t, uint64(5), x.Seed)
	}
	assert.True(t, r.Bad())
	assert.Equal(t, "fake <device>", r.Device.Name)
	crash := r.Results[7]
	assert.Contains(t, crash.Why, "it was at: compiling attn_decode")
	assert.Contains(t, crash.Output, "SIGSEGV: segmentation violation")
	assert.Len(t, r.Results[1].Rows, 2)
	assert.Equal(t, 1000.0, r.Limits().CopyGBs)
	assert.Len(t, r.Times(), 1)
	assert.Equal(t, 4, r.Count("", Right))
}

// TestHang holds that a check which does not return is ended, and that nothing more is given to
// its device; one that returns when it is told to costs itself.
func TestHang(t *testing.T) {
	over := map[string][]time.Duration{"slow": {silence}, "hang waiting for a fence": {silence, grace}}
	r := supervise(t, "", Options{}, limits{over: over},
		"right", "slow", "right", "hang", "right", "wrong")
	var got []Status
	for _, x := range r.Results {
		got = append(got, x.Status)
	}
	assert.Equal(t, []Status{Right, TimedOut, Right, TimedOut, NotRun, NotRun}, got)
	assert.Contains(t, r.Results[1].Why, "nothing was heard of it for 30s")
	assert.Contains(t, r.Results[3].Why, "it was at: waiting for a fence")
	for _, i := range []int{1, 3} {
		assert.Contains(t, r.Results[i].Why, "--timeout allows more")
	}
	assert.Equal(t, "the device hung in times/hang", r.Results[4].Why)
	assert.False(t, r.Bad())
	assert.True(t, r.Late())
	assert.Contains(t, r.Verdict(), "nothing is wrong, but not all ended in time")

	r = supervise(t, "", Options{}, limits{}, "hung", "right") // a wait that ended says so itself
	assert.Equal(t, TimedOut, r.Results[0].Status)
	assert.Contains(t, r.Results[0].Why, "its work does not end (--timeout allows more)")
	assert.Equal(t, "the device hung in times/hung", r.Results[1].Why)
}

// TestBudget holds that checks end with the budget, and what is said of those in the middle.
func TestBudget(t *testing.T) {
	r := supervise(t, "", Options{}, limits{over: map[string][]time.Duration{"long more": {budget}}}, "right", "long", "right")
	assert.Equal(t, Right, r.Results[0].Status)
	assert.Equal(t, NotRun, r.Results[1].Status)
	assert.Regexp(t, `^the budget of 1m0s was used up in the middle of it; \d+ parts were right$`, r.Results[1].Why)
	assert.Equal(t, "the budget of 1m0s was used up", r.Results[2].Why)
	assert.False(t, r.Bad())
}

// TestShares holds that a group leaves to later ones their shares of the budget, but for its first
// check, and a check to later ones of its group theirs.
func TestShares(t *testing.T) {
	sum := 0
	for _, g := range Groups {
		sum += g.share
	}
	assert.Equal(t, 100, sum)
	assert.Equal(t, []int{95, 25, 0}, []int{reserved(GroupLimits), reserved(GroupCuts), reserved(GroupTimes)})
	now := clock{now: func() time.Time { return time.Unix(50, 0) }}
	s := supervisor{ctx: t.Context(), o: Options{Budget: 100 * time.Second, clock: now}, end: time.Unix(100, 0), report: &Report{}}
	assert.Equal(t, 25*time.Second, s.left(GroupOperations))
	assert.Equal(t, 25*time.Second, s.left(GroupLayers))
	for _, group := range []string{GroupOperations, GroupLayers, GroupTimes} {
		s.checks = append(s.checks, Check{Group: group})
		s.report.Results = append(s.report.Results, Result{Group: group})
	}
	assert.Equal(t, -10*time.Second, s.left(GroupOperations))
	assert.Equal(t, 5*time.Second, s.left(GroupLayers))
	assert.Equal(t, "the share of operations in the budget of 1m40s was used up", s.check(Check{Group: GroupOperations}).Why)

	for range 5 {
		s.checks = append(s.checks, Check{Group: GroupTimes})
	}
	assert.Equal(t, 20*time.Second, s.share(GroupTimes), "twice a fifth of 50 s")
	s.checks = s.checks[:4]
	assert.Equal(t, 50*time.Second, s.share(GroupTimes))
}

// TestShare holds that an operation runs one case, its smallest, however small its share is, and no
// further one when it is over.
func TestShare(t *testing.T) {
	dev := testkit.Device(t)
	c, ok := find(All(false), GroupOperations+"/get_compressed_slot_mapping")
	require.True(t, ok)
	run := func(share time.Duration) Result {
		return c.run(t.Context(), &Env{Dev: dev, Seed: 1, Share: share, beat: func(string) {}})
	}
	all, one := run(time.Hour), run(0)
	assert.Equal(t, Right, all.Status)
	assert.Empty(t, all.Why)
	assert.Greater(t, len(all.Rows), 1)
	assert.Equal(t, Right, one.Status)
	require.Len(t, one.Rows, 1)
	assert.Equal(t, all.Rows[0].Row, one.Rows[0].Row)
	r := Report{Results: []Result{one}}
	assert.Equal(t, "all that was run is right: 1 right", r.Verdict())
	assert.Equal(t, []Reason{{Why: errShare.Error(), Names: []string{c.Group + " " + c.Name}}}, r.Reasons())
}

// TestQuiet holds that a process that works is not taken for one that hangs, up to a limit.
func TestQuiet(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	p := &process{cmd: &exec.Cmd{Process: self}}
	if _, ok := busyTime(os.Getpid()); !ok {
		t.Skip("this system does not say what processes take")
	}
	work := func(long time.Duration) {
		for start, _ := busyTime(os.Getpid()); ; {
			if now, _ := busyTime(os.Getpid()); now-start >= long {
				return
			}
		}
	}
	q := p.listened(time.Minute)
	assert.False(t, q.goesOn(), "it did nothing")
	work(1100 * time.Millisecond)
	assert.True(t, q.goesOn())
	assert.False(t, q.goesOn(), "since then it did nothing")
	q = p.listened(time.Millisecond)
	work(1100 * time.Millisecond)
	assert.False(t, q.goesOn(), "for too long")
}

// TestInterrupted holds that a context that ends ends a check that hangs.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := limits{over: map[string][]time.Duration{"hang waiting for a fence": {grace}}}
	r := &Report{}
	hang, _ := find(fakes, GroupTimes+"/hang")
	Run(ctx, []Check{hang, hang}, Options{Worker: []string{os.Args[0], "worker", ""}, Budget: budget, Silence: silence, Grace: grace,
		clock: clock{l.now, l.after}, Doing: func(done, total int, c Check, what string) {
			if l.doing(done, total, c, what); what == "waiting for a fence" {
				cancel()
			}
		}}, r)
	assert.Equal(t, TimedOut, r.Results[0].Status)
	assert.Equal(t, NotRun, r.Results[1].Status)
}

// TestNoDevice holds what is said where no device can be opened.
func TestNoDevice(t *testing.T) {
	for open, want := range map[string]string{
		"none":  "no Vulkan device",
		"crash": "the driver crashed while the device was opened: the process ended: panic: driver",
		"hang":  "the driver did not open the device in 30s",
	} {
		l := limits{}
		if open == "hang" {
			l.over = map[string][]time.Duration{"right opening the device": {silence}}
		}
		r := supervise(t, open, Options{}, l, "right", "wrong")
		assert.Contains(t, r.Problem, want)
		assert.Nil(t, r.Device)
		for _, x := range r.Results {
			assert.Equal(t, NotRun, x.Status)
			assert.Contains(t, x.Why, want)
		}
	}
	r := &Report{}
	Run(t.Context(), fakes[:1], Options{Worker: []string{filepath.Join(t.TempDir(), "nothing")}, Budget: time.Minute}, r)
	assert.Contains(t, r.Problem, "no such file")
}

// TestTail holds that what a process says is kept in part, and is text.
func TestTail(t *testing.T) {
	var x tail
	for range 100 {
		x.Write([]byte("\xff" + strings.Repeat("é", 500) + "\n"))
	}
	assert.Len(t, x.data, kept)
	assert.LessOrEqual(t, len(x.String()), shown+10)
	assert.True(t, utf8.ValidString(x.String()))
	assert.True(t, strings.HasSuffix(x.String(), "..."))
}
