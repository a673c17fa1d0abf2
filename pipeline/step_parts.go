package pipeline

import (
	"errors"
	"slices"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// defaultSubmitBudget is EngineOptions.SubmitBudget unless it is given: a fraction of
// what desktops' watchdogs allow, and short enough for others to have their turn.
const defaultSubmitBudget = 200 * time.Millisecond

// stepCommands are commands of a bucket, and what is known about how long they take.
type stepCommands struct {
	*vk.Commands
	each bool      // every operation is a part
	size []int     // operations of each part; nil if each
	took []float64 // ns that each part took last; nil before
	work float64   // of the step that it took so long for
}

// work says how much there is to do for the step's tokens, in any unit: how many earlier
// tokens they see. Between steps of one size the device's time grows by no more.
func (e *Engine) work() (sum float64) {
	for _, x := range e.parts {
		sum += float64(x.n) * float64(x.s.length+x.n)
	}
	return sum
}

// observe remembers how long the parts of a step took, which has finished, and returns
// the longest time. Without times nothing changes.
func (c *stepCommands) observe(work float64) (longest time.Duration) {
	if times, err := c.PartTimes(); err == nil && times != nil {
		c.took, c.work = times, work
		longest = time.Duration(slices.Max(times))
	}
	return longest
}

// Longest is the longest time that a submission took the device so far, of steps that
// were waited for; 0 if none was measured (see EngineOptions.SubmitBudget).
func (e *Engine) Longest() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.longest
}

// suits reports whether no submission of the commands will take longer than the budget,
// as far as can be known from the last step and as far as they can be divided.
func (c *stepCommands) suits(budget time.Duration, work float64) bool {
	if budget < 0 || c.size == nil && !c.each {
		return true // not to be divided, or the device has no clock
	}
	if c.each {
		return c.took == nil
	}
	for i, ns := range c.took {
		if c.size[i] > 1 && ns*max(1, work/c.work) > float64(budget) {
			return false
		}
	}
	return true
}

// cuts says before which operations submissions begin, from the times of single
// operations. Half of the budget is left for steps with more to do.
func (c *stepCommands) cuts(budget time.Duration) (before, size []int) {
	before = vk.Pack(c.took, float64(budget)/2)
	last := 0
	for _, at := range append(before, len(c.took)) {
		size, last = append(size, at-last), at
	}
	return before, size
}

// divide prepares the recording of commands that replace old, which may be nil: with a
// submission for each operation to learn what they take, then as few as the budget
// permits.
func (e *Engine) divide(rec *vk.Recorder, old *stepCommands) (*stepCommands, error) {
	budget := e.opts.SubmitBudget
	fresh := &stepCommands{}
	if budget < 0 {
		return fresh, nil
	}
	var before []int
	if old != nil && old.each && old.took != nil {
		before, fresh.size = old.cuts(budget)
	}
	var err error
	if fresh.each = fresh.size == nil; fresh.each {
		err = rec.SplitEach()
	} else {
		err = rec.SplitAt(before)
	}
	if errors.Is(err, vk.ErrMissingFeature) {
		return &stepCommands{}, nil
	}
	return fresh, err
}
