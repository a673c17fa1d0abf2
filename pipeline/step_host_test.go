package pipeline_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// setBits writes hidden states as they are.
func setBits(st *pipeline.Step, layer, chunk int, values []uint16) error {
	to, err := st.HostInput(layer, chunk)
	copy(to, values)
	return err
}

// TestStepStaleOutput demands that a caller cannot read what another step or another layer left in
// host memory.
func TestStepStaleOutput(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	ctx, layers := t.Context(), append(layers, layers...) // twice the same
	in, out := slices.Repeat([]float32{1}, 2*cfg.Hidden), make([]float32, 2*cfg.Hidden)
	for _, byLayer := range []bool{false, true} {
		e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 30, MaxSessions: 2, MaxStep: 8, LayerByLayer: byLayer})
		extend(t, must[*pipeline.Session](t)(e.Open()), len(layers), in)
		st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 2}))
		stale := func(when string, layer int) {
			t.Helper()
			assert.ErrorIs(t, st.ReadOutput(layer, 0, out), vk.ErrArgument,
				"by layer %v: output of layer %d, %s", byLayer, layer, when)
		}
		require.NoError(t, errors.Join(st.Input(0).Upload(ctx, make([]byte, st.Input(0).Bytes())), st.RunLayer(ctx, 0)))
		require.NoError(t, st.SetInput(1, 0, in))
		stale("which did not run", 1)
		require.NoError(t, errors.Join(st.RunLayer(ctx, 1), st.ReadOutput(1, 0, out)))
		stale("which ran with inputs on the device", 0)
		require.NoError(t, st.SetInput(0, 0, in))
		stale("whose inputs were set after it ran", 0)
		require.NoError(t, errors.Join(st.ReadOutput(1, 0, out), st.RunLayer(ctx, 0), st.ReadOutput(0, 0, out)))
		if byLayer {
			assert.ErrorIs(t, st.Submit(), vk.ErrArgument, "layers one by one")
			require.NoError(t, st.SetInput(1, 0, in))
			stale("after another layer ran", 1)
		}
		assert.NoError(t, st.Commit())
	}
}

// TestHostStates demands that hidden states that are written and read in mapped memory give the
// bits of those that are copied, where the device shares the host's memory and where it has its
// own.
func TestHostStates(t *testing.T) {
	testkit.WithoutMatrices(t)
	m := written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0, 0)}))
	var want []float32
	for _, staging := range []bool{false, true} {
		dev := device(t, vk.DeviceOptions{Staging: staging})
		cfg, layers := uploaded(t, dev, m)
		e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 30, MaxSessions: 2, MaxStep: 8, LayerByLayer: true})
		ctx, n := t.Context(), 3*cfg.Hidden
		in := make([]float32, n)
		for i := range in {
			in[i] = float32(i%17) - 8
		}
		var all [][]float32
		for mapped := range 2 {
			s := must[*pipeline.Session](t)(e.Open())
			other := must[*pipeline.Session](t)(e.Open())
			st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: other, Tokens: 2}, pipeline.Chunk{Session: s, Tokens: 3}))
			var out []float32
			for i := range layers {
				_, err := st.HostOutput(i, 1)
				assert.ErrorIs(t, err, vk.ErrArgument, "a layer that did not run")
				require.NoError(t, setBits(st, i, 0, make([]uint16, 2*cfg.Hidden)))
				if mapped == 0 {
					require.NoError(t, st.SetInput(i, 1, in))
				} else {
					to := must[[]uint16](t)(st.HostInput(i, 1))
					require.Len(t, to, n)
					numfmt.BF16EncodeSlice(to, in)
				}
				require.NoError(t, st.SubmitLayer(i))
				if mapped == 1 {
					_, err := st.HostInput(i, 1)
					assert.ErrorIs(t, err, vk.ErrBusy)
				}
				require.NoError(t, st.Wait(ctx))
				values := make([]float32, n)
				require.NoError(t, st.ReadOutput(i, 1, values))
				assert.Equal(t, values, numfmt.BF16DecodeSlice(nil, must[[]uint16](t)(st.HostOutput(i, 1))))
				out = append(out, values...)
				assert.ErrorIs(t, st.ReadOutput(i, 1, values[1:]), vk.ErrArgument)
			}
			require.NoError(t, st.Commit())
			_, err := st.HostOutput(0, 1)
			assert.ErrorIs(t, err, vk.ErrClosed)
			_, err = st.HostInput(0, 1)
			assert.ErrorIs(t, err, vk.ErrClosed)
			all = append(all, out)
			require.NoError(t, errors.Join(s.Close(), other.Close()))
			want = append(want, out...)
		}
		assert.Equal(t, all[0], all[1], "staging %v", staging)
		assert.Equal(t, want[:len(all[0])], all[0], "staging %v: the other's bits", staging)
	}
}

// TestHostBeside demands that steps and the engine end beside calls that copy hidden states, and
// that none of them writes to a later step.
func TestHostBeside(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0)})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 300, MaxSessions: 1, MaxStep: 256, LayerByLayer: true})
	s := must[*pipeline.Session](t)(e.Open())
	in := make([]float32, 256*cfg.Hidden)
	var calls sync.WaitGroup
	for range 30 {
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 256}))
		for range 3 {
			calls.Go(func() {
				if err := st.SetInput(0, 0, in); err != nil {
					assert.ErrorIs(t, err, vk.ErrClosed)
				}
			})
		}
		assert.NoError(t, st.Abort())
	}
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 256}))
	for range 3 {
		calls.Go(func() { _ = st.SetInput(0, 0, in) })
	}
	assert.NoError(t, e.Close())
	calls.Wait()
}
