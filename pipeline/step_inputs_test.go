package pipeline_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
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

// TestAdvanceLeavesZeros demands that tokens that no layer has seen are zeros in all caches,
// whatever the pages held: in a snapshot, after real tokens, beside a fork that shares them, and
// where the caches were too small for all of them.
func TestAdvanceLeavesZeros(t *testing.T) {
	testkit.WithoutMatrices(t)
	x := newModel(t, testkit.Device(t), &v4Sessions)
	odd := *x
	odd.pages = oddPages
	for name, o := range map[string]pipeline.EngineOptions{
		"pages": {}, "odd pages": {Keys: cache.IndexKeyMXFP4}, "rewind": {Rewind: 300},
		"full": {CacheBytes: 2 << 20, MaxCacheBytes: 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			o.MaxTokens, o.MaxSessions, o.MaxStep = 2000, 3, 40
			var want [][]byte
			for _, b := range []byte{0, 0xA5} {
				y := x
				if name == "odd pages" {
					y = &odd
				}
				e := y.engine(t, o)
				s := must[*pipeline.Session](t)(e.Open())
				for l := range x.layers {
					c := e.Caches(l)
					for _, pool := range []tensor.Tensor{c.Window.Pool, c.Compressed.Pool, c.State.Pool, c.Keys.Pool, c.IndexState.Pool} {
						if !pool.IsZero() {
							testkit.Put(t, pool, slices.Repeat([]byte{b}, int(pool.Bytes())))
						}
					}
				}
				extend(t, s, len(x.layers), x.tokens(0, 7))
				f := must[*pipeline.Session](t)(s.Fork())
				var got [][]byte
				save := func(s *pipeline.Session) {
					var w bytes.Buffer
					require.NoError(t, s.Save(t.Context(), &w))
					got = append(got, w.Bytes())
				}
				for _, n := range []int{2, 140, 1800} {
					err := s.Advance(t.Context(), n)
					if name != "full" {
						require.NoError(t, err)
					}
					if n == 1800 {
						assert.Equal(t, name == "full", errors.Is(err, cache.ErrPoolFull))
					}
					save(s)
					save(f)
				}
				if name != "full" {
					extend(t, s, len(x.layers), x.tokens(7, 20))
					save(s)
				}
				if want == nil {
					want = got
					continue
				}
				for i := range want {
					assert.True(t, bytes.Equal(want[i], got[i]), "snapshot %d", i)
				}
				assert.Greater(t, s.Len(), 80)
				assert.NotEqual(t, want[0], want[2])
			}
		})
	}
}
