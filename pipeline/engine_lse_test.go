package pipeline_test

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineLSE demands that keeping the logarithms of weights changes no bit of an output, and
// that they are the same on the device, in host memory, and for layers that run one by one.
// TestEngineDivisions, TestEngineKinds and, for all variants, TestCore say what they are.
func TestEngineLSE(t *testing.T) {
	testkit.WithoutMatrices(t)
	t.Run("v4", func(t *testing.T) { engineLSE(t, fakemodel.Config(4, 0)) })
	t.Run("v41", func(t *testing.T) {
		if os.Getenv("VKMLA_TEST_FULL") != "1" {
			t.Skip("VKMLA_TEST_FULL is not set")
		}
		engineLSE(t, v41Layers())
	})
}

func engineLSE(t *testing.T, c model.Config) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	const tokens = 37
	hidden := normals(tokens * cfg.Hidden)
	run := func(o pipeline.EngineOptions) []pipeline.Appended {
		o.MaxTokens, o.MaxStep, o.KeepTopK = tokens, 22, true
		return division(t, engine(t, dev, cfg, layers, o), cfg.Hidden, tokens-3, hidden)
	}
	want, kept := run(pipeline.EngineOptions{}), run(pipeline.EngineOptions{KeepLSE: true})
	single := run(pipeline.EngineOptions{KeepLSE: true, LayerByLayer: true})
	for i, got := range kept {
		require.Nil(t, want[i].LSE)
		require.Equal(t, want[i].Out, got.Out, "layer %d", i)
		require.Equal(t, want[i].TopK, got.TopK, "layer %d", i)
		require.Len(t, got.LSE, tokens*cfg.Heads, "layer %d", i)
		require.Equal(t, got, single[i], "layer %d, run by itself", i)
	}

	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: tokens, MaxStep: 22, KeepLSE: true})
	s := must[*pipeline.Session](t)(e.Open())
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 17}))
	for i := range layers {
		require.NoError(t, st.SetInput(i, 0, hidden[:17*cfg.Hidden]))
	}
	values := make([]float32, 17*cfg.Heads)
	require.ErrorIs(t, st.ReadLSE(0, 0, values), vk.ErrArgument, "before it ran")
	require.NoError(t, st.Run(t.Context()))
	for i := range layers {
		require.NoError(t, st.ReadLSE(i, 0, values))
		all := testkit.Download[float32](t, st.LSE(i))
		require.Equal(t, values, all[:len(values)], "layer %d", i)
		for k, x := range all[len(values):] { // 5 rows of padding
			require.True(t, math.IsInf(float64(x), 1), "layer %d: padding, %d is %v", i, k, x)
		}
	}
	for _, err := range []error{st.ReadLSE(len(layers), 0, values), st.ReadLSE(0, 1, values), st.ReadLSE(0, 0, values[1:])} {
		assert.ErrorIs(t, err, vk.ErrArgument)
	}
	assert.True(t, st.LSE(len(layers)).IsZero())
	require.NoError(t, st.Abort())
	assert.ErrorIs(t, st.ReadLSE(0, 0, values), vk.ErrClosed)

	none := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: tokens})
	s = must[*pipeline.Session](t)(none.Open())
	st = must[*pipeline.Step](t)(none.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
	assert.ErrorContains(t, st.ReadLSE(0, 0, values[:cfg.Heads]), "EngineOptions.KeepLSE: got false, want true")
	assert.True(t, st.LSE(0).IsZero())
	require.NoError(t, st.Abort())
}
