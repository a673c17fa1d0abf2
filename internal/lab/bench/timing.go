package bench

import (
	"context"
	"errors"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// longest is how long a submission of the layer and step suites may be, unless a single
// launch is longer: a desktop's watchdog must not find the device gone.
const longest = 100 * time.Millisecond

// maxMarks is below what commands can have of timestamps.
const maxMarks = 8000

// OpTime is the time of one operation of a layer or step, by its section.
type OpTime struct {
	Name       string  `json:"op"`
	Layer      string  `json:"layer,omitempty"` // kind of the layer, in a step
	Time       Time    `json:"time"`
	Dispatches int     `json:"dispatches"`
	Barriers   int     `json:"barriers"`
	Work       Work    `json:"work"`
	Limit      float64 `json:"limit_us"` // what the bytes or the products need at least
	Share      float64 `json:"share"`    // of the limit, of Time.Median
}

// repeatedRun times launches in submissions of at most longest. The first launch decides
// how many go into one.
type repeatedRun struct {
	ctx    context.Context
	dev    *vk.Device
	record func(r *vk.Recorder, i int) error
}

// commands records n launches, from number i on; with sections or a timestamp after
// each.
func (x repeatedRun) commands(n, i int, sections bool) (*vk.Commands, error) {
	rec, err := x.dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	err = func() error {
		if sections {
			if err := rec.TimeSections(); err != nil {
				return err
			}
		} else if _, err := rec.Timestamp(); err != nil {
			return err
		}
		for j := range n {
			if err := x.record(rec, i+j); err != nil {
				return err
			}
			if !sections {
				if _, err := rec.Timestamp(); err != nil {
					return err
				}
			}
		}
		return nil
	}()
	if err != nil {
		rec.Close()
		return nil, err
	}
	return rec.End()
}

// probe runs one launch and says how many fit into a submission and how long one took.
func (x repeatedRun) probe() (fit int, took time.Duration, err error) {
	cmd, err := x.commands(1, 0, false)
	if err != nil {
		return 0, 0, err
	}
	var ns []float64
	for range 2 { // the first wakes the device
		if err = cmd.Run(x.ctx); err == nil {
			ns, err = cmd.Timestamps()
		}
		if err != nil {
			return 0, 0, errors.Join(err, cmd.Close())
		}
	}
	took = time.Duration(ns[1])
	fit = max(1, int(longest/max(took, time.Microsecond)))
	return fit, took, cmd.Close()
}

// times runs launches warmup to warmup+reps and gives each one's time in nanoseconds.
func (x repeatedRun) times(warmup, reps, fit int) ([]float64, error) {
	n := max(1, min(reps, fit, maxMarks))
	cmd, err := x.commands(n, 0, false)
	if err != nil {
		return nil, err
	}
	var all []float64
	err = func() error {
		for done := 0; done < warmup; done += n {
			if err := cmd.Run(x.ctx); err != nil {
				return err
			}
		}
		for len(all) < reps {
			if err := cmd.Run(x.ctx); err != nil {
				return err
			}
			ns, err := cmd.Timestamps()
			if err != nil {
				return err
			}
			for i := range n {
				all = append(all, ns[i+1]-ns[i])
			}
		}
		return nil
	}()
	return all, errors.Join(err, cmd.Close())
}

// sections runs launches and gives the samples of each section of a launch, in order,
// with what was counted of it.
func (x repeatedRun) sections(reps, fit int) (list []vk.Section, samples [][]float64, err error) {
	probe, err := x.commands(1, 0, true)
	if err != nil {
		return nil, nil, err
	}
	if err = probe.Run(x.ctx); err == nil {
		list, err = probe.Sections()
	}
	if err = errors.Join(err, probe.Close()); err != nil {
		return nil, nil, err
	}
	n := max(1, min(reps, fit, maxMarks/max(len(list), 1)))
	cmd, err := x.commands(n, 0, true)
	if err != nil {
		return nil, nil, err
	}
	samples = make([][]float64, len(list))
	err = func() error {
		for done := 0; done < reps; done += n {
			if err := cmd.Run(x.ctx); err != nil {
				return err
			}
			got, err := cmd.Sections()
			if err != nil {
				return err
			}
			for i, s := range got {
				samples[i%len(list)] = append(samples[i%len(list)], s.NS)
				list[i%len(list)] = s // of a launch among others: barriers between launches are its
			}
		}
		return nil
	}()
	return list, samples, errors.Join(err, cmd.Close())
}

// wakeUp keeps a GPU busy with launches for a while: an idle one runs at a fraction of
// its clock.
func (x repeatedRun) wakeUp(fit int) error {
	cmd, err := x.commands(min(fit, 50), 0, false)
	if err != nil {
		return err
	}
	for start := time.Now(); err == nil && time.Since(start) < 400*time.Millisecond; {
		err = cmd.Run(x.ctx)
	}
	return errors.Join(err, cmd.Close())
}
