package cache_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// What a record or a latent excludes is refused, before anything is built or recorded.
func TestRecordArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.CompressConfig{
		"a record without a latent": {Compression: cache.C4Main, StatePage: 4, Page: 64, Record: cache.RecordFP4},
		"a record of keys": {Compression: cache.C1Index, Page: 64, Keys: cache.IndexKeyMXFP4,
			Record: cache.RecordFP4, Save: true},
		"an unknown record":   {Compression: cache.C2Main, StatePage: 8, Page: 64, Record: 7},
		"ungated, not saving": {Compression: cache.C1Main, Page: 64},
		"a latent mixed": {Compression: cache.C2Index, Page: 64, Keys: cache.IndexKeyFP8, Save: true,
			Hadamard: true},
		"ungated with overlap": {Compression: cache.Compression{Dim: cache.D, Ratio: 2, Latent: true, Ungated: true, Overlap: true},
			Page: 64, Save: true},
	} {
		_, err := cache.NewCompress(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	_, err := cache.NewInsert(dev, cache.PagesConfig{Page: 4, Record: 3})
	assert.ErrorIs(t, err, vk.ErrArgument, "Insert of an unknown record")

	insert := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 4, Record: cache.RecordFP8}))
	slots := must[*cache.GatherSlots](t)(cache.NewGatherSlots(dev, cache.PagesConfig{Page: 4, Record: cache.RecordFP4}))
	c := must[cache.KVCache](t)(cache.NewKV(dev, cache.KVConfig{Pages: 2, Layout: must[cache.Layout](t)(cache.NewLayout(4, 0))}))
	defer c.Close()
	one := upload(t, dev, tensor.I64, []int64{0}, 1)
	row := upload(t, dev, tensor.BF16, make([]uint16, cache.D), 1, cache.D)
	keys := must[*cache.Compress](t)(cache.NewCompress(dev, cache.CompressConfig{Compression: cache.C1Index, Page: 64,
		Keys: cache.IndexKeyMXFP4, Save: true}))
	pool := must[cache.IndexKeyCache](t)(cache.NewIndexKeys(dev, cache.IndexKeysConfig{Pages: 1,
		Layout: must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(cache.IndexKeyMXFP4, 64, 0))}))
	defer pool.Pool.Close()
	good := cache.CompressArgs{Positions: upload(t, dev, tensor.I32, []int32{0}, 1), Slots: one, Keys: pool,
		Norm:    upload(t, dev, tensor.F32, make([]float32, cache.IndexDim), cache.IndexDim),
		CosSin:  upload(t, dev, tensor.F32, make([]float32, cache.RopeDim), 1, cache.RopeDim),
		KvScore: upload(t, dev, tensor.F32, make([]float32, cache.IndexDim), 1, cache.IndexDim)}
	with := func(change func(a *cache.CompressArgs)) func(*vk.Recorder) error {
		a := good
		change(&a)
		return func(rec *vk.Recorder) error { return keys.Record(rec, a) }
	}
	refuses(t, dev, c.Pool, map[string]func(*vk.Recorder) error{
		"a cache of another record": func(rec *vk.Recorder) error {
			return insert.Record(rec, cache.InsertArgs{K: row, Slots: one, Cache: c})
		},
		"slots of another record": func(rec *vk.Recorder) error {
			return slots.Record(rec, cache.GatherSlotsArgs{Out: row, Indices: upload(t, dev, tensor.I32, []int32{0}, 1), Cache: c})
		},
		"states where there are none": with(func(a *cache.CompressArgs) { a.StateSlots = one }),
		"a positional term":           with(func(a *cache.CompressArgs) { a.Ape = a.KvScore }),
		"rows too short":              with(func(a *cache.CompressArgs) { a.KvScore.Shape = []int{2, 64} }),
		"a latent of another size":    with(func(a *cache.CompressArgs) { a.Latent = row }),
		"no slots":                    with(func(a *cache.CompressArgs) { a.Slots = tensor.Tensor{} }),
	})
	do(t, dev, func(rec *vk.Recorder) error { return keys.Record(rec, good) })
}

// Bytes are those of the definition for numbers beyond what scales reach, too, and for NaN where
// a scale can be NaN.
func TestInsertExtremes(t *testing.T) {
	dev := testkit.Device(t)
	for _, r := range []cache.Record{cache.RecordFP8, cache.RecordFP4} {
		l := must[cache.Layout](t)(cache.NewRecordLayout(r, 3, 0))
		c := must[cache.KVCache](t)(cache.NewKV(dev, cache.KVConfig{Pages: 1, Layout: l}))
		defer c.Close()
		op := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 3, Record: r}))
		for _, bits := range []uint16{0x7F80, 0xFF80, 0x7F7F, 0x4528, 0x0040, 0x7FC0, 0xFFC1} { // Inf, largest, 2688, subnormal, NaN
			k := make([]uint16, 2*cache.D)
			for i := range k {
				k[i] = numfmt.BF16Encode(float32(i%37) - 18)
			}
			k[5], k[cache.D+88] = bits, bits
			slots, pool := []int64{2, 1}, download[byte](t, bytesOf(c.Pool))
			require.NoError(t, cache.InsertRef(pool, l, k, slots))
			a := cache.InsertArgs{K: upload(t, dev, tensor.BF16, k, 2, cache.D), Slots: upload(t, dev, tensor.I64, slots, 2), Cache: c}
			do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			assert.True(t, bytes.Equal(pool, download[byte](t, bytesOf(c.Pool))), "%s, bf16 %#04x", r, bits)
		}
	}
}
