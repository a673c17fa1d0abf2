package formula_test

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/pipeline/model"
)

// wrong is a definition with a mistake in what it is given, and where that shows first: what a
// comparison with the recorded run says.
type wrong struct {
	name, shows string
	short       bool // it shows within shortTokens
	make        func(r *run, v *recorded.V41)
}

// shortTokens are more than a token may pick, and more than the candidates hold.
const shortTokens = 64

var wrongs = []wrong{
	{"epsilon 1e-6", "layer 0, window", true, func(_ *run, v *recorded.V41) { v.Config.Eps = 1e-6 }},
	{"no YaRN", "layer 1, full2: ent_rec", true, func(_ *run, v *recorded.V41) { v.Config.Compress.Factor = 1 }},
	{"window of 127", "layer 0, window", false, func(_ *run, v *recorded.V41) { v.Config.Window = 127 }},
	{"activations of FP8", "layer 0, window", false, func(r *run, _ *recorded.V41) { r.num.Activations = true }},
	{"scores of bf16", "layer 1, full2: scores", false, func(r *run, _ *recorded.V41) { r.num.Logits = true }},
	{"store v4", "layer 0, window: win_rec", true, func(r *run, _ *recorded.V41) { r.num.Records = model.RecordsV4 }},
	{"no sink", "layer 0, window", false, func(_ *run, v *recorded.V41) { set(v, "attn_sink", -1e30) }},
	{"groups pooled by their mean", "layer 1, full2: ent_rec", false, func(_ *run, v *recorded.V41) { set(v, "wgate.weight", 0) }},
	{"picks of the layer of the entries", "layer 7, reuse1", false, func(_ *run, v *recorded.V41) { v.Config.Layers[7].PicksOf = 4 }},
	{"entries of another layer", "layer 3, full2", false, func(_ *run, v *recorded.V41) { v.Config.Layers[3].EntriesOf = 1 }},
	{"everything scored, not candidates", "layer 6, reindex-within1, token", true, func(_ *run, v *recorded.V41) {
		v.Config.Layers[6].Candidates = model.CandidatesNone
	}},
}

// set gives all numbers of tensors one value.
func set(v *recorded.V41, suffix string, to float32) {
	for name, x := range v.Values {
		if strings.HasSuffix(name, suffix) {
			v.Values[name] = slices.Repeat([]float32{to}, len(x))
		}
	}
}

// misses stands for a test, and keeps what is said to be wrong.
type misses []string

func (m *misses) Errorf(format string, a ...any) { *m = append(*m, fmt.Sprintf(format, a...)) }
func (*misses) FailNow()                         { runtime.Goexit() }
func (*misses) Logf(string, ...any)              {}

// seen returns what a comparison of the first tokens says is wrong.
func (w *wrong) seen(v *recorded.V41, rec recording, tokens int) string {
	var m misses
	r, x, done := runs[0], *v, make(chan bool)
	x.Config.Layers, x.Values = slices.Clone(v.Config.Layers), maps.Clone(v.Values)
	if tokens < rec.tokens() {
		r.logits *= 10 // one code of a query of token 5, which differs, is a larger part of fewer scores
	}
	w.make(&r, &x)
	go func() { // which FailNow ends
		defer close(done)
		r.check(&m, &x, rec, tokens)
	}()
	<-done
	return strings.Join(m, "\n")
}

// Each mistake in what the definition is given lies outside the bounds of TestSequence. Those that
// few tokens show are always made, all with VKMLA_TEST_FULL=1.
func TestMistakes(t *testing.T) {
	v := official(t)
	rec, full := load(t, v, runs[0].name), os.Getenv("VKMLA_TEST_FULL") == "1"
	right := wrong{make: func(*run, *recorded.V41) {}}
	require.Empty(t, right.seen(v, rec, shortTokens))
	for _, w := range wrongs {
		t.Run(w.name, func(t *testing.T) {
			tokens := shortTokens
			if full {
				tokens = rec.tokens()
			} else if !w.short {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			assert.Contains(t, w.seen(v, rec, tokens), w.shows)
		})
	}
}
