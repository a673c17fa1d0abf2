// Package bench times vkmla's operations on a device, through the product's own
// API, beside the limits of the device measured in the same run. Nothing is timed
// before its output was checked against the reference.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// ErrWrong is returned after all rows when one of them is not "ok".
var ErrWrong = errors.New("bench: wrong or missing result")

// tally counts what became of the rows of a run.
type tally struct {
	ctx     context.Context
	missing error // ErrWrong once a row is not ok
}

// add hands on a case's row with the status that its error, if any, gives it: "skipped" where the
// device lacks memory or a feature, else "failed". A row of status "" is "ok". The other cases go
// on, unless add returns why not: the run was interrupted, and the case has no row, or the device
// is lost.
func (t *tally) add(name string, err error, status, detail *string, emit func()) error {
	switch {
	case err != nil && t.ctx.Err() != nil:
		return fmt.Errorf("bench: %s: %w", name, err)
	case errors.Is(err, vk.ErrOutOfDeviceMemory) || errors.Is(err, vk.ErrMissingFeature):
		*status = "skipped"
	case err != nil:
		*status = "failed"
	case *status == "":
		*status = "ok"
	}
	if err != nil {
		*detail = strings.Join(strings.Fields(err.Error()), " ")
	}
	if emit(); *status != "ok" {
		t.missing = ErrWrong
	}
	if errors.Is(err, vk.ErrDeviceLost) {
		return fmt.Errorf("bench: %s: %w", name, err)
	}
	return nil
}

// Progress hears what a long run is doing.
type Progress interface {
	Rows(done, total int)      // done rows, of total that are known to come
	Step(what string)          // a new piece of work begins
	Advance(done, total int64) // how far it is
}

// Time summarises samples of GPU time, in microseconds.
type Time struct {
	Median  float64   `json:"median_us"`
	P95     float64   `json:"p95_us"`
	Samples []float64 `json:"samples_us,omitempty"`
}

func summarise(ns []float64) Time {
	us := make([]float64, len(ns))
	for i, x := range ns {
		us[i] = x / 1e3
	}
	return Time{quantile(us, 0.5), quantile(us, 0.95), us}
}

// summariseThose is summarise of some samples; all are kept.
func summariseThose(ns []float64, those []bool) Time {
	var some []float64
	for i, x := range ns {
		if those[i] {
			some = append(some, x)
		}
	}
	t := summarise(ns)
	some = summarise(some).Samples
	t.Median, t.P95 = quantile(some, 0.5), quantile(some, 0.95)
	return t
}

// quantile returns the q-quantile of the samples, interpolated between neighbours.
func quantile(samples []float64, q float64) float64 {
	s := slices.Clone(samples)
	slices.Sort(s)
	if len(s) == 0 {
		return math.NaN()
	}
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 >= len(s) {
		return s[len(s)-1]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

// sample records warmup+reps launches, each followed by a timestamp, runs them,
// and returns the times of the last reps. launch(i) records the i-th.
func sample(ctx context.Context, dev *vk.Device, warmup, reps int, launch func(r *vk.Recorder, i int) error) (Time, error) {
	cmd, err := recorded(dev, func(r *vk.Recorder) error {
		for i := range warmup + reps {
			if i == warmup {
				if _, err := r.Timestamp(); err != nil {
					return err
				}
			}
			if err := launch(r, i); err != nil {
				return err
			}
			if i >= warmup {
				if _, err := r.Timestamp(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return Time{}, err
	}
	var marks []float64
	if err = cmd.Run(ctx); err == nil {
		marks, err = cmd.Timestamps()
	}
	if err := errors.Join(err, cmd.Close()); err != nil {
		return Time{}, err
	}
	deltas := make([]float64, reps)
	for i := range deltas {
		deltas[i] = marks[i+1] - marks[i]
	}
	return summarise(deltas), nil
}
