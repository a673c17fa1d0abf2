package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// checkFormula demands that layers agree with the formula as far as bf16 and quantised caches let
// them: 1 - cos of the tokens that attend the same entries below 2e-3 (it is about 5e-4), and nine
// of ten picks.
func checkFormula(t *testing.T, cfg model.Config, values map[string][]float32, hidden []float32, got []pipeline.Appended) {
	t.Helper()
	checkFormulaOf(t, cfg, values, nil, hidden, got, 2e-3)
}

// checkFormulaOf is checkFormula for inputs of products and a bound; single tokens may reach three
// times the bound. It returns how far layers are.
func checkFormulaOf(t *testing.T, cfg model.Config, values map[string][]float32, in formula.Inputs, hidden []float32,
	got []pipeline.Appended, bound float64) (far []float64) {
	t.Helper()
	for layer := range got {
		var given []int32
		if cfg.Layers[layer].Picks != model.PickNone {
			given = got[cfg.Layers[layer].PicksOf].TopK
		}
		a := formula.Run(cfg, layer, values, in, hidden).Compare(got[layer].Out, given)
		t.Logf("layer %d: %+v", layer, a)
		assert.Less(t, a.Diff, bound, "layer %d: %+v", layer, a)
		assert.Less(t, a.Worst, 3*bound, "layer %d: %+v", layer, a)
		assert.Zero(t, a.Short, "layer %d: %+v", layer, a)
		assert.LessOrEqual(t, 10*a.Missed, a.Picks, "layer %d: %+v", layer, a)
		assert.GreaterOrEqual(t, 4*a.Same, a.Tokens, "layer %d: %+v", layer, a)
		far = append(far, a.Diff)
	}
	return far
}
