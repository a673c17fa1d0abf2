package bench

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// What is left of a step are its launches, where they wait, and all its bytes.
func TestSkeleton(t *testing.T) {
	s := &stepRun{engineRun: engineRun{cfg: model.Config{Layers: model.V4Layers(0, 128)}}, row: StepRow{Batch: 2}, chain: chain{width: 10}}
	list := []vk.Section{
		{Name: "step", Dispatches: 1},
		{Name: "between", Dispatches: 1, Waits: []int{0}},
		{Name: firstSection, Dispatches: 1, Waits: []int{0}},
		{Name: "attention", Dispatches: 2, Waits: []int{0, 1, 2}}, // a copy after the last waits
		{Name: "wo_a, wo_b", Dispatches: 1},
		{Name: gateSection, Dispatches: 1}, // in front of the second layer's first product
		{Name: firstSection, Dispatches: 1},
		{Name: "attention", Dispatches: 1, Waits: []int{0}},
		{Name: "wq_b", Dispatches: 1},
		{Name: "attention", Dispatches: 1, Waits: []int{0}},
		{Name: "between"},
	}
	got := s.skeleton(decodeShape(2, 1, 1), list, func(_ stepShape, layer int) map[string]Work {
		w := map[string]Work{firstSection: {Weights: 1}, "attention": {Cache: 10}, "wo_a": {Weights: 100}, "wo_b": {Activations: 1000}, "norm": {Activations: 5}}
		if layer == 1 {
			return map[string]Work{firstSection: {Weights: 2}, gateSection: {Weights: 20}, "attention": {Cache: 200}, "wq_b": {Weights: 2000}}
		}
		return w
	})
	want := []reading{{false, 0}, {true, 240}, {true, 6}, {true, 10}, {true, 0}, {true, 1100},
		{false, 20}, {false, 2}, {true, 200}, {false, 2000}, {true, 0}}
	assert.Equal(t, want, got)
}
