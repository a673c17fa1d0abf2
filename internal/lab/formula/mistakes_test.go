package formula_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
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

// edit is a mistake in the source, and where it shows.
type edit struct {
	name, shows string
	test        string // what sees it: a package and a test
	file        string
	right, made string // text that the file has once, and what stands there instead
}

const (
	definition = "./internal/lab/formula TestSequence/^v41$"
	engine     = "./pipeline TestEngineGolden41/^v41$"
	sequence   = "internal/lab/formula/sequence.go"
	attending  = "internal/lab/formula/sequence_attend.go"
	record     = "cache/record_ref.go"
)

var edits = []edit{
	{"queries normed", "layer 0, window", definition, attending, "q.heads = append(",
		"r := 1 / math.Sqrt(dot(h, h)/512)\nfor i := range h {\nh[i] *= r\n}\nq.heads = append("},
	{"ratio 1 on the base table", "layer 4, full-blocks1: ent_rec", definition, "pipeline/model/config.go",
		"case c.Layers[layer].Ratio == 0:", "case c.Layers[layer].Ratio <= 1:"},
	{"index queries on the base table", "layer 1, full2: scores", definition, attending,
		"s.turned(&l.turns, iq, p, 1)", "s.turned(&s.layers[0].turns, iq, p, 1)"},
	{"entries turned by their last token", "layer 1, full2: ent_rec", definition, sequence,
		"s.turned(&l.turns, latent, first, 1)", "s.turned(&l.turns, latent, p, 1)"},
	{"keys turned by their last token", "layer 1, full2: key_rec", definition, sequence,
		"s.turned(&l.turns, key, first, 1)", "s.turned(&l.turns, key, p, 1)"},
	{"keys of the turned latent", "layer 1, full2: key_rec", definition, sequence,
		`"indexer.wk", latent)`, `"indexer.wk", s.turned(&l.turns, latent, first, 1))`},
	{"keys not normed", "layer 1, full2: key_rec", definition, sequence,
		`l.normed(s, "indexer.k_norm", l.product(s, "indexer.wk", latent))`, `bf16s(l.product(s, "indexer.wk", latent))`},
	{"f32 before the compressor's norm", "layer 1, full2: ent_rec", definition, sequence, "return s.rounded(normed(",
		"if name == \"compressor.norm\" {\nreturn s.rounded(normed(s.cfg.Eps, x, l.values(name+\".weight\")))\n}\nreturn s.rounded(normed("},
	{"one entry too few", "layer 1, full2, token 1", definition, attending, "n := (p + 1) / l.Ratio", "n := p / l.Ratio"},
	{"the mean of a block", "layer 4, full-blocks1, token 49: candidates", definition, attending, "slices.Max(block)",
		"func() (sum float32) {\nfor _, x := range block {\nsum += x / float32(len(block))\n}\nreturn sum\n}()"},
	{"the newest block not pinned", "layer 4, full-blocks1, token 48: candidates", definition, attending,
		"if len(top) > 0 {", "if len(top) < 0 {"},
	{"the newest block not counted", "layer 4, full-blocks1, token 48: candidates", definition, attending,
		"return best(top, s.cfg.CandidateBlocks)", "return best(top, s.cfg.CandidateBlocks+1)"},
	{"the source restricted, too", "layer 4, full-blocks1, token 0", definition, attending,
		"l.Candidates == model.CandidatesUsed", "l.Candidates != model.CandidatesNone"},
	{"entries with scales of powers of two", "layer 1, full2: ent_rec", definition, "cache/record_fp4.go", "numfmt.FP4Scale(amaxOf(block))",
		"numfmt.E4M3Encode(numfmt.UE8M0Scale(numfmt.UE8M0Encode(amaxOf(block), 6.0/512, 1.0/6)))"},
	{"window scales of 64", "layer 0, window: win_rec", definition, record,
		"amaxOf(x[b*block:(b+1)*block])", "amaxOf(x[b*block&^63:][:64])"},
	{"nothing quantised", "layer 0, window", definition, sequence, "return row{bytes, widened(numfmt.BF16DecodeSlice(nil, back))}",
		"return row{bytes, bf16s(x)}"},
	{"outputs not turned back", "layer 0, window", definition, attending, "float64(sinks[h]))), p, -1)", "float64(sinks[h]))), 0, -1)"},
	{"drafts see none behind them", "drafts", definition, sequence,
		"l.query(s, tokens[i], p), rows, p)", "l.query(s, tokens[i], p), rows[:len(rows)-len(tokens)+i+1], p)"},
	{"drafts see a row more", "drafts", definition, sequence, "max(0, last+1-s.cfg.Window) : last+1", "max(0, last-s.cfg.Window) : last+1"},
	{"engine: epsilon 1e-6", "layer 0, token 5", engine, "pipeline/internal/layer/kernels.go", "Rank: k.cfg.Model.QRank, Eps: k.cfg.Model.Eps}",
		"Rank: k.cfg.Model.QRank, Eps: 1e-6}"},
	{"engine: queries normed", "layer 0, token 0", engine, "pipeline/internal/layer/kernels.go", "RotateOnly: k.cfg.Model.PlainQueries",
		"RotateOnly: false"},
	{"engine: picks of the layer of the entries", "layer 7, token", engine, "pipeline/engine.go", "latest(spec.PicksOf)",
		"latest(spec.EntriesOf)"},
	{"engine: one entry of two seen", "layer 1", engine, "pipeline/internal/layer/step.go", "indexer.VisibleConfig{Ratio: spec.Ratio}",
		"indexer.VisibleConfig{Ratio: 2 * spec.Ratio}"},
	{"engine: entries of FP8", "layer 1, token", engine, "pipeline/model/spec_v41.go", "return cache.RecordFP4", "return cache.RecordFP8"},
	{"engine: keys of FP8", "layer 1", engine, "pipeline/model/spec_v41.go", "return cache.IndexKeyMXFP4", "return cache.IndexKeyFP8"},
}

// Each mistake in the source is seen by a comparison with the official layers. It is made in a copy
// of the file that the compiler takes in its place. This runs with VKMLA_TEST_FULL=1.
func TestEditedMistakes(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	for _, e := range edits {
		t.Run(e.name, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(root, e.file))
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(source), e.right), "places in %s with %q", e.file, e.right)
			if os.Getenv("VKMLA_TEST_FULL") != "1" {
				return // the place is there
			}
			official(t)
			dir := t.TempDir()
			write := func(name string, data []byte) string {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
				return filepath.Join(dir, name)
			}
			edited := write("edited.go", []byte(strings.Replace(string(source), e.right, e.made, 1)))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, e.file): edited}})
			require.NoError(t, err)
			place, name, _ := strings.Cut(e.test, " ")
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-overlay", write("overlay.json", overlay),
				"-run", "^"+strings.Replace(name, "/", "$/", 1), place)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "nobody sees it")
			assert.Contains(t, string(out), "--- FAIL: "+strings.Split(name, "/")[0], "it does not compile")
			assert.Contains(t, string(out), e.shows)
		})
	}
}
