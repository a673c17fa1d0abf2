package pipeline

import (
	"time"

	"github.com/vkmla/vkmla/vk"
)

// defaultBudget is EngineOptions.SubmitBudget when it is 0: a tenth of the two seconds
// after which desktops usually take a device for hung.
const defaultBudget = 200 * time.Millisecond

// division is how commands are cut into submissions.
type division struct {
	known  bool  // else every operation is one, to be measured
	before []int // operations that a submission begins with
}

// budget is how long a submission may take, in nanoseconds; 0: any time.
func (e *Engine) budget() float64 {
	switch b := e.opts.SubmitBudget; {
	case b < 0:
		return 0
	case b > 0:
		return float64(b)
	}
	return float64(defaultBudget)
}

// divide makes a recorder cut the commands of a key into submissions.
func (b *bucket) divide(rec *vk.Recorder, key commandKey) error {
	if b.e.budget() == 0 || b.e.dev.Caps().TimestampPeriod == 0 {
		return nil
	}
	if d := b.divided[key]; d.known {
		return rec.SplitAt(d.before)
	}
	return rec.SplitEach()
}

// Submissions that were made of measured operations are to take half of the budget, since
// caches grow and clocks fall; beyond three quarters they are measured again.
const (
	budgetAim   = 0.5
	budgetAlarm = 0.75
)

// learn looks at how long the step's submissions took, and has those commands recorded
// anew that are to be cut in another way. The device is done with them.
func (st *Step) learn() error {
	b, e := st.b, st.b.e
	limit := e.budget()
	for _, key := range st.handed {
		c := b.recorded[key]
		if c == nil || limit == 0 {
			continue
		}
		times, err := c.PartTimes()
		if err != nil {
			return err
		}
		if times == nil {
			continue
		}
		longest := 0.0
		for _, ns := range times {
			longest = max(longest, ns)
		}
		e.longest = max(e.longest, time.Duration(longest))
		d := b.divided[key]
		switch {
		case !d.known:
			b.divided[key] = division{true, vk.Pack(times, budgetAim*limit)}
		case longest > budgetAlarm*limit && len(times) < c.Operations():
			delete(b.divided, key)
		default:
			continue
		}
		delete(b.recorded, key)
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Longest is the longest time that a submission of a committed step took the device so
// far, as far as it was measured (see EngineOptions.SubmitBudget).
func (e *Engine) Longest() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.longest
}
