package pipeline

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const opEstimate = "pipeline: estimate"

// Estimate says what an engine with these options would take of a device, before anything is
// allocated: what Engine.Memory returns after Engine.Warm. layers may be those of Checkpoint.Plan,
// which have no memory either. lengths are the tokens of sessions. Held is then what these hold
// between steps, at most, and Caches what they and steps of MaxStep tokens need, or what the
// engine begins with if that is more; caches that grow may take up to twice as much, but no more
// than MaxCacheBytes. What the driver takes is not in it: compiled kernels, command buffers, and
// what rounds up allocations.
//
// Errors: those of NewEngine for arguments and options; vk.ErrArgument for lengths that are not 1
// to MaxTokens, more than MaxSessions of them, or more than the device's buffers hold; the
// context's.
func (o EngineOptions) Estimate(ctx context.Context, dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer,
	lengths ...int) (EngineMemory, error) {
	err := o.complete(ctx, dev, cfg, layers)
	if err == nil && len(lengths) > o.MaxSessions {
		err = badArgument(opEstimate, "lengths", len(lengths), "at most %d, MaxSessions", o.MaxSessions)
	}
	for i, n := range lengths {
		if err == nil && (n < 1 || n > o.MaxTokens) {
			err = badArgument(opEstimate, fmt.Sprintf("lengths[%d]", i), n, "1 to %d", o.MaxTokens)
		}
	}
	if err != nil {
		return EngineMemory{}, err
	}
	e := newEngine(dev, cfg, layers, o)
	e.count = commands.NewCounts()
	e.mu.Lock()
	defer e.mu.Unlock()
	m, err := e.estimate(ctx, lengths)
	if err != nil {
		return EngineMemory{}, wrap(opEstimate, err)
	}
	return m, nil
}

func (e *Engine) estimate(ctx context.Context, lengths []int) (m EngineMemory, err error) {
	if err = e.arrangePools(); err != nil {
		return m, err
	}
	if err := e.sizes.Open(ctx); err != nil {
		return m, err
	}
	if m.Held, m.Caches, m.Tables, err = e.pages.Estimate(opEstimate, lengths); err != nil {
		return EngineMemory{}, err
	}
	rope := tensor.Tensor{DType: tensor.F32, Shape: []int{e.opts.MaxTokens, model.RopeRow}}
	m.Tables += uint64(len(e.ropes)) * rope.Bytes()
	m.Weights = e.weights()
	m.Steps, m.Hidden, m.Host, m.Workspace = e.count.Bytes()
	return m, nil
}

// Sizes are the numbers of rows that steps are padded to: 1, 2, 4 and so on, and MaxStep.
func (e *Engine) Sizes() []int { return e.sizes.List() }
