package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// Stats counts what an engine has done since it was made; all but Sessions and Longest only ever
// grow. Steps of Engine.Warm count for Recorded, Recording and Longest alone.
type Stats struct {
	Sessions int // open now, forks included

	Steps   uint64 // committed
	Tokens  uint64 // of those steps
	Padding uint64 // rows of those steps beyond their tokens, see Step.Size
	Aborted uint64 // steps that ended otherwise
	Starved uint64 // waits for a step that ended with vk.ErrStarved

	Recorded uint64 // times that commands of a step were recorded
	Grown    uint64 // times that caches grew, or that pages moved from one pool to another
	Full     uint64 // times that cache.ErrPoolFull was returned
	Waits    uint64 // calls that waited because a step was in progress

	Waiting   time.Duration // what those calls waited, in all
	Running   time.Duration // what Step.Wait waited for the device
	Recording time.Duration // what recording took, compiling included
	Growing   time.Duration // what growing took

	Longest time.Duration // a submission took of the device, in steps that were waited for; 0: none was measured
}

// Stats returns the engine's, for metrics. It waits for no step.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Grown, s.Full, s.Growing = e.pages.Stats.Grown, e.pages.Stats.Full, e.pages.Stats.Growing
	s.Recorded, s.Recording = e.sizes.Recorded, e.sizes.Recording
	for _, x := range e.sessions {
		if x != nil {
			s.Sessions++
		}
	}
	return s
}

// log reports a rare event; e.mu is held.
func (e *Engine) log(level slog.Level, event string, a ...any) {
	if l := e.opts.Logger; l != nil {
		l.Log(context.Background(), level, "vkmla: "+event, a...)
	}
}

// starved counts a wait for workgroups that starved.
func (e *Engine) starved(err error) {
	if !errors.Is(err, vk.ErrStarved) {
		return
	}
	e.stats.Starved++
	e.log(slog.LevelWarn, "workgroups starved: from now on operations take several launches instead of waiting inside kernels",
		"error", err)
}
