package formula_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

// run is a recorded run, and how near a Sequence comes to it. What is measured is below each bound.
type run struct {
	name   string
	num    formula.Numerics
	layer  float64 // relative error of a layer's outputs, with the recorded picks
	token  float64 // of a token's
	recall float64 // of a layer's picks, with the recorded candidates: of those by the recorded scores
	ties   int     // rows of picks of all layers that break a tie of recorded scores for a newer entry
	rows   int     // of a cache that differ, by a bf16 step
	logits float64 // relative error of a layer's scores
}

var runs = []run{
	{"v41", formula.Numerics{Records: model.RecordsV41}, 0.0025, 0.0065, 1, 0, 4, 1e-3},
	{"v4", formula.Numerics{Records: model.RecordsV4}, 0.0025, 0.0075, 1, 1, 12, 1e-3},
	{"official", formula.Numerics{Records: model.RecordsV41, Activations: true, Logits: true}, 0.01, 0.035, 0.998, 41, 4, 1e-2},
}

// official returns the recordings of the official layers.
func official(t *testing.T) *recorded.V41 {
	dir := testkit.FurtherGolden(t)
	if dir == "" || testing.Short() {
		t.Skip("VKMLA_TEST_GOLDEN is not set, or the tests are short: no recordings of DeepSeek-V4.1")
	}
	v, err := recorded.OpenV41(filepath.Join(filepath.Dir(dir), "golden41"))
	require.NoError(t, err)
	return v
}

// Sequences of all roles, in all stores, come as near to the official layers as rounding permits.
func TestSequence(t *testing.T) {
	v := official(t)
	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) {
			rec := load(t, v, r.name)
			r.drafts(t, v, rec, r.check(t, v, rec, rec.tokens()))
		})
	}
}

// tester is a test, or what stands for one.
type tester interface {
	require.TestingT
	Logf(format string, a ...any)
}

// recording has the arrays of a run.
type recording map[string]vectors.Array

func load(t require.TestingT, v *recorded.V41, run string) recording {
	a, err := v.Run(run)
	require.NoError(t, err)
	r := recording{}
	for _, name := range a.Names() {
		r[name], err = a.Array(name)
		require.NoError(t, err)
	}
	return r
}

func (r recording) array(format string, a ...any) vectors.Array { return r[fmt.Sprintf(format, a...)] }

// tokens returns how many there are.
func (r recording) tokens() int { return r["L0.out"].Dim(0) }

// check compares the layers that do not draft by their first tokens, whose number is even, and
// returns the sequence of these.
func (r run) check(t tester, v *recorded.V41, rec recording, tokens int) *formula.Sequence {
	main, ties := len(v.Config.Layers)-1, 0
	hidden := make([][]float32, main)
	for i := range hidden {
		var err error
		hidden[i], err = v.In(fmt.Sprintf("L%d.in", i))
		require.NoError(t, err)
		hidden[i] = hidden[i][:tokens*v.Config.Hidden]
	}
	s := formula.NewSequence(v.Config, r.num, v.Values)
	s.Given = func(layer, p int) (picks, blocks []int) { return rec.picks(layer, p), rec.blocks(layer, p) }
	for i, got := range s.Step(hidden) {
		at := fmt.Sprintf("layer %d, %s", i, v.Config.Layers[i].Name)
		token, layer := rec.apart(fmt.Sprintf("L%d.out", i), got)
		t.Logf("%s: %.5f, a token %.5f", at, layer, token)
		assert.LessOrEqual(t, layer, r.layer, at)
		assert.LessOrEqual(t, token, r.token, at)
		window, entries, keys := s.Kept(i)
		for name, rows := range map[string][][]byte{"win_rec": window, "ent_rec": entries, "key_rec": keys} {
			if want := rec.array("L%d.%s", i, name); !want.IsZero() {
				assert.Equal(t, want.Dim(0)*tokens/rec.tokens(), len(rows), "%s: %s", at, name)
				assert.LessOrEqual(t, apartRows(want, rows), r.rows, "%s: %s", at, name)
			}
		}
		ties += rec.choices(t, r, i, at, got)
	}
	assert.LessOrEqual(t, ties, r.ties, "ties for newer entries")
	return s
}

// choices compares what an indexer chose with the picks that the recorded scores give: of equal
// scores the older entry's. It returns how many recorded rows of picks are others, for ties alone.
// In the run v4 that is token 175 of layer 3: its 32nd to 34th score are zeros, sums of heads of
// which none is above zero. Of entries 26, 49 and 64 the recorded pick is 49.
func (r recording) choices(t tester, run run, layer int, at string, tokens []formula.Rounded) (ties int) {
	logits := r.array("L%d.logits", layer)
	if logits.IsZero() {
		return 0
	}
	scores, n, missed, picks, size, diff := logits.F32(), logits.Dim(1), 0, 0, 0.0, 0.0
	for p, got := range tokens {
		row := scores[p*n : (p+1)*n]
		want, other := byScore(t, row, r.picks(layer, p))
		ties += other
		picks += len(want)
		for _, e := range want {
			if !slices.Contains(got.Picks, e) {
				missed++
			}
		}
		require.Len(t, got.Picks, len(want), "%s, token %d", at, p)
		if !run.num.Logits {
			require.Equal(t, r.blocks(layer, p), got.Blocks, "%s, token %d: candidates", at, p)
		}
		for e, x := range got.Logits {
			y := float64(row[e])
			require.Equal(t, math.IsInf(y, -1), math.IsInf(float64(x), -1), "%s, token %d, entry %d", at, p, e)
			if !math.IsInf(y, -1) {
				size, diff = size+y*y, diff+(float64(x)-y)*(float64(x)-y)
			}
		}
	}
	assert.LessOrEqual(t, math.Sqrt(diff/size), run.logits, "%s: scores", at)
	assert.GreaterOrEqual(t, 1-float64(missed)/float64(picks), run.recall, "%s: picks", at)
	return ties
}

// byScore are as many entries as were picked, by their scores, of equal ones the older. other is 1
// if these are not the picked ones, whose scores are the same.
func byScore(t tester, scores []float32, picked []int) (want []int, other int) {
	for e, x := range scores {
		if !math.IsInf(float64(x), -1) {
			want = append(want, e)
		}
	}
	order := func(a, b int) int { return cmp.Compare(scores[b], scores[a]) }
	slices.SortStableFunc(want, order)
	want = want[:len(picked)]
	given := slices.Clone(picked)
	slices.SortStableFunc(given, order)
	require.True(t, slices.EqualFunc(want, given, func(a, b int) bool { return scores[a] == scores[b] }), "picks of the largest scores")
	if !slices.Equal(want, given) {
		other = 1
	}
	return want, other
}

// drafts compares the blocks of drafts of the layer after the model's own.
func (r run) drafts(t tester, v *recorded.V41, rec recording, s *formula.Sequence) {
	context, err := v.In("D.main")
	require.NoError(t, err)
	blocks, err := v.In("D.in")
	require.NoError(t, err)
	layer := len(v.Config.Layers) - 1
	s.Context(layer, context)
	var all []formula.Rounded
	i := 0
	for block := range slices.Chunk(blocks, v.Config.DraftBlock*v.Config.Hidden) {
		all = append(all, s.Draft(layer, v.Prefill+i, block)...)
		i++
	}
	token, whole := rec.apart("D.out", all)
	t.Logf("drafts: %.5f, a token %.5f", whole, token)
	assert.LessOrEqual(t, whole, r.layer, "drafts")
	assert.LessOrEqual(t, token, r.token, "drafts")
	window, _, _ := s.Kept(layer)
	assert.LessOrEqual(t, apartRows(rec["D.ctx_rec"], window), r.rows, "rows of the drafts' context")
}

// picks returns those recorded for a token, nil for a layer without an indexer.
func (r recording) picks(layer, p int) []int {
	a := r.array("L%d.picks", layer)
	if a.IsZero() {
		return nil
	}
	list, k := []int{}, a.Dim(1)
	for _, e := range a.Part(p*k, (p+1)*k).Float64s() {
		if e >= 0 {
			list = append(list, int(e))
		}
	}
	return list
}

// blocks returns the candidates recorded for a token, nil for a layer that makes none.
func (r recording) blocks(layer, p int) []int {
	a := r.array("L%d.blocks", layer)
	if a.IsZero() {
		return nil
	}
	list, n := []int{}, a.Dim(1)
	for b, in := range a.Part(p*n, (p+1)*n).Float64s() {
		if in != 0 {
			list = append(list, b)
		}
	}
	return list
}

// apart returns the relative error of outputs: the largest of a token, and that of all.
func (r recording) apart(name string, tokens []formula.Rounded) (worst, whole float64) {
	want := r[name].BF16()
	var diff, size float64
	for t, got := range tokens {
		var d, n float64
		for i, x := range got.Out {
			w := float64(want[t*len(got.Out)+i])
			d, n = d+(float64(x)-w)*(float64(x)-w), n+w*w
		}
		worst, diff, size = max(worst, math.Sqrt(d/n)), diff+d, size+n
	}
	return worst, math.Sqrt(diff / size)
}

// apartRows returns how many rows are not the recorded bytes.
func apartRows(want vectors.Array, rows [][]byte) (n int) {
	for i, row := range rows {
		if w := want.Dim(1); !slices.Equal(row, want.Data[i*w:(i+1)*w]) {
			n++
		}
	}
	return n
}

// A prompt in any parts, then token by token, changes no byte: not of what is kept, and not of what
// comes out.
func TestSequenceCuts(t *testing.T) {
	const tokens = 37
	cfg := fakemodel.V41()
	m := fakemodel.New(fakemodel.Options{Config: cfg, Seed: 4})
	rng := rand.New(rand.NewPCG(7, 1))
	main := len(cfg.Layers) - 1
	hidden := make([][]float32, main)
	for i := range hidden {
		for range tokens * cfg.Hidden {
			hidden[i] = append(hidden[i], numfmt.BF16Round(float32(rng.NormFloat64())))
		}
	}
	for _, records := range []model.Records{model.RecordsV41, model.RecordsV4} {
		var want [][]formula.Rounded
		var kept [3][][]byte
		for _, cut := range []int{tokens, 1, 5, 16} {
			s := formula.NewSequence(cfg, formula.Numerics{Records: records}, m.Values)
			got := make([][]formula.Rounded, main)
			for from := 0; from < tokens; from += cut {
				part := make([][]float32, main)
				for i := range part {
					part[i] = hidden[i][from*cfg.Hidden : min(from+cut, tokens)*cfg.Hidden]
				}
				for i, r := range s.Step(part) {
					got[i] = append(got[i], r...)
				}
			}
			var now [3][][]byte
			for i := range main {
				window, entries, keys := s.Kept(i)
				now[0], now[1], now[2] = append(now[0], window...), append(now[1], entries...), append(now[2], keys...)
			}
			if want == nil {
				want, kept = got, now
			}
			assert.Equal(t, want, got, "%v, parts of %d", records, cut)
			assert.Equal(t, kept, now, "%v, parts of %d", records, cut)
		}
		last := want[8][tokens-1]
		assert.Len(t, last.Picks, cfg.TopK)
		scored := slices.DeleteFunc(slices.Clone(last.Logits), func(x float32) bool { return math.IsInf(float64(x), -1) })
		assert.Len(t, scored, 2*cfg.CandidateBlock+tokens%cfg.CandidateBlock, "entries of the candidates")
		assert.NotContains(t, want[4][tokens-1].Logits, float32(math.Inf(-1)), "a source of candidates scores all")
	}
}
