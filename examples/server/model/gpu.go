package model

import (
	"context"

	"github.com/vkmla/vkmla/examples/server/gpu"
	"github.com/vkmla/vkmla/examples/server/weights"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// openGPU uploads what is not attention, if all of the model fits into the device's memory.
//
// Errors: those of gpu.New and pipeline.EngineOptions.Estimate.
func openGPU(ctx context.Context, dev *vk.Device, w *weights.Model, attention *model.Checkpoint,
	e pipeline.EngineOptions) (*gpu.GPU, error) {
	layers, err := attention.Plan()
	if err != nil {
		return nil, err
	}
	m, err := e.Estimate(ctx, dev, attention.Config, layers)
	if err != nil {
		return nil, err
	}
	return gpu.New(ctx, dev, w, gpu.Options{MaxStep: e.MaxStep, Reserve: m.Total() - m.Host})
}

// stepGPU is the rest of Step where everything is on the device.
func (m *Model) stepGPU(ctx context.Context, step *pipeline.Step, parts []pipeline.Chunk, ids []int32, wanted []int) ([][]float32, error) {
	rows := make([]int32, 0, len(ids))
	for i := range parts {
		first, end := step.Rows(i)
		for row := first; row < end; row++ {
			rows = append(rows, int32(row))
		}
	}
	if err := m.gpu.Set(rows, ids, wanted); err != nil {
		return nil, err
	}
	if err := step.Run(ctx); err != nil {
		return nil, err
	}
	logits := m.gpu.Logits(len(wanted))
	return logits, step.Commit()
}

// GPU computes what is not attention with Options.GPU, else it is nil.
func (m *Model) GPU() *gpu.GPU { return m.gpu }
