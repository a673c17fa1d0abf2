package cache_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var do = testkit.Do

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

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
