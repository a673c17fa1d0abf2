package pipeline_test

import (
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestLevels counts the barriers of layers: an operation recorded at the wrong place
// gives the same results, later.
func TestLevels(t *testing.T) {
	x := newSessions(t, testkit.Device(t))
	// Beyond wq_a|wkv: norms, wq_b, rotation, attention and its parts joined (or turned back
	// by a launch of its own), wo_a, wo_b; with an indexer scores and selection. Without an
	// indexer there is no rotation where the attention does it.
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
		layer, barriers, counts, order := -1, make([]int, len(x.layers)), make([]map[string]int, len(x.layers)), make([][]string, len(x.layers))
		for _, op := range must[[]vk.Section](t)(st.Times()) {
			if op.Name == "wq_a|wkv" {
				layer++
				counts[layer] = map[string]int{}
			} else if layer >= 0 {
				barriers[layer] += op.Barriers
			}
			if layer >= 0 {
				counts[layer][op.Name] += op.Dispatches
				order[layer] = append(order[layer], op.Name)
			}
		}
		if err := st.Commit(); err != nil {
			t.Fatal(err)
		}
		for i, w := range x.layers {
			ratio := max(x.cfg.Layers[w.Layer].Ratio, pipeline.RatioWindow)
			want := most[ratio]
			if counts[i]["q_kv_norm"] == 0 {
				want-- // norms are part of what is before or behind them, and states of what makes entries of them
			} else if e.NormsOut(tokens, ratio) {
				t.Errorf("%d tokens, ratio %d: norms have a launch of their own", tokens, ratio)
			}
			if n := counts[i]["compressor.save"] + counts[i]["indexer.compressor.save"]; n > 0 && tokens <= pipeline.NormTokens {
				t.Errorf("%d tokens, ratio %d: %d launches store states", tokens, ratio, n)
			}
			late := e.NormsLate(tokens, ratio)
			if late && ratio != pipeline.RatioC4A {
				want-- // and so is the rotation
			}
			if late && ratio == pipeline.RatioC4A && slices.Index(order[i], "wq_b") < slices.Index(order[i], "indexer.select") {
				t.Errorf("%d tokens: %v, want wq_b beside the selection", tokens, order[i])
			}
			if many := tokens >= pipeline.BesideTokens; ratio == pipeline.RatioC4A && (late || many) {
				scores, entries, heads := slices.Index(order[i], "indexer.select"), slices.Index(order[i], "compressor.compress"), slices.Index(order[i], "wq_b")
				if scores > entries || entries > heads || many != slices.Contains(order[i][heads:], "indexer.select") {
					t.Errorf("%d tokens: %v, want entries behind the scores, beside wq_b and in front of it", tokens, order[i])
				}
			}
			if ratio == pipeline.RatioC128A && slices.Index(order[i], "compressor.compress") > slices.Index(order[i], "wq_b") {
				t.Errorf("%d tokens: %v, want entries in front of wq_b", tokens, order[i])
			}
			gate := slices.Index(order[i], "compressor.wkv|wgate")
			if later := tokens >= pipeline.GateTokens && tokens <= pipeline.NormTokens; ratio == pipeline.RatioC4A && late && later != (gate > slices.Index(order[i], "indexer.compressor.compress")) {
				t.Errorf("%d tokens: %v, want what entries are made of behind keys: %v", tokens, order[i], later)
			}
			if ratio == pipeline.RatioC4A && e.QuantisesLate(tokens) {
				want-- // nor is there a level for quantised queries
				if tokens > 32 {
					t.Errorf("%d tokens: the scores quantise their queries, want so of up to 32", tokens)
				}
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
			t.Logf("%d tokens, ratio %d, rotation in the attention %v: %d barriers", tokens, ratio, late, barriers[i])
			if barriers[i] < 4 || barriers[i] > want {
				t.Errorf("%d tokens, ratio %d: %d barriers, want at most %d", tokens, ratio, barriers[i], want)
			}
		}
	}
}

// TestPrologue counts the launches and barriers of what a step does once for all its layers:
// beside a copy the changed entries of tables, then where rows go and index lists, of which
// one waits for the others. It is beside what is in front of layer 0, that layer's first
// products, and what waits for those.
func TestPrologue(t *testing.T) {
	x := newModel(t, testkit.Device(t))
	r := x.residual(t)
	for name, spoil := range map[string]func(*pipeline.EngineOptions){
		"in one":         func(*pipeline.EngineOptions) {},
		"chained":        func(o *pipeline.EngineOptions) { o.Between = r.record },
		"layer by layer": func(o *pipeline.EngineOptions) { o.LayerByLayer = true },
	} {
		o := sessionOptions()
		o.SubmitBudget = -1
		spoil(&o)
		e := x.engine(t, o)
		if err := e.SetTiming(t.Context(), pipeline.TimingSections); err != nil {
			t.Fatal(err)
		}
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1}))
		var err error
		if o.LayerByLayer {
			err = st.RunLayer(t.Context(), 0)
		} else {
			err = st.Run(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		list := must[[]vk.Section](t)(st.Times())
		at := slices.IndexFunc(list, func(op vk.Section) bool { return op.Name == "step" })
		if first := slices.IndexFunc(list, func(op vk.Section) bool { return op.Name == "wq_a|wkv" }); (at < first) != o.LayerByLayer {
			t.Errorf("%s: lists are operation %d, the first product is %d", name, at, first)
		}
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
		if err := st.Abort(); err != nil {
			t.Error(err)
		}
	}
}
