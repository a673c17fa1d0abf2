package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// opCase is one size of an operation.
type opCase struct {
	op   verify.Op
	size verify.Size
}

// preparedCase is a case whose operands are in device memory and whose results were checked.
type preparedCase struct {
	row   OpRow // without times
	parts []opPart
	close func()
	err   error
}

// atOnce returns how many cases are prepared at a time. That is work of the host: random
// numbers, kernels to compile, references. Each may need some GiB of the device.
func (o OpOptions) atOnce(dev *vk.Device) int {
	if o.together > 0 {
		return o.together
	}
	if slow(dev) {
		return 1 // kernels run where references do
	}
	const most, room = 8, 8 << 30
	return max(1, min(most, runtime.NumCPU()/2, int(dev.Caps().HeapBytes/room)))
}

// timeCases prepares and checks cases, several at a time, and then times these one after
// the other, with nothing else under way. Rows come in the order of the cases. Where the
// device has not enough memory for one beside others, it comes again alone.
func timeCases(ctx context.Context, dev *vk.Device, o OpOptions, cases []opCase, l Limits, p Progress, emit func(OpRow)) (err error) {
	if slices.ContainsFunc(cases, func(c opCase) bool { return c.size.Floor }) {
		o.reader, o.noReader = openReader(ctx, dev)
		defer func() { err = errors.Join(err, o.reader.close()) }()
	}
	t := tally{ctx: ctx}
	width := o.atOnce(dev)
	all := len(cases)
	for n := width; len(cases) > 0; {
		n = min(n, len(cases))
		p.Rows(all-len(cases), all)
		done, err := timeSome(dev, o, cases[:n], l, p, &t, emit)
		if err != nil {
			return err
		}
		cases = cases[done:]
		if n = width; done == 0 {
			n = 1
		}
	}
	return t.missing
}

// timeSome prepares all cases given and times them, up to the first for which there was
// not enough memory beside the others, and says how many those are.
func timeSome(dev *vk.Device, o OpOptions, cases []opCase, l Limits, p Progress, t *tally, emit func(OpRow)) (done int, err error) {
	ctx := t.ctx
	name := func(c opCase) string { return c.op.Name + " " + c.size.Name }
	p.Step(fmt.Sprintf("%s and %d more: filling memory, checking", name(cases[0]), len(cases)-1))
	list := make([]preparedCase, len(cases))
	var all sync.WaitGroup
	for i, c := range cases {
		all.Go(func() { list[i] = prepare(ctx, dev, o, c) })
	}
	all.Wait()
	defer func() {
		for _, x := range list[done:] {
			x.close()
		}
	}()
	for i, x := range list {
		if errors.Is(x.err, vk.ErrOutOfDeviceMemory) && len(cases) > 1 {
			return i, nil
		}
		if x.err == nil && cases[i].size.Floor {
			x.err = o.noReader
		}
		rows := []OpRow{x.row}
		if x.err == nil && x.row.Status == "ok" {
			p.Step(name(cases[i]) + ": timing")
			if rows, x.err = x.time(ctx, dev, o, l, i == 0); x.err != nil {
				rows = []OpRow{x.row}
			}
		}
		for _, r := range rows {
			if err := t.add(name(cases[i]), x.err, &r.Status, &r.Detail, func() { emit(r) }); err != nil {
				return i, err
			}
		}
		x.close()
		done = i + 1
	}
	return done, nil
}

// prepare fills memory with a case's operands and checks what the operation makes of them.
func prepare(ctx context.Context, dev *vk.Device, o OpOptions, c opCase) preparedCase {
	x := preparedCase{row: OpRow{Op: c.op.Name, Case: c.size.Name}, close: func() {}}
	host := c.size.Make(rand.New(rand.NewPCG(o.Seed, 1)))
	b, err := c.op.Bind(verify.Build{Dev: dev, Variant: o.Variant, MaxBytes: c.size.MaxBytes}, host)
	if err != nil {
		x.err = err
		return x
	}
	x.row.Variant, x.row.Sets = b.Variant, setsOf(c.size, slow(dev))
	s, err := verify.NewSets(ctx, dev, b, x.row.Sets, slow(dev), o.Seed)
	x.close = s.Close
	var res verify.Result
	if err == nil {
		res, err = s.Check(c.op, host, b.Variant)
	}
	if x.err = err; err != nil {
		return x
	}
	x.row.Status, x.row.Error, x.row.Bound = "ok", res.Error, res.Bound
	if !res.Pass {
		x.row.Status, x.row.Detail = "wrong", res.Detail
	}
	x.parts = partsOf(c.size, s.Launches)
	return x
}

// setsOf returns how many sets of operands it takes to get past the last-level cache.
func setsOf(s verify.Size, onSlow bool) int {
	if onSlow {
		return 2
	}
	most := 64
	if s.MostSets > 0 {
		most = s.MostSets
	}
	return min(most, max(2, verify.RotateBytes/max(s.Touched, 1)))
}

// partsOf returns what to time of a size: its steps, if there are several, and the whole.
func partsOf(s verify.Size, launches []verify.Launch) (parts []opPart) {
	for i, p := range launches[0].Parts {
		parts = append(parts, opPart{name: p.Name, Work: s.Parts[p.Name], record: func(rec *vk.Recorder, n int) error {
			return launches[n%len(launches)].Parts[i].Record(rec)
		}})
	}
	whole := ""
	if len(parts) > 0 {
		whole = "both"
	}
	return append(parts, opPart{name: whole, Work: s.Work, inner: s.Launches, floor: s.Floor, record: func(rec *vk.Recorder, n int) error {
		return launches[n%len(launches)].Record(rec)
	}})
}

// time times the parts of a case that was right.
func (x preparedCase) time(ctx context.Context, dev *vk.Device, o OpOptions, l Limits, paused bool) (rows []OpRow, err error) {
	long := wakeBehind
	if paused {
		long = wakeAfterPause
	}
	if err := wakeFor(ctx, dev, x.parts[0].record, long); err != nil {
		return nil, err
	}
	for _, part := range x.parts {
		r := x.row
		r.Part, r.Bytes, r.Flop = part.name, part.Bytes, part.Flop
		if part, err = part.settle(ctx, dev); err != nil {
			return nil, err
		}
		if r.Time, err = part.sample(ctx, dev, o.Warmup, o.Reps); err != nil {
			return nil, err
		}
		if part.floor && o.reader != nil {
			if r.FloorUS, r.FloorLaunches, err = o.reader.below(ctx, dev, part, o.Warmup, o.Reps); err != nil {
				return nil, err
			}
			r.ShareFloor = r.FloorUS / r.Time.Median
		}
		r.GBs, r.TFLOPs = r.Bytes/r.Time.Median/1e3, r.Flop/r.Time.Median/1e6
		r.ShareCopy, r.ShareMatrix = r.GBs/l.CopyGBs, r.TFLOPs/l.MatrixTFLOPs
		r.Peers = PeersOf(r.Op, r.Case, r.Part)
		rows = append(rows, r)
	}
	return rows, nil
}

// opPart is something to time. record records launch i.
type opPart struct {
	name string
	verify.Work
	record func(r *vk.Recorder, i int) error
	// inner launches lie between two timestamps, and a sample is their time over their
	// number, as others time short kernels; 0: settle decides.
	inner int
	floor bool
}

// Launches that are shorter than shortLaunch are timed several at a time: a timestamp
// after each would add what it costs itself, about 2 us on an H100.
const (
	shortLaunch = 50e3 // ns
	launches    = 16
)

// settle decides how many launches lie between two timestamps.
func (p opPart) settle(ctx context.Context, dev *vk.Device) (opPart, error) {
	if p.inner > 0 {
		return p, nil
	}
	p.inner = 1
	if slow(dev) {
		return p, nil
	}
	t, err := sample(ctx, dev, 3, 5, p.record)
	if err == nil && t.Median*1e3 < shortLaunch {
		p.inner = launches
	}
	return p, err
}

// sample times a part that is settled: reps samples after warmup launches, each launch after
// the end of the one before. A sample is one launch, or the average of several short ones.
func (p opPart) sample(ctx context.Context, dev *vk.Device, warmup, reps int) (Time, error) {
	n := p.inner
	t, err := sample(ctx, dev, (warmup+n-1)/n, reps, func(r *vk.Recorder, i int) error {
		for k := range n {
			if err := errors.Join(door.Separate(r), p.record(r, i*n+k)); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range t.Samples {
		t.Samples[i] /= float64(n)
	}
	t.Median, t.P95 = t.Median/float64(n), t.P95/float64(n)
	return t, err
}

// How long launches keep a device busy before they are timed: long after a pause, in
// which its clock falls, and shortly after another case.
const (
	wakeAfterPause = 400 * time.Millisecond
	wakeBehind     = 60 * time.Millisecond
)

// wakeFor keeps the device busy for a while: an idle GPU runs at a fraction of its clock.
func wakeFor(ctx context.Context, dev *vk.Device, record func(r *vk.Recorder, i int) error, long time.Duration) error {
	if slow(dev) {
		return nil
	}
	cmd, err := recorded(dev, func(r *vk.Recorder) error {
		for i := range 50 {
			if err := record(r, i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for start := time.Now(); err == nil && time.Since(start) < long; {
		err = cmd.Run(ctx)
	}
	return errors.Join(err, cmd.Close())
}
