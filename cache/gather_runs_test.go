package cache_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Runs by tables and by lists, of both sets of several pieces, some without a run, equal the
// definition byte for byte. Unknown requests, pages and slots are zeros, and rows of no run keep
// their bytes.
func TestGatherRuns(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	const page, pages, requests, width, tokens, k, pieces, rows, row0 = 3, 17, 4, 5, 6, 9, 3, 61, 40
	c := newCache(t, dev, pages, page, 1760)
	values := make([]uint16, pages*page*cache.D)
	slots := make([]int64, pages*page)
	for i := range values {
		values[i] = uint16(0x3C00 + rng.IntN(0x700) | rng.IntN(2)<<15)
		if i%cache.D >= 448 { // which are stored as they are
			values[i] = uint16(rng.Uint32())
		}
	}
	for i := range slots {
		slots[i] = int64(i)
	}
	pool := testkit.Download[byte](t, bytesOf(c.Pool))
	require.NoError(t, cache.InsertRef(pool, c.Layout, values, slots))
	testkit.Put(t, bytesOf(c.Pool), pool)
	some := func(n, most int) []int32 { // one in eight is none
		v := make([]int32, n)
		for i := range v {
			v[i] = int32(rng.IntN(most+most/8) - most/8)
		}
		return v
	}
	table, lists := some(requests*width, pages+2), some(tokens*k, pages*page+5)
	var heads, flat []int32
	var sets [pieces][2][][4]int32
	for p := range sets {
		for s := range sets[p] {
			at, list := int32(s*row0), [][4]int32(nil)
			for range rng.IntN(6) {
				of, first, kind := int32(rng.IntN(tokens+1)), int32(rng.IntN(4)), int32(rng.IntN(2))
				list = append(list, [4]int32{at, of, first, kind})
				at += int32(1 + rng.IntN(7))
			}
			list = append(list, [4]int32{at, -1, -1, -1})
			sets[p][s] = list
			heads = append(heads, int32(len(flat)/4), int32(len(list)-1))
			for _, run := range list {
				flat = append(flat, run[:]...)
			}
		}
	}
	poison := slices.Repeat([]uint16{0x7FC1}, rows*cache.D)
	for _, v := range opkit.Builds("kv_gather_runs") {
		if lacks := dev.Caps().Missing(v.Requires); len(lacks) > 0 {
			t.Logf("%s: device lacks %v", v.Name, lacks)
			continue
		}
		cfg := cache.GatherRunsConfig{PagesConfig: cache.PagesConfig{Page: page, Variant: v.Name}}
		op := must[*cache.GatherRuns](t)(cache.NewGatherRuns(dev, cfg))
		cfg.Halves = true
		halves := must[*cache.GatherRuns](t)(cache.NewGatherRuns(dev, cfg))
		for p := range sets {
			for s := range sets[p] {
				a := cache.GatherRunsArgs{Out: testkit.Upload(t, dev, tensor.BF16, poison, rows, cache.D), First: s * row0, Cache: c,
					Heads: testkit.Upload(t, dev, tensor.I32, heads, pieces, 2, 2),
					Runs:  testkit.Upload(t, dev, tensor.I32, flat, len(flat)/4, 4),
					Table: testkit.Upload(t, dev, tensor.I32, table, requests, width),
					Lists: testkit.Upload(t, dev, tensor.I32, lists, tokens, k),
					Piece: p, Set: s}
				do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
				want := slices.Concat(make([]uint16, s*row0*cache.D), poison)
				require.NoError(t, cache.GatherRunsRef(want, pool, c.Layout, sets[p][s], table, width, lists, k))
				assert.True(t, slices.Equal(want[s*row0*cache.D:], testkit.Download[uint16](t, a.Out)), "%s: piece %d, set %d", v.Name, p, s)
				if p > 0 {
					continue
				}
				do(t, dev, func(rec *vk.Recorder) error { return halves.Record(rec, a) })
				cache.HalvesRef(want)
				for i, b := range testkit.Download[uint16](t, a.Out) { // rows of no run keep their bytes, which are a NaN's
					if w := want[s*row0*cache.D+i]; b != w && (b != poison[0] || w != 0x7E00) {
						t.Fatalf("%s, halves: set %d, number %d is %#x, expected %#x", v.Name, s, i, b, w)
					}
				}
			}
		}
	}
	op := must[*cache.GatherRuns](t)(cache.NewGatherRuns(dev, cache.GatherRunsConfig{PagesConfig: cache.PagesConfig{Page: page}}))
	good := cache.GatherRunsArgs{Out: testkit.Upload(t, dev, tensor.BF16, poison, rows, cache.D), Cache: c,
		Heads: testkit.Upload(t, dev, tensor.I32, heads, pieces, 2, 2), Runs: testkit.Upload(t, dev, tensor.I32, flat, len(flat)/4, 4),
		Table: testkit.Upload(t, dev, tensor.I32, table, requests, width)}
	type runsArgs = cache.GatherRunsArgs
	testkit.Changes[runsArgs]{
		"Out":               {func(a *runsArgs) { a.Out = tensor.Tensor{} }},
		"Heads":             {func(a *runsArgs) { a.Heads = tensor.Tensor{} }},
		"Runs":              {func(a *runsArgs) { a.Runs.Shape = []int{len(flat)} }},
		"Table":             {func(a *runsArgs) { a.Table = tensor.Tensor{} }},
		"Lists":             {func(a *runsArgs) { a.Lists = a.Out }},
		"Piece":             {func(a *runsArgs) { a.Piece = pieces }},
		"Set":               {func(a *runsArgs) { a.Set = 2 }},
		"First":             {func(a *runsArgs) { a.First = -1 }},
		"Page":              {func(a *runsArgs) { a.Cache = cache.KVCache{} }},
		"Cache.Layout.Page": {func(a *runsArgs) { a.Cache = newCache(t, dev, 1, 2, 1728) }},
	}.Refuse(t, dev, op.Record, good)
}
