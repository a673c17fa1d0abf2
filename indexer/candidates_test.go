package indexer_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestCandidates(t *testing.T) { testkit.TestOp(t, "candidate_blocks") }

func TestWithin(t *testing.T) {
	for _, op := range []string{"indexer_within_fp8", "indexer_within_mxfp4"} {
		t.Run(op, func(t *testing.T) { testkit.TestOp(t, op) })
	}
}

// What DeepSeek-V4.1 says of a block: its largest entry counts, the newest block is in and takes a
// place, and of equal blocks the older one is taken.
func TestCandidatesRef(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	row := func(blocks ...float32) (x []float32) { // the largest entry of each block, at changing places
		for b, v := range blocks {
			e := slices.Repeat([]float32{-1000}, testBlock)
			e[b%testBlock] = v
			x = append(x, e...)
		}
		return x
	}
	for _, c := range []struct {
		about   string
		logits  []float32
		len, k  int
		blocks  []int32
		columns int32
	}{
		{"the newest ties with an older one and takes a place", row(1, 5, 3, 5, 0), 33, 3, []int32{1, 3, 4}, 17},
		{"and two of them tie", row(1, 5, 3, 5, 0), 33, 2, []int32{1, 4}, 9},
		{"one place is the newest's", row(9, 9, 9, -9), 32, 1, []int32{3}, 8},
		{"all of them", row(1, 2), 10, 3, []int32{0, 1, -1}, 10},
		{"a length in the middle of a block", row(7, 8, 9, 10), 19, 2, []int32{1, 2}, 11},
		{"no entry", row(7), 0, 2, []int32{-1, -1}, 0},
		{"infinity is not ahead of the newest", row(inf, inf, 0), 24, 2, []int32{0, 2}, 16},
		{"NaN is minus infinity", row(nan, -999, 0), 24, 2, []int32{1, 2}, 16},
		{"negative zero is zero", row(float32(math.Copysign(0, -1)), 0, -5, -9), 32, 2, []int32{0, 3}, 16},
	} {
		blocks, columns := indexer.CandidatesRef(c.logits, len(c.logits), []int32{int32(c.len)}, c.k, testBlock)
		assert.Equal(t, c.blocks, blocks, c.about)
		assert.Equal(t, []int32{c.columns}, columns, c.about)
	}
}

// A Select gives the candidate blocks of all scores whatever its segments are and what entries a
// block has; a Select among the entries of these blocks gives the picks that TopK gives of their
// scores. Scores have the same bits in all forms.
func TestSelectCandidates(t *testing.T) {
	dev := testkit.Device(t)
	const tokens, k, width = 5, 61, 20 * selectPage
	s := newScene(t, rand.New(rand.NewPCG(testkit.Seed(t), 41)), cache.IndexKeyMXFP4, tokens, 8, 2, width/selectPage, 11)
	s.Lens = []int32{width, 3, 0, 700, 193}
	all := s.scores(t, dev, width)
	for block, segments := range map[int][]int{1: {0, 192}, 2: {256}, 4: {192}, 8: {0, 192, 256}, 16: {256}, 32: {192}, 64: {0, 192}} {
		blocks := 192 / block
		wantBlocks, wantColumns := indexer.CandidatesRef(all, width, s.Lens, blocks, block)
		wantPicks := pickWithin(all, width, s.Lens, wantBlocks, blocks, k, int32(block))
		for _, segment := range segments {
			cfg := s.config(k, "")
			cfg.Candidates, cfg.Logits.Block, cfg.Segment, cfg.Rows = blocks, block, segment, 64
			op := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg))
			a := s.args(t, dev, k)
			a.Scratch = scratch(t, dev, op.ScratchBytes(tokens))
			poison := slices.Repeat([]int32{-99}, tokens*blocks)
			a.Candidates = indexer.CandidateBlocks{Blocks: testkit.Upload(t, dev, tensor.I32, poison, tokens, blocks),
				Columns: testkit.Upload(t, dev, tensor.I32, poison[:tokens], tokens)}
			do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			assert.Equal(t, wantBlocks, testkit.Download[int32](t, a.Candidates.Blocks), "%d entries, segment %d: blocks", block, segment)
			assert.Equal(t, wantColumns, testkit.Download[int32](t, a.Candidates.Columns), "%d entries, segment %d: columns", block, segment)
			assert.Equal(t, indexer.TopKRef(all, width, s.Lens, k), testkit.Download[int32](t, a.TopK),
				"%d entries, segment %d: picks", block, segment)

			within := s.config(k, "")
			within.Logits.Blocks, within.Logits.Block = blocks, block
			second := must[*indexer.Select](t)(indexer.NewSelect(dev, within))
			b := s.args(t, dev, k)
			b.Blocks, b.Lens, b.Scratch = a.Candidates.Blocks, a.Candidates.Columns, scratch(t, dev, second.ScratchBytes(tokens))
			do(t, dev, func(rec *vk.Recorder) error { return second.Record(rec, b) })
			assert.Equal(t, wantPicks, testkit.Download[int32](t, b.TopK), "%d entries, segment %d: picks within", block, segment)
		}
	}
}

// scores are the scores of all entries by the device.
func (s scene) scores(t *testing.T, dev *vk.Device, width int) []float32 {
	t.Helper()
	op := must[*indexer.Logits](t)(indexer.NewLogits(dev, s.config(1, "").Logits))
	a := s.args(t, dev, 1).LogitsArgs
	a.Out = testkit.Upload(t, dev, tensor.F32, make([]float32, len(s.Lens)*width), len(s.Lens), width)
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return testkit.Download[float32](t, a.Out)
}

// pickWithin is the second level by its words: of the entries that a token sees and whose block is
// a candidate, the k with the largest scores, of equal ones the older, ascending.
func pickWithin(scores []float32, n int, lens, blocks []int32, width, k int, block int32) (picks []int32) {
	for t, l := range lens {
		var entries []int32
		for e := range l {
			if slices.Contains(blocks[t*width:][:width], e/block) {
				entries = append(entries, e)
			}
		}
		slices.SortStableFunc(entries, func(a, b int32) int { return cmp.Compare(scores[t*n+int(b)], scores[t*n+int(a)]) })
		entries = entries[:min(k, len(entries))]
		slices.Sort(entries)
		picks = append(append(picks, entries...), slices.Repeat([]int32{-1}, k-len(entries))...)
	}
	return picks
}

// testBlock is the number of entries of a block where tests need one.
const testBlock = 8

// Blocks have a power of two of entries, up to 64.
func TestBlockSizes(t *testing.T) {
	dev := testkit.Device(t)
	keys := indexer.LogitsConfig{Heads: 8, Format: cache.IndexKeyFP8, Page: 64}
	for _, n := range []int{-8, 0, 3, 12, 65, 128} {
		within, made := keys, indexer.SelectConfig{K: 1, Candidates: 2, Logits: keys}
		within.Blocks, within.Block, made.Logits.Block = 2, n, n
		_, candidates := indexer.NewCandidates(dev, indexer.CandidatesConfig{K: 1, Block: n})
		_, entries := indexer.NewCandidateEntries(dev, indexer.CandidateEntriesConfig{Block: n})
		_, logits := indexer.NewLogits(dev, within)
		_, selects := indexer.NewSelect(dev, made)
		for _, err := range []error{candidates, entries, logits, selects} {
			assert.ErrorIs(t, err, vk.ErrArgument)
			assert.ErrorContains(t, err, fmt.Sprintf("Block: got %d, want a power of two, 1 to 64", n))
		}
	}
}

func TestCandidatesArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, indexer.NewCandidates, map[string]indexer.CandidatesConfig{
		"no K": {Block: 8}, "K": {K: indexer.MaxK + 1, Block: 8}, "threads": {K: 1, Block: 8, Threads: 3}})
	op := must[*indexer.Candidates](t)(indexer.NewCandidates(dev, indexer.CandidatesConfig{K: 4, Block: testBlock}))
	i32 := func(shape ...int) tensor.Tensor { return testkit.Zeros(t, dev, tensor.I32, shape...) }
	good := indexer.CandidatesArgs{Logits: testkit.Zeros(t, dev, tensor.F32, 2, 24), Lens: i32(2),
		Out: indexer.CandidateBlocks{Blocks: i32(2, 4), Columns: i32(2)}, Scratch: scratch(t, dev, op.ScratchBytes(2, 24))}
	testkit.Changes[indexer.CandidatesArgs]{
		"Logits": {func(a *indexer.CandidatesArgs) { // the columns, after all else
			a.Logits.Shape, a.Lens, a.Out = []int{4, 12}, i32(4), indexer.CandidateBlocks{Blocks: i32(4, 4), Columns: i32(4)}
			a.Scratch = scratch(t, dev, op.ScratchBytes(4, 12))
		}},
		"Scratch": {func(a *indexer.CandidatesArgs) { a.Scratch.Size = 8 }},
	}.Refuse(t, dev, op.Record, good)
	within := indexer.LogitsConfig{Heads: 8, Format: cache.IndexKeyFP8, Page: 64, Blocks: 2, Block: testBlock}
	_, err := indexer.NewSelect(dev, indexer.SelectConfig{K: 1, Candidates: 2, Logits: within})
	assert.ErrorIs(t, err, vk.ErrArgument, "a selection among candidates that selects candidates")
	logits := must[*indexer.Select](t)(indexer.NewSelect(dev, indexer.SelectConfig{K: 1, Logits: within}))
	s := newScene(t, rand.New(rand.NewPCG(1, 1)), cache.IndexKeyFP8, 2, 8, 2, 1, 2)
	a := s.args(t, dev, 1)
	a.Scratch = scratch(t, dev, logits.ScratchBytes(2))
	refuses(t, dev, "Blocks", func(rec *vk.Recorder) error { return logits.Record(rec, a) })
	a.Blocks, a.Entries = i32(2, 2), 17
	refuses(t, dev, "Out", func(rec *vk.Recorder) error { return logits.Record(rec, a) })
}

// One launch turns the picks of all tokens to entries, however many rounds a selection has. What it
// cannot take is refused before the first round is recorded.
func TestSelectWithinTooMany(t *testing.T) {
	dev := testkit.Device(t)
	n := int(dev.Caps().MaxWorkgroupCount[0]) + 1
	if n > 1<<17 {
		t.Skip("takes all tokens of a test")
	}
	s := newScene(t, rand.New(rand.NewPCG(1, 1)), cache.IndexKeyFP8, n, 1, 2, 1, 2)
	cfg := s.config(1, opkit.Base)
	cfg.Logits.Blocks, cfg.Logits.Block, cfg.Rows, cfg.Segment = 1, testBlock, 64, 64
	op := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg))
	a := s.args(t, dev, 1)
	a.Blocks, a.Scratch = testkit.Upload(t, dev, tensor.I32, make([]int32, n), n, 1), scratch(t, dev, op.ScratchBytes(n))
	a.Beside = func() error {
		t.Error("something was recorded")
		return nil
	}
	refuses(t, dev, "TopK", func(rec *vk.Recorder) error { return op.Record(rec, a) })
}

// Rounds take the tokens of a Select in parts: there may be more of them than a launch has
// workgroups.
func TestSelectCandidatesOfManyTokens(t *testing.T) {
	dev := testkit.Device(t)
	const blocks, k = 3, 5
	n := int(dev.Caps().MaxWorkgroupCount[1]) + 1
	if n > 1<<17 {
		t.Skip("takes all tokens of a test")
	}
	s := newScene(t, rand.New(rand.NewPCG(testkit.Seed(t), 1)), cache.IndexKeyFP8, n, 1, 2, 1, 2)
	cfg := s.config(k, opkit.Base)
	cfg.Candidates, cfg.Logits.Block, cfg.Rows = blocks, testBlock, 64
	op, a := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg)), s.args(t, dev, k)
	a.Scratch = scratch(t, dev, op.ScratchBytes(n))
	a.Candidates = indexer.CandidateBlocks{Blocks: testkit.Zeros(t, dev, tensor.I32, n, blocks), Columns: testkit.Zeros(t, dev, tensor.I32, n)}
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	assert.NoError(t, op.Record(rec, a))
}

// Block -1 has no entries under any table. One that had an entry for each number of 32 bits would
// have one for it, too, and is refused: entries are numbers of 31 bits.
func TestBlocksOfLargeTables(t *testing.T) {
	dev := testkit.Device(t)
	const page, width = 1 << 16, 1 << 15
	layout := must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(cache.IndexKeyFP8, page, 0))
	cfg := indexer.LogitsConfig{Heads: 1, Format: cache.IndexKeyFP8, Page: page, Blocks: 3, Block: testBlock, Variant: opkit.Base}
	op := must[*indexer.Logits](t)(indexer.NewLogits(dev, cfg))
	a := indexer.LogitsArgs{Q: testkit.Upload(t, dev, tensor.U8, slices.Repeat([]byte{0x38}, cache.IndexDim), 1, 1, cache.IndexDim),
		Weights: testkit.Upload(t, dev, tensor.F32, []float32{1}, 1, 1),
		Keys: cache.IndexKeyCache{Layout: layout,
			Pool: testkit.Upload(t, dev, tensor.U8, slices.Repeat([]byte{0x38}, layout.Stride), 1, layout.Stride)},
		BlockTable: testkit.Upload(t, dev, tensor.I32, make([]int32, width), 1, width),
		TokenToReq: testkit.Upload(t, dev, tensor.I32, []int32{0}, 1),
		Lens:       testkit.Upload(t, dev, tensor.I32, []int32{24}, 1),
		Blocks:     testkit.Upload(t, dev, tensor.I32, []int32{-1, 5, math.MaxInt32}, 1, 3)}
	a.Out = testkit.Upload(t, dev, tensor.F32, slices.Repeat([]float32{inf(1)}, 24), 1, 24)
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	for i, x := range testkit.Download[float32](t, a.Out) {
		assert.Equal(t, i/testBlock != 1, math.IsInf(float64(x), -1), "column %d: %v", i, x)
	}
	for _, wider := range []int{width + 1, 2 * width} {
		a.BlockTable = testkit.Upload(t, dev, tensor.I32, make([]int32, wider), 1, wider)
		refuses(t, dev, "BlockTable", func(rec *vk.Recorder) error { return op.Record(rec, a) })
	}
}

// A token has as many picks as were made, if more of its columns are asked for than there are.
func TestSelectWithinLens(t *testing.T) {
	dev := testkit.Device(t)
	const k, blocks = 40, 3
	s := newScene(t, rand.New(rand.NewPCG(testkit.Seed(t), 2)), cache.IndexKeyFP8, 4, 2, 2, 4, 5)
	s.Lens = []int32{math.MaxInt32, 25, 24, 7}
	cfg := s.config(k, "")
	cfg.Logits.Blocks, cfg.Logits.Block, cfg.SlotPage = blocks, testBlock, 16
	op := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg))
	for entries, want := range map[int][]int32{0: {24, 24, 24, 7}, 9: {9, 9, 9, 7}} {
		a := s.args(t, dev, k)
		a.Entries, a.Scratch = entries, scratch(t, dev, op.ScratchBytes(4))
		a.Blocks = testkit.Upload(t, dev, tensor.I32, slices.Repeat([]int32{0, 5, 9}, 4), 4, blocks)
		poison := slices.Repeat([]int32{-99}, 4*k)
		a.Slots = indexer.PickSlots{BlockTable: testkit.Upload(t, dev, tensor.I32, make([]int32, 40), 2, 20),
			Slots: testkit.Upload(t, dev, tensor.I32, poison, 4, k), Lens: testkit.Upload(t, dev, tensor.I32, poison[:4], 4)}
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
		assert.Equal(t, want, testkit.Download[int32](t, a.Slots.Lens), "%d entries", entries)
		picks := testkit.Download[int32](t, a.TopK)
		for i, n := range want {
			assert.NotContains(t, picks[i*k:][:n], int32(-1), "%d entries, token %d", entries, i)
			assert.Equal(t, slices.Repeat([]int32{-1}, k-int(n)), picks[i*k+int(n):(i+1)*k], "%d entries, token %d", entries, i)
		}
	}
}

// The scratch of candidate blocks is at most what a host can know without a device.
func TestCandidateScratch(t *testing.T) {
	dev := testkit.Device(t)
	for block := 1; block <= indexer.MaxBlock; block *= 2 {
		with := must[*indexer.Select](t)(indexer.NewSelect(dev, indexer.SelectConfig{K: 512, Candidates: 2048, OnDemand: true,
			Logits: indexer.LogitsConfig{Heads: 32, Format: cache.IndexKeyMXFP4, Page: 64, Block: block}}))
		for _, tokens := range []int{1, 2, 3, 32, 128, 511, 512, 513, 5000} {
			most := indexer.SelectScratchBytes(tokens, 512) + indexer.CandidateScratchBytes(tokens, 2048, block)
			assert.LessOrEqual(t, with.ScratchBytes(tokens), most, "%d tokens, blocks of %d", tokens, block)
		}
	}
	assert.Less(t, indexer.CandidateScratchBytes(1<<20, 2048, 8), uint64(16<<20))
}
