package pipeline

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// submitBudget is the longest time that a submission may take, so that no watchdog stops it and
// other programs get their turn: a fraction of what desktops' watchdogs allow. A step with more to
// do takes several submissions, with the same results.
//
// To learn what operations take, the first step of a size submits each of them alone, as does a
// step with much more to do, which might exceed the budget. Attention and products that exceed it
// alone are divided into up to 64 pieces; before they are measured, by an estimate from their bytes
// and multiply-adds at rates that slow devices reach. On a device without timestamps the host's
// clock tells. See Stats.Longest.
const submitBudget = 200 * time.Millisecond

// leastEstimate is the shortest time that launches are divided by before they were timed: estimates
// serve to stay clear of watchdogs, which allow a thousand times as long.
const leastEstimate = time.Millisecond

// stepCommands are commands of a step size, and how long they take.
type stepCommands struct {
	*vk.Commands
	plain  bool        // recorded after workgroups starved, see vk.Device.Starved
	each   bool        // every operation is a part of its own, or several
	pieces map[int]int // of operations that are divided
	parts  []vk.Part   // nil if there is no budget
	took   []float64   // ns that each part took last; nil before
	work   float64     // of the step that took so long
}

// observe remembers how long the parts of a finished step took, and returns the longest time.
// Without times nothing changes.
func (c *stepCommands) observe(work float64) (longest time.Duration) {
	if times, err := c.PartTimes(); err == nil && times != nil {
		c.took, c.work = times, work
		longest = time.Duration(slices.Max(times))
	}
	return longest
}

// suits reports whether each submission stays within the budget, as far as the last step tells
// and the operations can be divided.
func (c *stepCommands) suits(budget time.Duration, work float64) bool {
	if budget < 0 || c.parts == nil {
		return true // never divided
	}
	if c.each {
		return c.took == nil
	}
	for i, ns := range c.took {
		if c.parts[i].Divisible && ns*max(1, work/c.work) > float64(budget) {
			return false
		}
	}
	return true
}

// operations are the times of single operations, from those of their parts; negative where one is
// unknown.
func (c *stepCommands) operations() (took []float64, divisible []bool) {
	for i, p := range c.parts {
		at := p.First
		piece := at < len(took)
		if !piece {
			took, divisible = append(took, 0), append(divisible, false)
		}
		if took[at] += c.took[i]; c.took[i] < 0 {
			took[at] = math.Inf(-1)
		}
		divisible[at] = p.Divisible || piece
	}
	return took, divisible
}

// cuts says, from the times of single operations, before which operations submissions begin, and
// into how many pieces operations that exceed the budget are divided. Half of the budget is left
// for steps with more to do.
func (c *stepCommands) cuts(budget time.Duration) (before []int, pieces map[int]int) {
	took, divisible := c.operations()
	most := float64(budget) / 2
	pieces = map[int]int{}
	for i, ns := range took {
		if divisible[i] && ns > most {
			pieces[i] = min(int(math.Ceil(ns/most)), vk.MaxPieces)
		}
	}
	return pack(took, most), pieces
}

// pack divides operations into parts that stay within the budget, each with as many as fit, and
// returns before which operations parts begin. One that exceeds the budget alone, or whose time is
// negative, is a part of its own.
func pack(times []float64, budget float64) (before []int) {
	sum := 0.0
	for i, t := range times {
		alone := t < 0 || i > 0 && times[i-1] < 0
		if i > 0 && (alone || sum+t > budget) {
			before, sum = append(before, i), 0
		}
		sum += max(t, 0)
	}
	return before
}

// budgetOf returns submitBudget, or half of what the driver's watchdog is thought to allow.
func budgetOf(dev *vk.Device) time.Duration {
	if limit, _ := tuning.Watchdog(dev.Adapter()); limit > 0 {
		return min(submitBudget, limit/2)
	}
	return submitBudget
}

// divide prepares the recording of commands that replace old, which may be nil: first with a
// submission for each operation, to learn their times, then with as few as the budget permits.
func (e *Engine) divide(rec *vk.Recorder, old *stepCommands) (*stepCommands, error) {
	budget := e.sizes.budget
	fresh := &stepCommands{}
	if budget < 0 {
		return fresh, nil
	}
	var err error
	var pieces vk.Pieces
	if old != nil && old.each && old.took != nil {
		var before []int
		before, fresh.pieces = old.cuts(budget)
		err = rec.SplitAt(before)
	} else {
		fresh.each = true
		if old != nil {
			fresh.pieces = old.pieces // what took too long still does
		} else {
			tune, a := tuning.Of(e.dev), e.dev.Adapter()
			most := max(budget/2, leastEstimate)
			pieces.Count = func(w vk.Work) int { return tune.Pieces(a, w, most) }
		}
		err = rec.SplitEach()
	}
	if err != nil {
		return nil, err
	}
	pieces.Of = fresh.pieces
	return fresh, rec.Divide(pieces)
}

// brokeOff notes that not all submissions of some commands were made: the device may have stopped
// within an operation, and the layers have to run again.
func (st *Step) brokeOff(key commandKey, err error) {
	if errors.Is(err, vk.ErrBusy) {
		return // all of them are with the device already
	}
	st.b.broken = true
	if key.layer == prologue {
		return
	}
	first, end := st.layers(key.layer)
	if st.e.chained() { // the caller's commands cannot be continued, only begun again
		first, end = st.first, len(st.e.layers)
	}
	clear(st.e.now.ran[first:end])
	clear(st.e.now.shown[first:end])
	st.latest = -1
}

// behind adds the submissions before this one to sync: where one of them failed, the device gets
// nothing of this one. Without the step's metadata the device has that of an earlier step: layers
// would write to rows that a session has.
func (st *Step) behind(repaired *vk.Pending, sync []vk.Sync) []vk.Sync {
	var all []*vk.Pending
	for _, p := range []*vk.Pending{st.flying, repaired} {
		if p == nil {
			continue
		}
		if all = append(all, p); !slices.Contains(st.earlier, p) {
			st.earlier = append(st.earlier, p)
		}
	}
	if all == nil {
		return sync
	}
	return append(slices.Clone(sync), vk.Sync{Behind: all})
}

// waitAll waits for a submission, and returns its error or the first one of those before it, which
// have ended by then.
func waitAll(ctx context.Context, last *vk.Pending, earlier []*vk.Pending) error {
	err := last.Wait(ctx)
	for i := 0; i < len(earlier) && err == nil; i++ {
		err = earlier[i].Wait(ctx)
	}
	return err
}

// withhold keeps from the device what it does not have of the step yet.
func (st *Step) withhold() {
	for _, c := range st.submitted {
		if c.Cancel() {
			st.b.broken = true
		}
	}
}

// repair resets the counters of operations in front of the next commands, if some broke off. It
// returns what it submitted, nil for nothing.
func (b *stepSize) repair() (*vk.Pending, error) {
	if !b.broken {
		return nil, nil
	}
	cmd, err := b.e.record(func(rec *vk.Recorder) (err error) {
		for _, k := range b.kinds {
			err = errors.Join(err, k.Reset(rec))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	p, err := cmd.Submit()
	b.broken = err != nil
	return p, errors.Join(err, cmd.Release())
}
