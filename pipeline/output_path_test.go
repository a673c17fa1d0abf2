package pipeline_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineOutput demands that an engine takes its option to the layers: an FP8 path
// gives what the other gives within the rounding of E4M3, see TestLayerOutputPaths.
func TestEngineOutput(t *testing.T) {
	dev := testkit.Device(t)
	c := fakemodel.Config(0, 128)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	rng := rand.New(rand.NewPCG(5, 6))
	hidden := make([]float32, 40*cfg.Hidden)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	run := func(p pipeline.OutputPath) []pipeline.Appended {
		return division(t, engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 40, MaxStep: 16, Output: p}), cfg.Hidden, 37, hidden)
	}
	want := run(pipeline.OutputBF16)
	for _, p := range []pipeline.OutputPath{pipeline.OutputFP8, pipeline.OutputFP8Packed} {
		for i, got := range run(p) {
			err := distance(got.Out, want[i].Out)
			assert.True(t, err > 1e-3 && err < 1./16, "path %v, layer %d: %.4f from the bf16 path", p, i, err)
		}
	}
	e, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 40, Output: 9})
	assert.Nil(t, e)
	assert.ErrorIs(t, err, vk.ErrArgument)
}
