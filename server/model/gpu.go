package model

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/server/gpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// stepGPU is the rest of Step where everything is on the device.
func (m *Model) stepGPU(ctx context.Context, step *pipeline.Step, parts []pipeline.Chunk, ids []int32, wanted []int) ([][]float32, error) {
	if err := m.gpu.Set(rowsOf(step, parts), ids, wanted); err != nil {
		return nil, err
	}
	if err := step.Run(ctx); err != nil {
		return nil, err
	}
	if m.timed != nil {
		times, err := step.Times()
		if err != nil {
			return nil, err
		}
		m.timed(times)
	}
	logits := m.gpu.Logits(len(wanted))
	return logits, step.Commit()
}

// rowsOf lists the rows of the tokens of a step.
func rowsOf(step *pipeline.Step, parts []pipeline.Chunk) (rows []int32) {
	for i := range parts {
		first, end := step.Rows(i)
		for row := first; row < end; row++ {
			rows = append(rows, int32(row))
		}
	}
	return rows
}

// Timed takes steps of one token of each of n sequences for some time, and returns where the
// device's time of such a step goes, in ms: of the whole step, and of its parts with timestamps
// between them, which take longer. It needs Options.GPU.
func (m *Model) Timed(ctx context.Context, n int, warm time.Duration) (whole float64, parts map[string]float64, err error) {
	defer func() {
		m.timed = nil
		err = errors.Join(err, m.engine.SetTiming(context.WithoutCancel(ctx), pipeline.TimingOff))
	}()
	chunks, tokens := make([]Chunk, n), 0
	defer func() {
		for _, c := range chunks {
			err = errors.Join(err, c.Sequence.Close())
		}
	}()
	step := func() error {
		for i := range chunks {
			if tokens%m.most > 0 {
				break
			}
			if err := chunks[i].Sequence.Close(); err != nil { // full
				return err
			}
			s, err := m.NewSequence()
			if err != nil {
				return err
			}
			chunks[i] = Chunk{Sequence: s, Tokens: []int32{int32(i % m.Config.Vocab)}, Logits: []int{0}}
		}
		tokens++
		_, err := m.Step(ctx, chunks...)
		return err
	}
	run := func(t pipeline.Timing, took func([]vk.Section)) error {
		if err := m.engine.SetTiming(ctx, t); err != nil {
			return err
		}
		m.timed = took
		began := time.Now()
		for steps := 0; steps < 3 || time.Since(began) < warm; steps++ {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}
	err = run(pipeline.TimingWhole, func(list []vk.Section) {
		whole = 0
		for _, s := range list {
			whole += s.NS / 1e6
		}
	})
	if err != nil {
		return 0, nil, err
	}
	return whole, parts, run(pipeline.TimingSections, func(list []vk.Section) {
		parts = map[string]float64{}
		for _, s := range list {
			name := s.Name
			if !slices.Contains(gpu.Sections, name) {
				name = "attention"
			}
			parts[name] += s.NS / 1e6
		}
	})
}

// StepBytes returns the bytes of weights that a step reads beside experts and router: attention,
// hyper-connections and head, each once. What drafts read is left out.
func (m *Model) StepBytes() (sum int64) {
	hyper := func(h *weights.Hyper) int64 { return int64(4 * h.Fn.N * h.Fn.K) }
	for i, l := range m.layers[:m.Weights.Own()] {
		sum += int64(l.Bytes()) + hyper(&m.Weights.Layers[i].AttnHC) + hyper(&m.Weights.Layers[i].FFNHC)
	}
	return sum + hyper(&m.Weights.HeadHC) + int64(len(m.Weights.Head.Data))
}

// GPU computes what is not attention with Options.GPU, else it is nil.
func (m *Model) GPU() *gpu.GPU { return m.gpu }
