package cpu

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/server/weights"
)

// TestChoose computes the example that comes with the model's description.
func TestChoose(t *testing.T) {
	cfg := &weights.Config{Scoring: "sqrtsoftplus", Normalise: true, Factor: 1.5}
	logits := func() (l []float32) {
		for e := range 8 {
			l = append(l, float32((3*e+1)%8-4)/2)
		}
		return l
	}
	chosen, v := make([]int32, 3), make([]float32, 3)
	choose(chosen, v, logits(), &weights.Layer{Bias: []float32{0, 0, 0, 0, .5, 0, 0, -1}}, 0, cfg)
	assert.Equal(t, []int32{4, 2, 1}, chosen)
	assert.InDeltaSlice(t, []float32{0.473906, 0.626326, 0.399768}, v, 1e-6)

	// A table chooses, and may name an expert twice.
	choose(chosen, v, logits(), &weights.Layer{Table: []int32{9, 9, 9, 6, 0, 6}}, 1, cfg)
	assert.Equal(t, []int32{6, 0, 6}, chosen)
	assert.Equal(t, v[0], v[2])
	assert.InDelta(t, 1.5, v[0]+v[1]+v[2], 1e-6)
}

// TestBest holds that ties go to the smaller index.
func TestBest(t *testing.T) {
	chosen := make([]int32, 3)
	best(chosen, []float32{1, 3, 2, 3, 2}, make([]float32, 5))
	assert.Equal(t, []int32{1, 3, 2}, chosen)
}
