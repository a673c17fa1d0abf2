package pipeline_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// TestLevels counts the barriers of layers: an operation recorded at the wrong place
// gives the same results, later.
func TestLevels(t *testing.T) {
	x := newSessions(t, testkit.Device(t))
	// Beyond wq_a|wkv: norms, wq_b, rotation, attention and its parts joined (or turned back
	// by a launch of its own), wo_a, wo_b; with an indexer scores and selection.
	most := map[int]int{pipeline.RatioWindow: 7, pipeline.RatioC4A: 9, pipeline.RatioC128A: 7}
	launches := map[string]int{"attention": 2, "indexer.select": 2, "wo_a, wo_b": 2} // others: 1; more of them wait for each other
	for _, tokens := range []int{1, 4, 40} {
		o := sessionOptions()
		o.SubmitBudget = -1
		e := x.engine(t, o)
		if err := e.SetTiming(t.Context(), pipeline.TimingSections); err != nil {
			t.Fatal(err)
		}
		st := x.begin(t, e, must[*pipeline.Session](t)(e.Open()), tokens)
		if err := st.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		layer, barriers, counts := -1, make([]int, len(x.layers)), make([]map[string]int, len(x.layers))
		for _, op := range must[[]vk.Section](t)(st.Times()) {
			if op.Name == "wq_a|wkv" {
				layer++
				counts[layer] = map[string]int{}
			} else if layer >= 0 {
				barriers[layer] += op.Barriers
			}
			if layer >= 0 {
				counts[layer][op.Name] += op.Dispatches
			}
		}
		if err := st.Commit(); err != nil {
			t.Fatal(err)
		}
		for i, w := range x.layers {
			want := most[w.Ratio]
			if tokens <= projection.NormTokens {
				want-- // norms are part of what follows them
			}
			for name, n := range counts[i] {
				want += max(0, n-max(1, launches[name]))
			}
			if counts[i]["wo_a, wo_b"] == 1 {
				want--
			}
			if i == len(x.layers)-1 {
				want++ // outputs are copied to host memory
			}
			if barriers[i] < 5 || barriers[i] > want {
				t.Errorf("%d tokens, ratio %d: %d barriers, want at most %d", tokens, w.Ratio, barriers[i], want)
			}
		}
	}
}
