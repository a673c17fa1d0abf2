package main

import (
	"fmt"
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
	"github.com/vkmla/vkmla/pipeline"
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
		at := fmt.Sprintf("%v, prefill %d, chunk %d: %s", records, prefill, chunk, about)
		followed(t, cfg, got, formula.NewSequence(cfg, formula.Numerics{Records: records}, m.Values), hidden, at)
	}
	// With another cut no byte is another one, if that is asked for.
	records, prefill := stores[0], rng.IntN(tokens+1)
	cut := run(records, prefill, 1+rng.IntN(70), "--invariant")
	assert.Equal(t, run(records, tokens, tokens, "--invariant"), cut, "%v, prefill %d: %s", records, prefill, about)
}

// followed compares outputs with what the definition makes of the same picks, and picks with what
// it chooses. An order of sums may move a number before its rounding, and so a code of an entry or
// a row: tokens that attend it are then up to 0.04 off, other tokens less than 0.01. A code of a
// key moves its scores, and so some picks and some blocks in which later layers look for theirs:
// small blocks are nearly as many as picks, so such a block loses one of them.
func followed(t *testing.T, c model.Config, got vectors.Arrays, s *formula.Sequence, hidden [][]float32, at string) {
	t.Helper()
	var gave []pipeline.Appended
	for i := range hidden {
		gave = append(gave, pipeline.Appended{Out: got[fmt.Sprintf("L%d.out", i)].F32(), TopK: got[fmt.Sprintf("L%d.topk", i)].I32()})
		if l := &c.Layers[i]; l.Picks == model.PickEarlier {
			assert.Equal(t, gave[l.PicksOf].TopK, gave[i].TopK, "picks of layer %d, %s", i, at)
		}
	}
	_, all := s.Follow(hidden, gave)
	missed, of, gap := 0, 0, 0.0
	for i, f := range all {
		at := fmt.Sprintf("layer %d, %s, %s", i, c.Layers[i].Name, at)
		assert.Zero(t, f.Few, "tokens with another number of picks, %s", at)
		missed, of, gap = missed+f.Missed, of+f.Picks, max(gap, f.Gap)
		slices.Sort(f.Apart)
		n := len(f.Apart)
		assert.Less(t, f.Apart[n/2], 5e-3, "half of the tokens, %s", at)
		assert.Less(t, f.Apart[n*6/10], 1e-2, "three tokens of five, %s", at)
		assert.Less(t, f.Apart[n-1], 0.1, "the worst token, %s", at)
		assert.Less(t, f.Whole, 0.02, at)
	}
	t.Logf("%d of %d picks missed, by %.4f: %s", missed, of, gap, at)
	assert.Less(t, gap, 0.3, "picks missed, %s", at)
	assert.LessOrEqual(t, 2000*(missed-2), of, "picks missed, %s", at)
}
