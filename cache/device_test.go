package cache_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var do = testkit.Do

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func upload[T any](t testing.TB, dev *vk.Device, dt tensor.DType, v []T, shape ...int) tensor.Tensor {
	t.Helper()
	return testkit.Upload(t, dev, dt, v, shape...)
}

func download[T any](t testing.TB, x tensor.Tensor) []T {
	t.Helper()
	return testkit.Download[T](t, x)
}

// newCache makes a cache full of poison, which the test closes at its end.
func newCache(t testing.TB, dev *vk.Device, pages, page, stride int) cache.KVCache {
	t.Helper()
	c := must[cache.KVCache](t)(cache.NewKV(dev, cache.KVConfig{Pages: pages, Layout: must[cache.Layout](t)(cache.NewLayout(page, stride))}))
	t.Cleanup(func() { c.Close() })
	fill(t, c.Pool, 0xFF)
	return c
}

// fill writes a byte over a pool.
func fill(t testing.TB, pool tensor.Tensor, b byte) {
	t.Helper()
	require.NoError(t, pool.Upload(t.Context(), bytes.Repeat([]byte{b}, int(pool.Bytes()))))
}

// newState makes a cache of states, which the test closes at its end.
func newState(t testing.TB, dev *vk.Device, pages int, c cache.Compression, page int) cache.StateCache {
	l := must[cache.StateLayout](t)(cache.NewStateLayout(c, page, 0))
	return cache.StateCache{Pool: testkit.Zeros(t, dev, tensor.U8, pages, l.Stride), Layout: l}
}

// newKeys makes a cache of indexer keys, which the test closes at its end.
func newKeys(t testing.TB, dev *vk.Device, pages int, f cache.IndexKeyFormat, page int) cache.IndexKeyCache {
	l := must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(f, page, 0))
	return cache.IndexKeyCache{Pool: testkit.Zeros(t, dev, tensor.U8, pages, l.Stride), Layout: l}
}

func bytesOf(x tensor.Tensor) tensor.Tensor {
	x.Shape, x.DType = []int{int(x.Bytes())}, tensor.U8
	return x
}

func randomK(rng *rand.Rand, n int) []uint16 {
	k := make([]uint16, n*cache.D)
	for i := range k {
		k[i] = uint16(rng.UintN(1<<16)) &^ 0x4000 // finite, below 2
	}
	return k
}

// A pool larger than a descriptor can hold: the da variants are chosen, and work
// on both sides of the limit; the base variants refuse it with a typed error.
func TestPoolBeyondDescriptor(t *testing.T) {
	dev := testkit.Device(t)
	limit := dev.Caps().MaxStorageBufferRange
	l := must[cache.Layout](t)(cache.NewLayout(64, 0))
	edge := int(limit / uint64(l.Stride)) // the page that the limit falls into
	pages := edge + 20
	size := uint64(l.Stride * pages)
	if lacks := dev.Caps().Missing(opkit.Builds("kv_insert")[1].Requires); len(lacks) > 0 {
		t.Skipf("device lacks %v", lacks)
	}
	if size > dev.Caps().HeapBytes/2 || size > 1<<34 {
		t.Skipf("a pool beyond the descriptor's %d bytes is too large to try", limit)
	}
	c, err := cache.NewKV(dev, cache.KVConfig{Pages: pages, Layout: l})
	if errors.Is(err, vk.ErrOutOfDeviceMemory) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer c.Close()

	var arg *vk.ArgumentError
	_, err = cache.NewInsert(dev, cache.PagesConfig{Page: 64, MaxBytes: size, Variant: "base"})
	require.ErrorAs(t, err, &arg, "base for %d bytes", size)
	insert := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 64, MaxBytes: size}))
	slots := must[*cache.GatherSlots](t)(cache.NewGatherSlots(dev, cache.PagesConfig{Page: 64, MaxBytes: size}))
	gather := must[*cache.Gather](t)(cache.NewGather(dev, cache.PagesConfig{Page: 64, MaxBytes: size}))
	require.Equal(t, "da", insert.Variant())
	require.Equal(t, "da", slots.Variant())
	require.Equal(t, "da", gather.Variant())

	ids := []int32{0, int32(edge - 1), int32(edge), int32(edge + 1), int32(pages - 1)}
	var at []int64
	var idx []int32
	for _, id := range ids {
		for _, s := range []int64{0, 31, 63} {
			at = append(at, int64(id)*64+s)
			idx = append(idx, int32(at[len(at)-1]))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	k := randomK(rng, len(at))
	kt, st := upload(t, dev, tensor.BF16, k, len(at), cache.D), upload(t, dev, tensor.I64, at, len(at))
	out, rows := testkit.Zeros(t, dev, tensor.BF16, len(idx), cache.D), testkit.Zeros(t, dev, tensor.BF16, 1, 64, cache.D)
	table, seq := upload(t, dev, tensor.I32, []int32{0, int32(edge)}, 1, 2), upload(t, dev, tensor.I32, []int32{128}, 1)
	lens := upload(t, dev, tensor.I32, []int32{64}, 1)
	base := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 64}))

	do(t, dev, func(rec *vk.Recorder) error {
		assert.ErrorIs(t, base.Record(rec, cache.InsertArgs{K: kt, Slots: st, Cache: c}), vk.ErrArgument,
			"base variant on a pool of %d bytes", size)
		return errors.Join(
			insert.Record(rec, cache.InsertArgs{K: kt, Slots: st, Cache: c}),
			slots.Record(rec, cache.GatherSlotsArgs{Out: out, Cache: c, Indices: upload(t, dev, tensor.I32, idx, len(idx))}),
			gather.Record(rec, cache.GatherArgs{Out: rows, Cache: c, SeqLens: seq, GatherLens: lens, Table: table}),
		)
	})
	// The same rows in a small pool on the host.
	small, ref := make([]byte, len(ids)*l.Stride), make([]int64, len(at))
	want, refIdx := make([]uint16, len(at)*cache.D), make([]int32, len(at))
	for i, s := range at {
		ref[i] = int64(i/3)*64 + s%64
		refIdx[i] = int32(ref[i])
	}
	require.NoError(t, errors.Join(cache.InsertRef(small, l, k, ref), cache.GatherSlotsRef(want, small, l, refIdx)))
	got := download[uint16](t, out)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("slot %d, value %d: 0x%04x, want 0x%04x", at[i/cache.D], i%cache.D, got[i], want[i])
		}
	}
	page := download[uint16](t, rows)
	for j, s := range []int{0, 31, 63} {
		for d := range cache.D {
			if g, w := page[s*cache.D+d], want[(6+j)*cache.D+d]; g != w {
				t.Fatalf("gathered slot %d of page %d, value %d: 0x%04x, want 0x%04x", s, edge, d, g, w)
			}
		}
	}
}

// What no operation is made for.
func TestConfigs(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, cache.NewInsert, map[string]cache.PagesConfig{
		"page 0": {}, "page -1": {Page: -1}, "record": {Page: 4, Record: 3}})
	testkit.Rejects(t, dev, cache.NewGather, map[string]cache.PagesConfig{"page 0": {}})
	testkit.Rejects(t, dev, cache.NewGatherSlots, map[string]cache.PagesConfig{"page 0": {}})
	testkit.Rejects(t, dev, cache.NewSlotMapping, map[string]cache.SlotMappingConfig{
		"page 0": {Ratio: 1}, "ratio 0": {Page: 64}, "ratio -4": {Page: 64, Ratio: -4}})
	testkit.Rejects(t, dev, cache.NewSaveState, map[string]cache.SaveStateConfig{
		"nothing": {}, "page": {Compression: cache.C4Main}, "kind": {Compression: cache.Compression{Dim: 128}, Page: 8}})
	testkit.Rejects(t, dev, cache.NewKV, map[string]cache.KVConfig{
		"no pages":       {Layout: cache.Layout{Page: 64, Stride: 37440}},
		"no layout":      {Pages: 1},
		"stride":         {Pages: 1, Layout: cache.Layout{Page: 64, Stride: 37372}},
		"too many slots": {Pages: 1 << 25, Layout: cache.Layout{Page: 64, Stride: 37440}},
	})
	_, err := cache.NewKV(dev, cache.KVConfig{Pages: 1 << 24, Layout: cache.Layout{Page: 64, Stride: 1<<31 - 8}})
	assert.ErrorIs(t, err, vk.ErrOutOfDeviceMemory, "32 PiB")
}
