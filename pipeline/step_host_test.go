package pipeline_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestStepStaleOutput demands that nobody can read what another step or another layer left in host
// memory.
func TestStepStaleOutput(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	ctx, layers := t.Context(), append(layers, layers...) // twice the same
	in, out := filled(2*cfg.Hidden, float32(1)), make([]float32, 2*cfg.Hidden)
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
			require.NoError(t, st.SetInput(1, 0, in))
			stale("after another layer ran", 1)
		}
		assert.NoError(t, st.Commit())
	}
}
