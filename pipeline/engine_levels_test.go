package pipeline_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestLevels holds the recordings of layers against their schedules: the operations come in
// that order, and no more barriers than there are levels. An operation recorded at the wrong
// place gives the same results, later.
func TestLevels(t *testing.T) {
	x := newModel(t, testkit.Device(t), &v4Sessions)
	for i, tokens := range []int{1, 4, 16, 40, 40} {
		o := sessionOptions()
		if i == 4 {
			o.Variant = "twopass-base" // gathers rows, as prompts do
		}
		e := x.engine(t, o)
		e.SetBudget(-1)
		require.NoError(t, e.SetTiming(t.Context(), pipeline.TimingSections))
		st := x.begin(t, e, must[*pipeline.Session](t)(e.Open()), tokens)
		require.NoError(t, st.Run(t.Context()))
		list := slices.DeleteFunc(must[[]vk.Section](t)(st.Times()), func(op vk.Section) bool { return op.Name == "step" })
		list = list[slices.IndexFunc(list, func(op vk.Section) bool { return op.Name == e.Levels(tokens, 0)[0][0] }):]
		require.NoError(t, st.Commit())
		for i := range x.layers {
			levels := e.Levels(tokens, i)
			ops, want := map[string]int{}, len(levels)-1 // none in front of the first
			for _, name := range slices.Concat(levels...) {
				ops[name]++
			}
			var order []string
			launches, barriers := map[string]int{}, 0
			names := slices.Compact(slices.Concat(levels...))
			for _, op := range list[:min(len(names), len(list))] {
				order = append(order, op.Name)
				launches[op.Name] += op.Dispatches
				if op.Name != levels[0][0] {
					barriers += op.Barriers
				}
			}
			list = list[len(order):]
			for name, n := range launches {
				want += max(0, n-ops[name]) // launches of an operation wait for each other
			}
			if i == len(x.layers)-1 {
				want++ // outputs are copied to host memory
			}
			require.Equal(t, names, order, "%d tokens, layer %d", tokens, i)
			assert.LessOrEqual(t, barriers, want, "%d tokens, layer %d: levels %v", tokens, i, levels)
			assert.GreaterOrEqual(t, barriers, 4, "%d tokens, layer %d", tokens, i)
			t.Logf("%d tokens, layer %d: %d barriers, at most %d", tokens, i, barriers, want)
		}
	}
}

// TestPrologue counts the launches and barriers of what a step does once for all its layers: beside
// a copy the changed entries of tables, then where rows go and index lists; one of the lists waits
// for the others. It is beside what is in front of layer 0, that layer's first products, and what
// waits for those.
func TestPrologue(t *testing.T) {
	x := newModel(t, testkit.Device(t), &v4Sessions)
	r := x.residual(t)
	for name, spoil := range map[string]func(*pipeline.EngineOptions){
		"in one":         func(*pipeline.EngineOptions) {},
		"chained":        func(o *pipeline.EngineOptions) { o.Between = r.record },
		"layer by layer": func(o *pipeline.EngineOptions) { o.LayerByLayer = true },
	} {
		o := sessionOptions()
		spoil(&o)
		e := x.engine(t, o)
		e.SetBudget(-1)
		require.NoError(t, e.SetTiming(t.Context(), pipeline.TimingSections))
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1}))
		require.NoError(t, st.ReuseInputs())
		if o.LayerByLayer {
			require.NoError(t, st.RunLayer(t.Context(), 0))
		} else {
			require.NoError(t, st.Run(t.Context()))
		}
		list := must[[]vk.Section](t)(st.Times())
		at := slices.IndexFunc(list, func(op vk.Section) bool { return op.Name == "step" })
		first := slices.IndexFunc(list, func(op vk.Section) bool { return op.Name == "wq_a|wkv" })
		assert.Equal(t, o.LayerByLayer, at < first, "%s: lists are operation %d, the first product is %d", name, at, first)
		barriers := 0
		for _, op := range list[:at+2] { // with the first that waits for layer 0's first products
			barriers += op.Barriers
		}
		// Of each kind slots of rows and lists of windows; of C4A slots of states and entries,
		// those of both compressors, numbers of visible ones; of C128A slots of states and
		// entries, lists of entries.
		if list[0].Dispatches != 1 || list[at].Dispatches != 14 || barriers != 2 {
			t.Errorf("%s: %+v, want 1 launch, then 14 for lists, and 2 barriers", name, list[:at+2])
		}
		assert.NoError(t, st.Abort())
	}
}
