package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestInsert(t *testing.T) { testkit.TestOp(t, "quantize_and_insert_k_cache") }

func TestInsertArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.PagesConfig{
		"page 0":  {},
		"page -1": {Page: -1},
		"variant": {Page: 64, Variant: "cm"},
		"size":    {Page: 64, Variant: "base", MaxBytes: dev.Caps().MaxStorageBufferRange + 1},
	} {
		_, err := cache.NewInsert(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 2}))
	assert.Equal(t, "base", op.Variant(), "variant")
	c := newCache(t, dev, 3, 2, 1728)
	k, slots := upload(t, dev, tensor.BF16, make([]uint16, 2*cache.D), 2, cache.D), upload(t, dev, tensor.I64, []int64{0, 1}, 2)
	good := cache.InsertArgs{K: k, Slots: slots, Cache: c}
	with := func(change func(*cache.InsertArgs)) func(*vk.Recorder) error {
		a := good
		change(&a)
		return func(rec *vk.Recorder) error { return op.Record(rec, a) }
	}
	refuses(t, dev, c.Pool, map[string]func(*vk.Recorder) error{
		"K too long":  with(func(a *cache.InsertArgs) { a.K.Shape = []int{3, cache.D} }),
		"page size":   with(func(a *cache.InsertArgs) { a.Cache.Layout.Page = 1 }),
		"stride":      with(func(a *cache.InsertArgs) { a.Cache.Layout.Stride = 1736 }),
		"pool offset": with(func(a *cache.InsertArgs) { a.Cache.Pool.Offset, a.Cache.Pool.Shape = 4, []int{2, 1728} }),
	})
	assert.ErrorIs(t, op.Record(nil, good), vk.ErrArgument, "no recorder")
	// No tokens: nothing to do, and that is no error.
	none := good
	none.Slots.Shape = []int{0}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
}
