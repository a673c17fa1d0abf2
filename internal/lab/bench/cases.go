package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// opCase is one size of an operation: build fills in a rig with what to check and
// what to time.
type opCase struct {
	op, name string
	build    func(ctx context.Context, r *opRig) error
}

// preparedCase is a case whose inputs are in memory and whose results were checked.
type preparedCase struct {
	row OpRow // without times
	rig *opRig
	err error
}

// atOnce is how many cases are prepared at a time. That is work of the host: random
// numbers, kernels to compile, references. Each may need some GiB of the device.
func (o IndexerOptions) atOnce(a *vk.Adapter) int {
	if o.together > 0 {
		return o.together
	}
	if a.Type == vk.TypeCPU {
		return 1 // kernels run where references do
	}
	const most, room = 8, 8 << 30
	return max(1, min(most, runtime.NumCPU()/2, int(a.Caps.HeapBytes/room)))
}

// timeCases prepares and checks cases, several at a time, and then times these one after
// the other, with nothing else under way. Rows come in the order of the cases. Where the
// device has not enough memory for one beside others, it comes again alone.
func timeCases(ctx context.Context, dev *vk.Device, o IndexerOptions, cases []opCase, l Limits, p Progress, emit func(OpRow)) (err error) {
	o.floors = &floors{}
	defer func() { err = errors.Join(err, o.floors.close()) }()
	var wrong error
	if o.only != nil {
		cases = slices.DeleteFunc(slices.Clone(cases), func(c opCase) bool { return !o.only(c.op, c.name) })
	}
	width := o.atOnce(dev.Adapter())
	for n := width; len(cases) > 0; {
		n = min(n, len(cases))
		done, err := timeSome(ctx, dev, o, cases[:n], l, p, func(r OpRow) {
			emit(r)
			if r.Status == "wrong" {
				wrong = ErrWrong
			}
		})
		if err != nil {
			return err
		}
		cases = cases[done:]
		if n = width; done == 0 {
			n = 1
		}
	}
	return wrong
}

// timeSome prepares all cases given and times them, up to the first for which there was
// not enough memory beside the others, and says how many those are.
func timeSome(ctx context.Context, dev *vk.Device, o IndexerOptions, cases []opCase, l Limits, p Progress, emit func(OpRow)) (done int, err error) {
	p.Step(fmt.Sprintf("%s %s and %d more: filling memory, checking", cases[0].op, cases[0].name, len(cases)-1))
	list := make([]preparedCase, len(cases))
	var all sync.WaitGroup
	for i, c := range cases {
		all.Go(func() { list[i] = prepare(ctx, dev, o, c, p) })
	}
	all.Wait()
	defer func() {
		for _, x := range list {
			err = errors.Join(err, x.rig.Close())
		}
	}()
	if slices.ContainsFunc(list, func(x preparedCase) bool { return x.rig.floor() }) {
		if err := o.floors.open(ctx, dev); err != nil {
			return 0, err
		}
	}
	for i, x := range list {
		if errors.Is(x.err, vk.ErrOutOfDeviceMemory) {
			if len(cases) > 1 {
				return i, nil
			}
			x.row.Status, x.row.Detail, x.err = "skipped", x.err.Error(), nil
		}
		if x.err != nil {
			return i, fmt.Errorf("bench: %s %s: %w", cases[i].op, cases[i].name, x.err)
		}
		rows := []OpRow{x.row}
		if x.row.Status == "ok" {
			p.Step(cases[i].op + " " + cases[i].name + ": timing")
			if rows, err = x.time(ctx, dev, o, l, i == 0); err != nil {
				return i, fmt.Errorf("bench: %s %s: %w", cases[i].op, cases[i].name, err)
			}
		}
		for _, r := range rows {
			emit(r)
		}
		if err := x.rig.Close(); err != nil {
			return i, err
		}
	}
	return len(cases), nil
}

// prepare fills memory with a case's inputs and checks it.
func prepare(ctx context.Context, dev *vk.Device, o IndexerOptions, c opCase, p Progress) preparedCase {
	x := preparedCase{row: OpRow{Op: c.op, Case: c.name}, rig: newOpRig(ctx, dev, o, p)}
	if x.err = c.build(ctx, x.rig); x.err != nil {
		return x
	}
	x.row.Variant, x.row.Sets = x.rig.variant, x.rig.sets
	res, err := x.rig.check(ctx)
	if x.err = err; err != nil {
		return x
	}
	x.row.Status, x.row.Error, x.row.Bound = "ok", res.Error, res.Bound
	if !res.Pass {
		x.row.Status, x.row.Detail = "wrong", res.Detail
	}
	return x
}

// How long launches keep a device busy before they are timed: long after a pause, in
// which its clock falls, and shortly behind another case.
const (
	wakeAfterPause = 400 * time.Millisecond
	wakeBehind     = 60 * time.Millisecond
)

// time times the parts of a case that was right.
func (x preparedCase) time(ctx context.Context, dev *vk.Device, o IndexerOptions, l Limits, paused bool) (rows []OpRow, err error) {
	long := wakeBehind
	if paused {
		long = wakeAfterPause
	}
	if err := wakeFor(ctx, dev, x.rig.parts[0].record, long); err != nil {
		return nil, err
	}
	for _, part := range x.rig.parts {
		r := x.row
		r.Part, r.Bytes, r.Flop = part.name, part.bytes, part.flop
		if part, err = part.settle(ctx, dev); err != nil {
			return nil, err
		}
		if r.Time, err = part.sample(ctx, dev, o.Warmup, o.Reps); err != nil {
			return nil, err
		}
		if part.floor && o.floors.reader != nil {
			if r.FloorUS, r.FloorLaunches, err = o.floors.below(ctx, dev, part, o.Warmup, o.Reps); err != nil {
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
