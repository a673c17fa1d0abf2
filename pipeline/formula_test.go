package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// checkFormula demands that layers agree with the formula as far as bf16 and quantised caches let
// them: 1 - cos of the tokens that attend the same entries below 2e-3 (it is about 5e-4), of single
// tokens below three times that, and nine of ten picks.
func checkFormula(t *testing.T, cfg model.Config, values map[string][]float32, hidden []float32, got []pipeline.Appended) {
	t.Helper()
	const bound = 2e-3
	for layer := range got {
		var given []int32
		if cfg.Layers[layer].Picks != model.PickNone {
			given = got[cfg.Layers[layer].PicksOf].TopK
		}
		a := formula.Run(cfg, layer, values, nil, hidden).Compare(got[layer].Out, given)
		t.Logf("layer %d: %+v", layer, a)
		assert.Less(t, a.Diff, bound, "layer %d: %+v", layer, a)
		assert.Less(t, a.Worst, 3*bound, "layer %d: %+v", layer, a)
		assert.Zero(t, a.Short, "layer %d: %+v", layer, a)
		assert.LessOrEqual(t, 10*a.Missed, a.Picks, "layer %d: %+v", layer, a)
		assert.GreaterOrEqual(t, 4*a.Same, a.Tokens, "layer %d: %+v", layer, a)
	}
}
