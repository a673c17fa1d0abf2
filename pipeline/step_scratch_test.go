package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

// TestScratchPoison runs all kinds of layers with scratch that is overwritten as soon as it is not
// in use, and demands the bits of engines where it is not.
func TestScratchPoison(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	steps := []int{31, 3, 1}
	for _, of := range []*sessionModel{&v4Sessions, &v41Sessions} {
		x := newModel(t, dev, of)
		for name, o := range map[string]options{
			"all layers":     {},
			"layer by layer": {LayerByLayer: true},
			"gathered":       {Variant: "twopass-base"},
		} {
			t.Run(of.name+", "+name, func(t *testing.T) {
				o.MaxTokens, o.MaxStep, o.KeepTopK = 64, 31, true
				var results [2][]pipeline.Appended
				for i := range results {
					e := x.engine(t, o)
					if i > 0 {
						require.NoError(t, e.Poison(t.Context()))
					}
					s, at := must[*pipeline.Session](t)(e.Open()), 0
					for _, n := range steps {
						results[i] = append(results[i], extend(t, s, len(x.layers), x.tokens(at, at+n))...)
						at += n
					}
				}
				assert.Equal(t, results[0], results[1])
			})
		}
	}
}
