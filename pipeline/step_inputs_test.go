package pipeline_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestStepInputs demands that a step runs only on inputs that were written since it began: rows of
// all chunks, in every layer that gets its input from outside, in each way to write them.
func TestStepInputs(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, ctx := testkit.Device(t), t.Context()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	layers = append(layers, layers...) // twice the same
	upload := func(st *pipeline.Step, layer, from, end int) error {
		return st.Input(layer).Rows(from, end).Upload(ctx, bytes.Repeat([]byte{0x80, 0x3F}, (end-from)*cfg.Hidden)) // of 1
	}
	recorded := func(f func(rec *vk.Recorder) error) error {
		rec := must[*vk.Recorder](t)(dev.NewRecorder())
		defer rec.Close()
		require.NoError(t, f(rec))
		c := must[*vk.Commands](t)(rec.End())
		return errors.Join(c.Run(ctx), c.Close())
	}
	var filling bool // what Between records
	for _, c := range []struct {
		name  string
		o     pipeline.EngineOptions
		wrong func(st *pipeline.Step) error // writes too little
		right func(st *pipeline.Step) error // and the rest
	}{
		{"nothing, then host memory", pipeline.EngineOptions{}, nil, func(st *pipeline.Step) error {
			return errors.Join(st.SetInput(0, 0, slices.Repeat([]float32{1}, cfg.Hidden)), st.SetInput(0, 1, slices.Repeat([]float32{1}, 2*cfg.Hidden)),
				st.SetInput(1, 0, slices.Repeat([]float32{1}, cfg.Hidden)), st.SetInput(1, 1, slices.Repeat([]float32{1}, 2*cfg.Hidden)))
		}},
		{"one chunk of a layer", pipeline.EngineOptions{},
			func(st *pipeline.Step) error { return errors.Join(upload(st, 0, 0, 3), upload(st, 1, 0, 1)) },
			func(st *pipeline.Step) error { return upload(st, 1, 1, 3) }},
		{"one layer", pipeline.EngineOptions{},
			func(st *pipeline.Step) error { return upload(st, 1, 0, 4) },
			func(st *pipeline.Step) error {
				return recorded(func(rec *vk.Recorder) error { return rec.Fill(st.Input(0).View(), 0) })
			}},
		{"layers in one tensor", pipeline.EngineOptions{LayerByLayer: true},
			func(st *pipeline.Step) error { return upload(st, 0, 1, 3) },
			func(st *pipeline.Step) error {
				return recorded(func(rec *vk.Recorder) error {
					return rec.Copy(st.Input(0).Rows(0, 1).View(), st.Output(0).Rows(0, 1).View())
				})
			}},
		{"as they are", pipeline.EngineOptions{}, nil, (*pipeline.Step).ReuseInputs},
		{"between, which reads", pipeline.EngineOptions{Between: func(rec *vk.Recorder, at pipeline.Between) error { return nil }},
			nil, func(st *pipeline.Step) error { return upload(st, 0, 0, 3) }},
		{"between, which writes", pipeline.EngineOptions{Between: func(rec *vk.Recorder, at pipeline.Between) error {
			if at.Layer > 0 || !filling {
				return nil
			}
			return rec.Fill(at.Input.View(), 0)
		}}, nil, func(st *pipeline.Step) error { filling = true; return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.MaxTokens, c.o.MaxSessions, c.o.MaxStep = 30, 3, 8
			e := engine(t, dev, cfg, layers, c.o)
			run := func(st *pipeline.Step) (err error) {
				if !c.o.LayerByLayer {
					return st.Run(ctx)
				}
				for i := range layers {
					err = errors.Join(err, st.RunLayer(ctx, i))
				}
				return err
			}
			a, b := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
			begin := func() *pipeline.Step {
				return must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: a, Tokens: 1}, pipeline.Chunk{Session: b, Tokens: 2}))
			}
			filling = false
			for range 2 { // what was written for the first step does not count for the second
				st := begin()
				if c.wrong != nil {
					require.NoError(t, c.wrong(st))
				}
				assert.ErrorIs(t, run(st), vk.ErrArgument)
				assert.ErrorIs(t, st.Commit(), vk.ErrArgument, "no layer ran")
				require.NoError(t, c.right(st))
				if filling {
					require.NoError(t, st.Abort())
					require.NoError(t, e.SetTiming(ctx, pipeline.TimingOff))
					st = begin()
				}
				require.NoError(t, run(st))
				require.NoError(t, st.Commit())
				if filling {
					filling = false
					require.NoError(t, e.SetTiming(ctx, pipeline.TimingOff))
				}
			}
		})
	}
}

// A kernel that reads the input in front of layer 0 does not make it, also where it writes it.
func TestStepInputsRead(t *testing.T) {
	x := newModel(t, testkit.Device(t), &v4Sessions)
	r, o := x.residual(t), sessionOptions()
	o.Between = r.record
	e := x.engine(t, o)
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 2}))
	assert.ErrorIs(t, st.Submit(), vk.ErrArgument)
	require.NoError(t, st.Input(0).Upload(t.Context(), make([]byte, st.Input(0).Bytes())))
	require.NoError(t, st.Run(t.Context()))
}

// What comes from host memory in one step counts for no other, although the caller's commands in
// front of layer 0 are recorded after its copy.
func TestStepInputsWarm(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	e := engine(t, dev, cfg, layers, options{MaxTokens: 3, MaxStep: 1, Between: func(*vk.Recorder, pipeline.Between) error { return nil }})
	require.NoError(t, e.Warm(t.Context()))
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1}))
	defer st.Abort()
	require.ErrorIs(t, st.Submit(), vk.ErrArgument)
	require.NoError(t, st.SetInput(0, 0, slices.Repeat([]float32{1}, cfg.Hidden)))
	require.NoError(t, st.Run(t.Context()))
}
