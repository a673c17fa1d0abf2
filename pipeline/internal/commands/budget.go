package commands

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// submitBudget is the longest time that a submission may take, so that no watchdog stops it and
// other programs get their turn: a tenth of the shortest watchdog that is known, tuning.Watchdog. A
// step with more to do takes several submissions, with the same results.
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

// Commands are commands of a step size, and how long they take.
type Commands struct {
	*vk.Commands
	Each  bool      // every operation is a part of its own, or several
	parts []vk.Part // nil if there is no budget
	took  []float64 // ns that each part took last; nil before
	work  float64   // of the step that took so long

	plain  bool        // recorded after workgroups starved, see vk.Device.Starved
	before []int       // operations that begin submissions, but for the first
	pieces map[int]int // of operations that are divided
}

// Observe remembers how long the parts of a finished step took, and returns the longest time.
// Without times nothing changes.
func (c *Commands) Observe(work float64) (longest time.Duration) {
	if times, err := c.PartTimes(); err == nil && times != nil {
		c.took, c.work = times, work
		longest = time.Duration(slices.Max(times))
	}
	return longest
}

// suits reports whether each submission stays within the budget, as far as the last step tells
// and the operations can be divided. With more to do a submission takes longer in proportion, and
// by no more than `each` ns for a unit of work.
func (c *Commands) suits(budget time.Duration, work, each float64) bool {
	if budget < 0 || c.parts == nil {
		return true // never divided
	}
	if c.Each {
		return c.took == nil
	}
	for i, ns := range c.took {
		most := min(ns*max(1, work/c.work), ns+max(0, work-c.work)*each)
		if c.parts[i].Divisible && most > float64(budget) {
			return false
		}
	}
	return true
}

// operations are the times of single operations, from those of their parts; negative where one is
// unknown.
func (c *Commands) operations() (took []float64, divisible []bool) {
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
func (c *Commands) cuts(budget time.Duration) (before []int, pieces map[int]int) {
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

// Suits reports whether a step with so much work may take commands as they are.
func (z *Sizes) Suits(c *Commands, work float64) bool { return c.suits(z.Budget, work, z.workTime()) }

// workTime estimates the most ns that a unit of work takes, see Step.work in package pipeline: a
// token sees one token more in all layers, whose entries and keys are within keyBytes.
func (z *Sizes) workTime() float64 {
	const many, keyBytes = 1 << 20, 1 << 10
	dev, layers := z.cfg.Dev, many*len(z.cfg.Layers)
	w := vk.Work{Products: float64(layers * (2*z.cfg.Model.Heads*cache.D + z.cfg.Model.IndexHeads*cache.IndexDim)),
		Bytes: uint64(layers * keyBytes)}
	return float64(tuning.Of(dev).Time(dev.Adapter(), w)) / many
}

// divide prepares the recording of commands that replace old, which may be nil: first with a
// submission for each operation, to learn their times, then with as few as the budget permits.
// Those that suit are divided as they were: the memory that they used is another.
func (z *Sizes) divide(rec *vk.Recorder, old *Commands, work float64) (*Commands, error) {
	budget := z.Budget
	fresh := &Commands{}
	if budget < 0 {
		return fresh, nil
	}
	var split vk.Split
	switch {
	case old != nil && old.Each && old.took != nil:
		split.Before, split.Of = old.cuts(budget)
	case old != nil && !old.Each && old.took != nil && z.Suits(old, work):
		split.Before, split.Of = old.before, old.pieces
	case old != nil:
		split.Each, split.Of = true, old.pieces // what took too long still does
	default:
		tune, a := tuning.Of(z.cfg.Dev), z.cfg.Dev.Adapter()
		most := max(budget/2, leastEstimate)
		split.Each, split.Count = true, func(w vk.Work) int { return tune.Pieces(a, w, most) }
	}
	fresh.Each, fresh.before, fresh.pieces = split.Each, split.Before, split.Of
	return fresh, rec.Split(split)
}

// Break notes that not all submissions of some commands were made, or that one failed: the device
// may have stopped within an operation.
func (b *Size) Break() { b.broken = true }

// Repair resets the counters of operations in front of the next commands, if some broke off. It
// returns what it submitted, nil for nothing.
func (b *Size) Repair() (*vk.Pending, error) {
	if !b.broken {
		return nil, nil
	}
	cmd, err := b.z.cfg.Record(func(rec *vk.Recorder) (err error) {
		for _, k := range b.Kinds {
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
