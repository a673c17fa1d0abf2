package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

// TestEngineBudget demands the same bits whatever the budget of a submission: no limit, which
// leaves steps in one piece; none at all, which submits every operation alone and divides those
// that can be divided; and budgets between, which divide steps again once they were measured.
func TestEngineBudget(t *testing.T) {
	dev := testkit.Device(t)
	c := fakemodel.Tiny(0, 4, 128)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	hidden := normalsOf(rand.New(rand.NewPCG(1, 2)), 150*cfg.Hidden)
	var want []pipeline.Appended
	const small = 2 * time.Millisecond
	for _, byLayer := range []bool{false, true} {
		for _, budget := range []time.Duration{-1, 0, 1, small} {
			t.Run(fmt.Sprintf("%v/%v", byLayer, budget), func(t *testing.T) {
				e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 150, MaxStep: 48, LayerByLayer: byLayer})
				if budget != 0 {
					e.SetBudget(budget)
				}
				got := division(t, e, cfg.Hidden, 144, hidden)
				if want == nil {
					want = got
				}
				for i := range want {
					assert.True(t, slices.Equal(got[i].Out, want[i].Out), "layer %d: other bits", i)
				}
				n := e.Divided()
				parts, each := e.Submissions(1)
				// A step that takes unusually long, as it may on a busy CPU, is measured anew, so
				// that with a small budget each operation may be a submission at any time.
				assert.False(t, !byLayer && (each && budget != small || budget < 0 && parts != 1), "%d submissions, each %v", parts, each)
				assert.False(t, budget == 1 && n == 0 || budget < 0 && n > 0, "%d launches divided", n)
				longest := e.Stats().Longest
				assert.Equal(t, budget >= 0, longest > 0, "longest submission %v", longest)
			})
		}
	}
}
