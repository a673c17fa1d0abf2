package pipeline_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
)

// TestEngineLongV41 compares steps after random caches of 18,001 tokens, or 66,001, with the
// model's definition: more blocks than the 2,048 that a released model keeps as candidates,
// positions beyond those that its rotation was made for, and a group of two that is half full.
// Among this many scores a code of a query, which an order of sums may move, decides some picks.
func TestEngineLongV41(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	const prompt, steps = 9, 2
	c := fakemodel.V41()
	c.TopK, c.CandidateBlocks, c.Window = 512, 2048, 128
	before, long := 18_001, os.Getenv("VKMLA_TEST_FULL") == "1"
	if c.Compress.Original = 4096; long {
		before, c.Compress.Original = 66_001, 65536
	}
	c.Layers = model.V41Layers(model.Sources{Entries: []int{1, 2, 4}, Picks: []int{1, 2, 3, 4}, Candidates: 2}, 0, 2, 1, 1, 1, 1)
	m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8, Seed: 8})
	checkpoint, layers := opened(t, dev, m, model.CheckpointOptions{})
	c = checkpoint.Config
	hidden := fakemodel.RandomHidden(rand.New(rand.NewPCG(3, 5)), prompt+steps, c.Hidden)
	for _, records := range []model.Records{model.RecordsV41, model.RecordsV4} {
		t.Run(records.String(), func(t *testing.T) {
			if records == model.RecordsV4 && !long {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			e := engine(t, dev, c, layers, options{MaxTokens: before + prompt + steps, MaxStep: prompt, KeepTopK: true, Records: records})
			s := must[*pipeline.Session](t)(e.Open())
			require.NoError(t, s.Advance(t.Context(), before))
			kept := fillCaches(t, e, s, c, records, before)
			inputs := slices.Repeat([][]float32{hidden}, len(c.Layers))
			got := taken(t, s, c.Hidden, prompt, inputs)
			q := formula.NewSequence(c, formula.Numerics{Records: records}, m.Values)
			q.Skip(before, func(layer int, store model.Store, at int) []byte { return kept[layer][store][at] })
			all, how := q.Follow(inputs, got)
			for i, f := range how {
				for p, w := range all[i] {
					if n := len(w.Blocks); w.Blocks != nil {
						assert.Equal(t, c.CandidateBlocks, n, "blocks of layer %d", i)
						assert.Equal(t, (before+p)/c.CandidateBlock, w.Blocks[n-1], "the newest block")
					}
					if w.Picks != nil {
						require.Len(t, formula.Picked(got[i].TopK, c.TopK, p), c.TopK, "layer %d, token %d", i, p)
					}
				}
				t.Logf("layer %d, %s: %d of %d picks missed", i, c.Layers[i].Name, f.Missed, f.Picks)
				assert.LessOrEqual(t, 500*f.Missed, f.Picks, "layer %d, %s: picks", i, c.Layers[i].Name)
				assert.Less(t, f.Whole, 5e-3, "layer %d, %s", i, c.Layers[i].Name)
			}
		})
	}
}

// fillCaches writes random rows of a window, entries and keys, as a session's caches have them at
// `tokens` tokens, and returns them by layer, store and place.
func fillCaches(t *testing.T, e *pipeline.Engine, s *pipeline.Session, c model.Config, records model.Records,
	tokens int) []map[model.Store]map[int][]byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(11, 13))
	pools := poolNames(c)
	all := make([]map[model.Store]map[int][]byte, len(c.Layers))
	for i := range c.Layers {
		l := &c.Layers[i]
		all[i] = map[model.Store]map[int][]byte{}
		for _, p := range l.Pools {
			number := slices.Index(pools, p.Name)
			for _, store := range p.Stores {
				first, end := 0, tokens/p.Tokens
				if store == model.StoreWindow {
					first = tokens - c.Window
				}
				if store == model.StoreState {
					continue
				}
				rows := map[int][]byte{}
				for at := first; at < end; at++ {
					rows[at] = randomRow(rng, records, store)
				}
				all[i][store] = rows
				writeRows(t, e.Caches(i), store, func(at int) int { return s.PageOf(number, at/p.Page)*p.Page + at%p.Page }, rows)
			}
		}
	}
	return all
}

// randomRow is a row as a store keeps it: its numbers, then its scales.
func randomRow(rng *rand.Rand, records model.Records, store model.Store) []byte {
	if store == model.StoreKeys {
		format := records.Keys()
		row := make([]byte, format.RowBytes())
		for i := range row {
			if row[i] = byte(rng.Uint32()); row[i]&0x7f == 0x7f { // no number of E4M3
				row[i] = 0
			}
		}
		if records == model.RecordsV4 {
			return binary.LittleEndian.AppendUint32(row, math.Float32bits(0x1p-7))
		}
		return append(row, 126, 125, 127, 126)
	}
	r, x := records.Record(store), make([]uint16, cache.D)
	for i := range x {
		x[i] = uint16(math.Float32bits(float32(rng.NormFloat64())) >> 16)
	}
	row := make([]byte, r.SlotBytes())
	r.EncodeRef(row[:r.RowBytes()], row[r.RowBytes():], x)
	return row
}

// writeRows writes rows to a cache, whose other bytes stay.
func writeRows(t *testing.T, caches probe.Caches, store model.Store, slot func(at int) int, rows map[int][]byte) {
	t.Helper()
	pool, place := places(caches, store)
	data := testkit.Download[byte](t, pool)
	for i, row := range rows {
		numbers, scales := place(slot(i))
		copy(data[scales:], row[copy(data[numbers:], row[:len(row)-scaleBytes(caches, store)]):])
	}
	testkit.Put(t, pool, data)
}

// places are a cache's memory, and where in it the numbers and the scales of a slot begin.
func places(caches probe.Caches, store model.Store) (pool tensor.Tensor, place func(slot int) (numbers, scales int64)) {
	type layout interface {
		RowOffset(slot int64) int64
		ScaleOffset(slot int64) int64
	}
	var at layout
	switch store {
	case model.StoreWindow:
		pool, at = caches.Window.Pool, caches.Window.Layout
	case model.StoreEntries:
		pool, at = caches.Compressed.Pool, caches.Compressed.Layout
	case model.StoreKeys:
		pool, at = caches.Keys.Pool, caches.Keys.Layout
	}
	return pool, func(slot int) (numbers, scales int64) { return at.RowOffset(int64(slot)), at.ScaleOffset(int64(slot)) }
}

// scaleBytes are the bytes of scales of a slot.
func scaleBytes(caches probe.Caches, store model.Store) int {
	switch store {
	case model.StoreWindow:
		return caches.Window.Layout.Record.ScaleBytes()
	case model.StoreEntries:
		return caches.Compressed.Layout.Record.ScaleBytes()
	}
	return cache.IndexScaleBytes
}
