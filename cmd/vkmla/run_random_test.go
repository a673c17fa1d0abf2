package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestRunV41Random runs a random checkpoint of DeepSeek-V4.1, a prompt in chunks of any size and
// then single tokens, and compares all layers with the model's definition. With VKMLA_TEST_FULL
// there are 60 checkpoints, from VKMLA_TEST_SEED on, in both stores.
func TestRunV41Random(t *testing.T) {
	testkit.WithoutMatrices(t)
	seeds, stores := []uint64{33}, []model.Records{model.RecordsV41}
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		first := testkit.Seed(t)
		stores = append(stores, model.RecordsV4)
		for seeds = nil; len(seeds) < 60; {
			seeds = append(seeds, first+uint64(len(seeds)))
		}
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { runRandom(t, seed, stores) })
	}
}

func runRandom(t *testing.T, seed uint64, stores []model.Records) {
	rng := rand.New(rand.NewPCG(seed, 41))
	cfg, m := fakemodel.RandomV41(rng)
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1+rng.IntN(3)))
	read, err := model.LoadConfigWithDrafts(dir, "")
	require.NoError(t, err)
	require.Equal(t, cfg, read)
	tokens := 20 + rng.IntN(max(20, 1600/cfg.Heads))
	if tokens = min(tokens, 220); rng.IntN(4) == 0 { // shorter than most windows and blocks
		tokens = 1 + rng.IntN(20)
	}
	var hidden [][]float32
	arrays := vectors.Arrays{}
	for i, l := range cfg.Layers {
		if l.Draft {
			break
		}
		x := fakemodel.RandomHidden(rng, tokens, cfg.Hidden)
		hidden = append(hidden, x)
		if arrays[fmt.Sprintf("L%d.in", i)] = vectors.FromBF16(x, tokens, cfg.Hidden); rng.IntN(2) == 0 {
			arrays[fmt.Sprintf("L%d.in", i)] = vectors.FromF32(x, tokens, cfg.Hidden)
		}
	}
	in := filepath.Join(dir, "in.npz")
	writeArrays(t, in, arrays)
	names := []string{}
	for _, l := range cfg.Layers {
		names = append(names, l.Name)
	}
	about := fmt.Sprintf("%v, hidden %d, H %d, G %d, ranks %d %d, Hi %d, topk %d, blocks %d of %d, window %d, eps %v, %v, T %d", names,
		cfg.Hidden, cfg.Heads, cfg.Groups, cfg.QRank, cfg.ORank, cfg.IndexHeads, cfg.TopK, cfg.CandidateBlocks, cfg.CandidateBlock,
		cfg.Window, cfg.Eps, cfg.Compress, tokens)
	run := func(records model.Records, prefill, chunk int, more ...string) vectors.Arrays {
		out := filepath.Join(dir, records.String()+".npz")
		code, stdout, stderr := command(append([]string{"run", "--model", dir, "--inputs", in, "--outputs", out,
			"--prefill", strconv.Itoa(prefill), "--chunk", strconv.Itoa(chunk), "--store", records.String()}, more...)...)
		require.Equal(t, exitOK, code, "%s\n%s%s", about, stdout, stderr)
		return readArrays(t, out)
	}
	for _, records := range stores {
		prefill, chunk := rng.IntN(tokens+1), 1+rng.IntN(70)
		got := run(records, prefill, chunk)
		h := ranV41{cfg: cfg, got: got, at: fmt.Sprintf("%v, prefill %d, chunk %d: %s", records, prefill, chunk, about)}
		h.check(t, formula.NewSequence(cfg, formula.Numerics{Records: records}, m.Values), hidden)
	}
	// With another cut no byte is another one, if that is asked for.
	records, prefill := stores[0], rng.IntN(tokens+1)
	cut := run(records, prefill, 1+rng.IntN(70), "--invariant")
	assert.Equal(t, run(records, tokens, tokens, "--invariant"), cut, "%v, prefill %d: %s", records, prefill, about)
}

// ranV41 is what a run made of a checkpoint.
type ranV41 struct {
	cfg model.Config
	got vectors.Arrays
	at  string
}

// picks returns those of a layer for a token.
func (h *ranV41) picks(layer, p int) []int {
	list := []int{}
	for _, e := range h.got[fmt.Sprintf("L%d.topk", layer)].I32()[p*h.cfg.TopK : (p+1)*h.cfg.TopK] {
		if e >= 0 {
			list = append(list, int(e))
		}
	}
	return list
}

// check compares outputs with what the definition makes of the same picks, and picks with what it
// chooses. An order of sums may move a number before its rounding, and so a code of an entry or a
// row: tokens that attend it are then up to 0.04 off, other tokens less than 0.01. A code of a key
// moves its scores by up to 0.02 of their size, 0.14 of their deviation with one head, which
// decides some picks, and some blocks in which later layers look for theirs: small blocks are
// nearly as many as picks, so such a block loses one of them.
func (h *ranV41) check(t *testing.T, s *formula.Sequence, hidden [][]float32) {
	s.Given = func(layer, p int) (picks, blocks []int) { return h.picks(layer, p), nil }
	missed, of, margin := 0, 0, 0.0
	all := s.Step(hidden)
	for i, want := range all {
		l := h.cfg.Layers[i]
		at := fmt.Sprintf("layer %d, %s, %s", i, l.Name, h.at)
		h.outputs(t, at, i, want)
		for p, w := range want {
			switch l.Picks {
			case model.PickEarlier:
				require.Equal(t, h.picks(l.PicksOf, p), h.picks(i, p), "token %d, %s", p, at)
			case model.PickOwn:
				picked := h.picks(i, p)
				require.Len(t, picked, len(w.Picks), "token %d, %s", p, at)
				for _, e := range w.Picks {
					if of++; !slices.Contains(picked, e) {
						by := short(w, picked, e)
						if l.Candidates == model.CandidatesUsed {
							by = min(by, h.ahead(all[l.CandidatesOf][p], e))
						}
						missed, margin = missed+1, max(margin, by)
					}
				}
			}
		}
	}
	t.Logf("%d of %d picks missed, by %.4f: %s", missed, of, margin, h.at)
	assert.Less(t, margin, 0.3, "picks missed, %s", h.at)
	assert.LessOrEqual(t, 2000*(missed-2), of, "picks missed, %s", h.at)
}

// outputs compares those of a layer.
func (h *ranV41) outputs(t *testing.T, at string, layer int, want []formula.Rounded) {
	out := h.got[fmt.Sprintf("L%d.out", layer)].F32()
	var all []float32
	var errors []float64
	for p, w := range want {
		all, errors = append(all, w.Out...), append(errors, off(out[p*h.cfg.Hidden:], w.Out))
	}
	slices.Sort(errors)
	assert.Less(t, errors[len(errors)/2], 5e-3, "half of the tokens, %s", at)
	assert.Less(t, errors[len(errors)*6/10], 1e-2, "three tokens of five, %s", at)
	assert.Less(t, errors[len(errors)-1], 0.1, "the worst token, %s", at)
	assert.Less(t, off(out, all), 0.02, at)
}

// ahead returns how much larger the largest score of an entry's block is than that of any block
// that is no candidate, in deviations of a token's scores.
func (h *ranV41) ahead(source formula.Rounded, entry int) float64 {
	other, block := float32(math.Inf(-1)), entry/h.cfg.CandidateBlock
	var own float32
	b := 0
	for scores := range slices.Chunk(source.Logits, h.cfg.CandidateBlock) {
		if top := slices.Max(scores); b == block {
			own = top
		} else if !slices.Contains(source.Blocks, b) {
			other = max(other, top)
		}
		b++
	}
	return float64(own-other) / deviation(source.Logits)
}

// short returns how much less the least of picked scores than e, in deviations of a token's scores.
func short(w formula.Rounded, picked []int, e int) float64 {
	least := math.Inf(1)
	for _, x := range picked {
		least = min(least, float64(w.Logits[x]))
	}
	return (float64(w.Logits[e]) - least) / deviation(w.Logits)
}

// deviation is that of scores, without those that are not scored.
func deviation(scores []float32) float64 {
	var n, sum, squares float64
	for _, x := range scores {
		if x := float64(x); !math.IsInf(x, -1) {
			n, sum, squares = n+1, sum+x, squares+x*x
		}
	}
	return math.Sqrt(squares/n - sum/n*sum/n)
}
