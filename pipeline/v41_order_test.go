package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineV41Order demands that a layer waits for the one whose candidates it scores, although it
// has entries of its own: what lies there before is another step's.
func TestEngineV41Order(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, c := testkit.Device(t), fakemodel.TinyV41()
	c.Layers = model.V41Layers(model.Sources{Entries: []int{0, 1}, Picks: []int{0, 1}, Candidates: 0}, 1, 1)
	checkpoint, layers := opened(t, dev, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8}))
	e := engine(t, dev, checkpoint.Config, layers, options{MaxTokens: 8, MaxStep: 1})
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1}))
	defer st.Abort()
	for i := range 2 {
		require.NoError(t, st.SetInput(i, 0, make([]float32, c.Hidden)))
	}
	err := st.RunLayer(t.Context(), 1)
	require.ErrorIs(t, err, vk.ErrArgument)
	assert.ErrorContains(t, err, "layer: got 1, want 0 first")
	require.NoError(t, st.RunLayer(t.Context(), 0))
	require.NoError(t, st.RunLayer(t.Context(), 1))
}
