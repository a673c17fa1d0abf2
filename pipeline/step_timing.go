package pipeline

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/vk"
)

const (
	opTiming = "pipeline: set timing"
	opTimes  = "pipeline: step times"
)

// Timing says what an engine's commands measure.
type Timing int

const (
	TimingOff      Timing = iota // nothing
	TimingWhole                  // the device's time for the commands
	TimingSections               // that of each operation; the timestamps between them cost a little
)

// SetTiming says what later steps measure. Their commands are recorded anew.
//
// Errors: the context's while a step is in progress; vk.ErrArgument; vk.ErrMissingFeature for
// a device without timestamps; vk.ErrClosed, vk.ErrDeviceLost.
func (e *Engine) SetTiming(ctx context.Context, t Timing) error {
	if t < TimingOff || t > TimingSections {
		return badArgument(opTiming, "t", int(t), "TimingOff, TimingWhole or TimingSections")
	}
	if a := e.dev.Adapter(); t != TimingOff && a.Caps.TimestampPeriod == 0 {
		clock := []string{"timestampValidBits"}
		return &vk.MissingError{What: opTiming, Device: a.Name, Required: clock, Missing: clock}
	}
	err := e.betweenSteps(ctx, func() error {
		e.timing = t
		return e.forget()
	})
	if err != nil {
		return fmt.Errorf("%s: %w", opTiming, err)
	}
	return nil
}

// time makes commands measure what SetTiming asked for.
func (e *Engine) time(rec *vk.Recorder) error {
	switch e.timing {
	case TimingWhole:
		return rec.TimeWhole()
	case TimingSections:
		return rec.TimeSections()
	}
	return nil
}

// Times returns what the submissions of the step measured, in their order; a submission that was
// repeated counts once, as it ran last. With TimingOff that is nothing. With TimingWhole it is a
// section for each Submit or SubmitLayer, and one in front of the first SubmitLayer. With
// TimingSections it is the operations, layer by layer.
//
// The first section brings lengths and changed table entries to the device. The section "step" is
// computed once for all layers, after Submit beside the first products of layer 0. What
// EngineOptions.Between records is in sections "between", or as it names them itself
// (vk.Recorder.Section).
//
// Errors: vk.ErrBusy before Wait, vk.ErrClosed once the step has ended; those of
// vk.Commands.Sections.
func (st *Step) Times() ([]vk.Section, error) {
	e := st.e
	e.mu.Lock()
	defer e.mu.Unlock()
	err := st.active()
	if err == nil && st.flying != nil {
		err = vk.ErrBusy
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opTimes, err)
	}
	var list []vk.Section
	for _, key := range st.timed {
		if c := st.b.Recorded[key]; err == nil && c != nil {
			var own []vk.Section
			own, err = c.Sections()
			list = append(list, own...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opTimes, err)
	}
	return list, nil
}
