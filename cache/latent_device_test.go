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
	testkit.Rejects(t, dev, cache.NewCompress, map[string]cache.CompressConfig{
		"a record without a latent": {Compression: cache.C4Main, StatePage: 4, Page: 64, Record: cache.RecordFP4},
		"a record of keys": {Compression: cache.C1Index, Page: 64, Keys: cache.IndexKeyMXFP4,
			Record: cache.RecordFP4, Save: true},
		"an unknown record":   {Compression: cache.C2Main, StatePage: 8, Page: 64, Record: 7},
		"ungated, not saving": {Compression: cache.C1Main, Page: 64},
		"a latent mixed": {Compression: cache.C2Index, Page: 64, Keys: cache.IndexKeyFP8, Save: true,
			Hadamard: true},
		"ungated with overlap": {Compression: cache.Compression{Dim: cache.D, Ratio: 2, Latent: true, Ungated: true, Overlap: true},
			Page: 64, Save: true},
	})
	insert := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 4, Record: cache.RecordFP8}))
	slots := must[*cache.GatherSlots](t)(cache.NewGatherSlots(dev, cache.PagesConfig{Page: 4, Record: cache.RecordFP4}))
	kv, one, row := newCache(t, dev, 2, 4, 0), testkit.Zeros(t, dev, tensor.I64, 1), testkit.Zeros(t, dev, tensor.BF16, 1, cache.D)
	testkit.Refuses(t, dev, "Cache.Layout.Record", func(rec *vk.Recorder) error {
		return insert.Record(rec, cache.InsertArgs{K: row, Slots: one, Cache: kv})
	})
	testkit.Refuses(t, dev, "Cache.Layout.Record", func(rec *vk.Recorder) error {
		return slots.Record(rec, cache.GatherSlotsArgs{Out: row, Indices: testkit.Zeros(t, dev, tensor.I32, 1), Cache: kv})
	})
	keys := must[*cache.Compress](t)(cache.NewCompress(dev, cache.CompressConfig{Compression: cache.C1Index, Page: 64,
		Keys: cache.IndexKeyMXFP4, Save: true}))
	f32 := func(shape ...int) tensor.Tensor { return testkit.Zeros(t, dev, tensor.F32, shape...) }
	type compressArgs = cache.CompressArgs
	good := compressArgs{Positions: testkit.Zeros(t, dev, tensor.I32, 1), Slots: one, Keys: newKeys(t, dev, 1, cache.IndexKeyMXFP4, 64),
		Norm: f32(cache.IndexDim), CosSin: f32(1, cache.RopeDim), KvScore: f32(1, cache.IndexDim)}
	testkit.Changes[compressArgs]{
		"StateSlots": {func(a *compressArgs) { a.StateSlots = one }}, // where there are no states
		"Ape":        {func(a *compressArgs) { a.Ape = a.KvScore }},
		"KvScore":    {func(a *compressArgs) { a.KvScore.Shape = []int{2, 64} }},
		"Latent":     {func(a *compressArgs) { a.Latent = row }},
		"Slots":      {func(a *compressArgs) { a.Slots = tensor.Tensor{} }},
	}.Refuse(t, dev, keys.Record, good)
	do(t, dev, func(rec *vk.Recorder) error { return keys.Record(rec, good) })
}

// Bytes are those of the definition for numbers beyond what scales reach, too, and for NaN where
// a scale can be NaN.
func TestInsertExtremes(t *testing.T) {
	dev := testkit.Device(t)
	for _, r := range []cache.Record{cache.RecordFP8, cache.RecordFP4} {
		l := must[cache.Layout](t)(cache.NewRecordLayout(r, 3, 0))
		c := cache.KVCache{Pool: testkit.Zeros(t, dev, tensor.U8, 1, l.Stride), Layout: l}
		op := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 3, Record: r}))
		for _, bits := range []uint16{0x7F80, 0xFF80, 0x7F7F, 0x4528, 0x0040, 0x7FC0, 0xFFC1} { // Inf, largest, 2688, subnormal, NaN
			k := make([]uint16, 2*cache.D)
			for i := range k {
				k[i] = numfmt.BF16Encode(float32(i%37) - 18)
			}
			k[5], k[cache.D+88] = bits, bits
			slots, pool := []int64{2, 1}, testkit.Download[byte](t, bytesOf(c.Pool))
			require.NoError(t, cache.InsertRef(pool, l, k, slots))
			a := cache.InsertArgs{K: testkit.Upload(t, dev, tensor.BF16, k, 2, cache.D),
				Slots: testkit.Upload(t, dev, tensor.I64, slots, 2), Cache: c}
			do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			assert.True(t, bytes.Equal(pool, testkit.Download[byte](t, bytesOf(c.Pool))), "%s, bf16 %#04x", r, bits)
		}
	}
}
