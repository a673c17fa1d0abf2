package indexer_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestSelect(t *testing.T) {
	for _, op := range []string{"indexer_select_fp8", "indexer_select_mxfp4"} {
		t.Run(op, func(t *testing.T) { testkit.TestOp(t, op) })
	}
}

const selectPage = 64

// scene holds the operands of a Select, in host memory.
type scene struct {
	indexer.LogitsHost
	requests int
}

// newScene makes random queries of T tokens and a pool of pages of random keys, which
// the requests share in random order: there are many equal scores.
func newScene(t *testing.T, rng *rand.Rand, format cache.IndexKeyFormat, tokens, heads, requests, tableWidth, pages int) scene {
	s := scene{randomHost(t, format, rng, tokens, 1, heads, pages*selectPage, selectPage), requests}
	s.TableWidth, s.Width, s.BlockTable = tableWidth, 0, make([]int32, requests*tableWidth)
	for i := range s.BlockTable {
		s.BlockTable[i] = int32(rng.IntN(pages))
	}
	for i := range tokens {
		s.TokenToReq[i], s.Lens[i] = int32(i%requests), int32(tableWidth*selectPage)
	}
	return s
}

// args uploads the scene, with K columns of selection that are not written yet.
func (s scene) args(t *testing.T, dev *vk.Device, k int) indexer.SelectArgs {
	t.Helper()
	r := verify.NewRig(t.Context(), dev)
	t.Cleanup(r.Close)
	a := indexer.SelectArgs{LogitsArgs: uploadLogits(r, s.LogitsHost)}
	require.NoError(t, r.Err())
	a.Out, a.TopK = tensor.Tensor{}, testkit.Upload(t, dev, tensor.I32, slices.Repeat([]int32{-99}, len(s.Lens)*k), len(s.Lens), k)
	return a
}

func (s scene) config(k int, variant string) indexer.SelectConfig {
	return indexer.SelectConfig{K: k, Logits: indexer.LogitsConfig{Heads: s.Heads, Format: s.Layout.Format, Page: selectPage, Variant: variant}}
}

// scratch is memory for a Select that holds poison: the order key of NaN and of the
// largest numbers.
func scratch(t *testing.T, dev *vk.Device, n uint64) vk.View {
	return testkit.Upload(t, dev, tensor.U8, slices.Repeat([]byte{0xFF}, int(n)), int(n)).View()
}

// fused runs a Select twice over the scene and returns the selection, which has to be
// the same.
func (s scene) fused(t *testing.T, dev *vk.Device, cfg indexer.SelectConfig, entries int) []int32 {
	t.Helper()
	op := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg))
	a := s.args(t, dev, cfg.K)
	a.Entries, a.Scratch = entries, scratch(t, dev, op.ScratchBytes(len(s.Lens)))
	record := func(rec *vk.Recorder) error { return op.Record(rec, a) }
	do(t, dev, record)
	first := testkit.Download[int32](t, a.TopK)
	do(t, dev, record)
	assert.True(t, slices.Equal(first, testkit.Download[int32](t, a.TopK)), "two runs differ")
	return first
}

// separate runs Logits and then TopK over all entries.
func (s scene) separate(t *testing.T, dev *vk.Device, cfg indexer.SelectConfig, entries int) []int32 {
	t.Helper()
	logits := must[*indexer.Logits](t)(indexer.NewLogits(dev, cfg.Logits))
	topk := must[*indexer.TopK](t)(indexer.NewTopK(dev, indexer.TopKConfig{K: cfg.K, Workgroups: 1}))
	a := s.args(t, dev, cfg.K)
	a.Out = testkit.Upload(t, dev, tensor.F32, slices.Repeat([]float32{inf(1)}, len(s.Lens)*entries), len(s.Lens), entries)
	do(t, dev, func(rec *vk.Recorder) error {
		if err := logits.Record(rec, a.LogitsArgs); err != nil {
			return err
		}
		return topk.Record(rec, indexer.TopKArgs{Logits: a.Out, Lens: a.Lens, Out: a.TopK})
	})
	return testkit.Download[int32](t, a.TopK)
}

// selectVariants are the variants of Logits that the device can run and that are not left out.
func selectVariants(dev *vk.Device, cfg indexer.LogitsConfig) (names []string) {
	for _, v := range opkit.Builds("idx_logits") {
		cfg.Variant = v.Name
		if _, err := indexer.NewLogits(dev, cfg); err == nil && !testkit.LeftOut(v.Name) {
			names = append(names, v.Name)
		}
	}
	return names
}

// The fused form selects exactly what the separate ones do, for every variant,
// wherever the segments, rows and slices end.
func TestSelectEqualsSeparate(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 3))
	for _, c := range []struct {
		name                                  string
		format                                cache.IndexKeyFormat
		tokens, heads, requests, width        int // width of the block table
		entries, k, segment, rows, workgroups int
	}{
		{"one segment", cache.IndexKeyFP8, 2, 8, 2, 12, 700, 61, 1024, 0, 0},
		{"segments", cache.IndexKeyFP8, 17, 4, 3, 33, 2112, 64, 128, 0, 0},
		{"segments, mxfp4", cache.IndexKeyMXFP4, 17, 4, 3, 33, 2111, 69, 256, 0, 0},
		{"segments of k", cache.IndexKeyFP8, 3, 2, 1, 20, 1280, 128, 128, 0, 0},
		{"tiles of tokens", cache.IndexKeyFP8, 161, 2, 5, 9, 560, 17, 192, 64, 0},
		{"sliced segments", cache.IndexKeyFP8, 1, 1, 1, 1500, 95000, 321, 40000, 0, 64},
		{"sliced, carried", cache.IndexKeyMXFP4, 2, 1, 2, 1100, 70000, 512, 33000, 0, 64},
		{"by tiles", cache.IndexKeyFP8, 9, 2, 2, 160, 10204, 65, 20480, 0, 0},
		{"not by tiles", cache.IndexKeyFP8, 9, 2, 2, 160, 10201, 65, 20480, 0, 0},
		{"by tiles, mxfp4", cache.IndexKeyMXFP4, 3, 1, 1, 160, 0, 512, 20480, 0, 0},
		{"default segments", cache.IndexKeyFP8, 1, 2, 1, 60, 0, 512, 0, 0, 0},
	} {
		s := newScene(t, rng, c.format, c.tokens, c.heads, c.requests, c.width, 40)
		cfg := s.config(c.k, "")
		cfg.Segment, cfg.Rows, cfg.Workgroups = c.segment, c.rows, c.workgroups
		all := c.entries
		if all == 0 {
			all = c.width * selectPage
		}
		for i := range s.Lens { // ends at every kind of place
			ends := []int{all, 0, c.k, c.k + 1, c.segment, c.segment + 1, all - 1, 2*c.segment - 1, rng.IntN(all), -3, all + 5}
			if i > 0 {
				s.Lens[i] = int32(ends[i%len(ends)])
			}
		}
		for _, v := range selectVariants(dev, cfg.Logits) {
			t.Run(fmt.Sprintf("%s/%s", c.name, v), func(t *testing.T) {
				cfg.Logits.Variant = v
				got, want := s.fused(t, dev, cfg, c.entries), s.separate(t, dev, cfg, all)
				for i := range s.Lens {
					if g, w := got[i*c.k:][:c.k], want[i*c.k:][:c.k]; !slices.Equal(g, w) {
						t.Errorf("token %d with %d entries: %v, separately %v", i, s.Lens[i], g, w)
					}
				}
			})
		}
	}
}

// Entries beyond Entries count nowhere, not even in a tile that begins before: here they have the
// largest scores, and the entry with the smallest one that is to be picked is in a tile of its own.
func TestSelectBeyondEntries(t *testing.T) {
	dev := testkit.Device(t)
	const k, pages, one, half, four = 65, 160, 0x38, 0x30, 0x48 // E4M3
	for _, entries := range []int{10201, 10202, 10203, 10204} {
		s := newScene(t, rand.New(rand.NewPCG(1, 1)), cache.IndexKeyFP8, 1, 2, 1, pages, pages)
		s.Weights = []float32{1, 1}
		for i := range s.Q {
			s.Q[i] = one
		}
		var want []int32
		for e := range int64(pages * selectPage) {
			code := byte(0)
			switch {
			case e >= int64(entries):
				code = four
			case e%128 == 5 && len(want) < k:
				if code = one; len(want) == 20 {
					code = half
				}
				want = append(want, int32(e))
			}
			row := s.Pool[s.Layout.RowOffset(e):][:s.Layout.Format.RowBytes()]
			copy(row, slices.Repeat([]byte{code}, len(row)))
			binary.LittleEndian.PutUint32(s.Pool[s.Layout.ScaleOffset(e):], math.Float32bits(1))
		}
		for i := range s.BlockTable {
			s.BlockTable[i] = int32(i)
		}
		cfg := s.config(k, "")
		cfg.Segment = 20480
		for _, v := range selectVariants(dev, cfg.Logits) {
			cfg.Logits.Variant = v
			assert.Equal(t, want, s.fused(t, dev, cfg, entries), "%s: %d entries", v, entries)
		}
	}
}

// The slots of the picks are those of a paged cache, by another table than the keys'.
func TestSelectSlots(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 6))
	for name, c := range map[string]struct {
		tokens, requests, width      int // width of the keys' block table
		k, segment, rows, workgroups int
		page, slotWidth              int // of the other cache, and of its table
	}{
		"one segment": {5, 2, 12, 61, 1024, 0, 0, 64, 12},
		"segments":    {17, 3, 33, 64, 128, 0, 0, 16, 140},
		"tiles":       {161, 5, 9, 17, 192, 64, 0, 64, 9},
		"short table": {9, 3, 12, 33, 0, 0, 0, 3, 100},
		"sliced":      {2, 1, 1500, 321, 40000, 0, 64, 64, 1500},
		"by tiles":    {9, 2, 160, 40, 20480, 0, 0, 64, 150},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, rng, cache.IndexKeyFP8, c.tokens, 2, c.requests, c.width, 40)
			all := c.width * selectPage
			for i := range s.Lens {
				ends := []int{all, 0, c.k, c.k + 1, c.segment + 1, all - 1, rng.IntN(all), -3}
				s.Lens[i] = int32(ends[i%len(ends)])
			}
			cfg := s.config(c.k, "")
			cfg.Segment, cfg.Rows, cfg.Workgroups, cfg.SlotPage = c.segment, c.rows, c.workgroups, c.page
			table := make([]int32, c.requests*c.slotWidth)
			for i := range table {
				table[i] = int32(rng.IntN(1000)) - 50
			}
			op, a := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg)), s.args(t, dev, c.k)
			a.Scratch = scratch(t, dev, op.ScratchBytes(c.tokens))
			assert.ErrorIs(t, op.Record(nil, a), vk.ErrArgument, "without tensors for the slots")
			poison := slices.Repeat([]int32{-99}, c.tokens*c.k)
			a.Slots = indexer.PickSlots{BlockTable: testkit.Upload(t, dev, tensor.I32, table, c.requests, c.slotWidth),
				Slots: testkit.Upload(t, dev, tensor.I32, poison, c.tokens, c.k),
				Lens:  testkit.Upload(t, dev, tensor.I32, poison[:c.tokens], c.tokens)}
			besides := 0
			a.Beside = func() error { besides++; return nil }
			do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			assert.Equal(t, 1, besides, "Beside was called %d times", besides)
			picks, slots, lens := testkit.Download[int32](t, a.TopK), testkit.Download[int32](t, a.Slots.Slots), testkit.Download[int32](t, a.Slots.Lens)
			for i := range c.tokens {
				n := int32(0)
				for j, e := range picks[i*c.k:][:c.k] {
					want := int32(-1)
					if e >= 0 {
						n++
						if p := int(e) / c.page; p < c.slotWidth && table[int(s.TokenToReq[i])*c.slotWidth+p] >= 0 {
							want = table[int(s.TokenToReq[i])*c.slotWidth+p]*int32(c.page) + e%int32(c.page)
						}
					}
					if got := slots[i*c.k+j]; got != want {
						t.Fatalf("token %d, pick %d of entry %d: slot %d, want %d", i, j, e, got, want)
					}
				}
				if lens[i] != n {
					t.Errorf("token %d: length %d, want %d", i, lens[i], n)
				}
			}
		})
	}
}

// One recording for the longest context serves all shorter ones.
func TestSelectReadsLensAtRun(t *testing.T) {
	dev := testkit.Device(t)
	s := newScene(t, rand.New(rand.NewPCG(testkit.Seed(t), 4)), cache.IndexKeyFP8, 1, 2, 1, 50, 50)
	cfg := s.config(64, "")
	cfg.Segment = 512
	op := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg))
	a := s.args(t, dev, cfg.K)
	a.Scratch = scratch(t, dev, op.ScratchBytes(1))
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	require.NoError(t, op.Record(rec, a))
	cmd := must[*vk.Commands](t)(rec.End())
	defer cmd.Close()
	for _, n := range []int32{3200, 0, 63, 64, 65, 511, 512, 513, 1024, 1025, 3199, -1, 3200} {
		require.NoError(t, a.Lens.Upload(t.Context(), le(n)))
		require.NoError(t, cmd.Run(t.Context()))
		s.Lens[0] = n
		got, want := testkit.Download[int32](t, a.TopK), s.separate(t, dev, cfg, 3200)
		assert.True(t, slices.Equal(got, want), "%d entries: %v, separately %v", n, got, want)
	}
}

// The published bound holds for every number of tokens, and does not grow with it
// beyond the tokens that are taken at a time.
func TestSelectScratch(t *testing.T) {
	dev := testkit.Device(t)
	for _, k := range []int{1, 512, 1024, indexer.MaxK} {
		op := must[*indexer.Select](t)(indexer.NewSelect(dev, indexer.SelectConfig{K: k, Workgroups: 128,
			Logits: indexer.LogitsConfig{Heads: 1, Format: cache.IndexKeyFP8, Page: 64}}))
		limit := uint64(39_900_000)
		if k > 1024 {
			limit = 44_100_000
		}
		for _, n := range []int{0, 1, 2, 3, 7, 8, 9, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1000, 4096, 65536} {
			got, bound := op.ScratchBytes(n), indexer.SelectScratchBytes(n, k)
			assert.Equal(t, bound, got, "T %d, k %d", n, k)
			assert.LessOrEqual(t, bound, limit, "T %d, k %d", n, k)
		}
	}
}

func TestSelectArguments(t *testing.T) {
	dev := testkit.Device(t)
	s := newScene(t, rand.New(rand.NewPCG(1, 6)), cache.IndexKeyFP8, 3, 2, 2, 9, 20)
	base := s.config(32, "base")
	base.Segment = 128
	for arg, change := range map[string]func(*indexer.SelectConfig){
		"K":       func(c *indexer.SelectConfig) { c.K = 0 },
		"Segment": func(c *indexer.SelectConfig) { c.Segment = 31 },
		"Rows":    func(c *indexer.SelectConfig) { c.Rows = -1 },
		"Heads":   func(c *indexer.SelectConfig) { c.Logits.Heads = 0 },
		"Page":    func(c *indexer.SelectConfig) { c.Logits.Page = 0 },
	} {
		cfg := base
		change(&cfg)
		refuses(t, dev, arg, func(*vk.Recorder) error { _, err := indexer.NewSelect(dev, cfg); return err })
	}
	op := must[*indexer.Select](t)(indexer.NewSelect(dev, base))
	good := s.args(t, dev, base.K)
	good.Scratch = scratch(t, dev, op.ScratchBytes(3)+256)
	type selectArgs = indexer.SelectArgs
	testkit.Changes[selectArgs]{
		"Entries":    {func(a *selectArgs) { a.Entries = -1 }},
		"Scratch":    {func(a *selectArgs) { a.Scratch.Size = op.ScratchBytes(3) - 1 }},
		"Q":          {func(a *selectArgs) { a.Q.Shape = []int{3, 1, 128} }},
		"First, Out": {func(a *selectArgs) { a.First = 1 }},
	}.Refuse(t, dev, op.Record, good)
	for _, entries := range []int{128<<16 + 1, math.MaxInt32 - 128} { // more rounds than there may be
		a := good
		a.Entries = entries
		refuses(t, dev, "Entries", func(rec *vk.Recorder) error { return op.Record(rec, a) })
		refuses(t, dev, "entries", func(*vk.Recorder) error { return op.Prepare(3, min(entries, math.MaxInt32/2), false) })
	}
	if dev.Caps().StorageAlignment > 8 {
		a := good
		a.Scratch = a.Scratch.Buffer.View(8, a.Scratch.Size-8)
		refuses(t, dev, "Scratch", func(rec *vk.Recorder) error { return op.Record(rec, a) })
	}
}
