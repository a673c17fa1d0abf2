package cache_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// gatherVariants are the variants that the device can run.
func gatherVariants(dev *vk.Device) (names []string) {
	for _, v := range cache.GatherIndexKeysVariants {
		if len(dev.Caps().Missing(v.Requires)) == 0 {
			names = append(names, v.Name)
		}
	}
	return names
}

// Random pages in random order, with tables that are too narrow or name pages that
// are not there, against the reference; what is not to be written stays poison.
func TestGatherIndexKeys(t *testing.T) {
	dev := testkit.Device(t)
	seed := testkit.Seed(t)
	for i, n := range []int{1, 2, 17, 61, 69, 321, 1500} {
		for _, format := range []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4} {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			page, extra := []int{64, 1, 16, 3, 64, 2, 64}[i], []int{0, 0, 16, 64, 0, 32, 0}[i]
			l := must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(format, page, 0))
			l.Stride = (l.Stride+15)/16*16 + extra
			// Requests of random lengths, some empty, that fill n rows.
			requests := 1 + rng.IntN(7)
			starts := make([]int32, requests+1)
			for r := 1; r < requests; r++ {
				starts[r] = starts[r-1] + int32(rng.IntN(2)*rng.IntN(n-int(starts[r-1])+1))
			}
			starts[requests] = int32(n)
			longest := 0
			for r := range requests {
				longest = max(longest, int(starts[r+1]-starts[r]))
			}
			width := (longest + page - 1) / page
			if i%3 == 2 {
				width = (width + 1) / 2 // too narrow: zeros
			}
			pages := requests*width + 3
			table := make([]int32, requests*width)
			for j, p := range rng.Perm(pages)[:len(table)] {
				table[j] = int32(p)
				if i > 3 && rng.IntN(9) == 0 {
					table[j] = []int32{-1, int32(pages), 1<<31 - 1, -1 << 31}[rng.IntN(4)]
				}
			}
			pool := make([]byte, pages*l.Stride)
			for j := range pool {
				pool[j] = byte(rng.UintN(256))
			}
			room := n + []int{5, 0, -3}[i%3] // more rows than there are keys, or fewer
			if room < 1 {
				room = 1
			}
			codes := bytes.Repeat([]byte{0xA5}, room*format.RowBytes())
			scales := bytes.Repeat([]byte{0x5A}, room*cache.IndexScaleBytes)
			wantCodes, wantScales := bytes.Clone(codes), bytes.Clone(scales)
			require.NoError(t, cache.GatherIndexKeysRef(wantCodes, wantScales, pool, l, table, width, starts))
			for _, variant := range gatherVariants(dev) {
				t.Run(fmt.Sprintf("%v_n%d_page%d_%s", format, n, page, variant), func(t *testing.T) {
					op := must[*cache.GatherIndexKeys](t)(cache.NewGatherIndexKeys(dev, cache.GatherIndexKeysConfig{Page: page, Format: format, Variant: variant}))
					a := cache.GatherIndexKeysArgs{
						Keys:   cache.IndexKeyCache{Pool: upload(t, dev, tensor.U8, pool, pages, l.Stride), Layout: l},
						Table:  upload(t, dev, tensor.I32, table, requests, width),
						Starts: upload(t, dev, tensor.I32, starts, requests+1),
						Codes:  upload(t, dev, tensor.U8, codes, room, format.RowBytes()),
						Scales: upload(t, dev, tensor.U8, scales, room, cache.IndexScaleBytes),
					}
					do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
					assert.True(t, bytes.Equal(download[byte](t, a.Codes), wantCodes), "codes differ from the reference")
					assert.True(t, bytes.Equal(download[byte](t, a.Scales), wantScales),
						"scales differ from the reference")
				})
			}
		}
	}
}

// Where the bytes of a key lie, and that nothing else of the page shows.
func TestGatherIndexKeysRef(t *testing.T) {
	for _, c := range []struct {
		format           cache.IndexKeyFormat
		codeAt, scalesAt int // of slot 2 of a page of 64
	}{{cache.IndexKeyFP8, 256, 8192 + 8}, {cache.IndexKeyMXFP4, 128, 4096 + 8}} {
		l := must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(c.format, 64, 0))
		pool := make([]byte, 2*l.Stride)
		row := c.format.RowBytes()
		for i := range row {
			pool[l.Stride+c.codeAt+i] = byte(i + 1)
		}
		copy(pool[l.Stride+c.scalesAt:], []byte{9, 8, 7, 6})
		codes, scales := make([]byte, 3*row), make([]byte, 3*4)
		require.NoError(t, cache.GatherIndexKeysRef(codes, scales, pool, l, []int32{1}, 1, []int32{0, 3}))
		for i, b := range codes {
			if want := byte(max(i-2*row+1, 0)); b != want {
				t.Fatalf("%v: code byte %d is %d, want %d", c.format, i, b, want)
			}
		}
		assert.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 0, 9, 8, 7, 6}, scales, "%v: scales", c.format)
	}
}

func TestGatherIndexKeysArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.GatherIndexKeysConfig{
		"page 0":    {Format: cache.IndexKeyFP8},
		"page -1":   {Page: -1, Format: cache.IndexKeyFP8},
		"no format": {Page: 64},
		"variant":   {Page: 64, Format: cache.IndexKeyFP8, Variant: "fast"},
		"size":      {Page: 64, Format: cache.IndexKeyFP8, Variant: "base", MaxBytes: dev.Caps().MaxStorageBufferRange + 1},
	} {
		_, err := cache.NewGatherIndexKeys(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*cache.GatherIndexKeys](t)(cache.NewGatherIndexKeys(dev, cache.GatherIndexKeysConfig{Page: 64, Format: cache.IndexKeyFP8}))
	l := must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(cache.IndexKeyFP8, 64, 0))
	keys := must[cache.IndexKeyCache](t)(cache.NewIndexKeys(dev, cache.IndexKeysConfig{Pages: 2, Layout: l}))
	defer keys.Close()
	good := cache.GatherIndexKeysArgs{
		Keys: keys, Table: upload(t, dev, tensor.I32, []int32{0, 1}, 2, 1), Starts: upload(t, dev, tensor.I32, []int32{0, 1, 2}, 3),
		Codes: upload(t, dev, tensor.U8, make([]byte, 256), 2, 128), Scales: upload(t, dev, tensor.U8, make([]byte, 8), 2, 4),
	}
	with := func(change func(*cache.GatherIndexKeysArgs)) func(*vk.Recorder) error {
		a := good
		change(&a)
		return func(rec *vk.Recorder) error { return op.Record(rec, a) }
	}
	refuses(t, dev, good.Codes, map[string]func(*vk.Recorder) error{
		"no keys":  with(func(a *cache.GatherIndexKeysArgs) { a.Keys = cache.IndexKeyCache{} }),
		"format":   with(func(a *cache.GatherIndexKeysArgs) { a.Keys.Layout.Format = cache.IndexKeyMXFP4 }),
		"page":     with(func(a *cache.GatherIndexKeysArgs) { a.Keys.Layout.Page = 32 }),
		"no table": with(func(a *cache.GatherIndexKeysArgs) { a.Table = tensor.Tensor{} }),
		"starts":   with(func(a *cache.GatherIndexKeysArgs) { a.Starts.Shape = []int{2} }),
		"codes":    with(func(a *cache.GatherIndexKeysArgs) { a.Codes.Shape = []int{4, 64} }),
		"scales":   with(func(a *cache.GatherIndexKeysArgs) { a.Scales.Shape = []int{8} }),
		"type":     with(func(a *cache.GatherIndexKeysArgs) { a.Codes.DType = tensor.I8 }),
	})
	for name, err := range map[string]error{
		"codes": cache.GatherIndexKeysRef(make([]byte, 100), nil, nil, l, nil, 0, []int32{0}),
		"table": cache.GatherIndexKeysRef(nil, nil, nil, l, []int32{1}, 1, []int32{0}),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument, "reference, %s", name)
	}
}
