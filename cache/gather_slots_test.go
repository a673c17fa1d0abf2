package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestGatherSlots(t *testing.T) { testkit.TestOp(t, "dequant_gather_slots") }

func TestGatherSlotsArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.GatherSlotsConfig{
		"page 0":  {},
		"variant": {Page: 64, Variant: "fast"},
		"size":    {Page: 64, Variant: "base", MaxBytes: dev.Caps().MaxStorageBufferRange + 1},
	} {
		_, err := cache.NewGatherSlots(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*cache.GatherSlots](t)(cache.NewGatherSlots(dev, cache.GatherSlotsConfig{Page: 2}))
	c := newCache(t, dev, 3, 2, 1728)
	out, idx := upload(t, dev, tensor.BF16, make([]uint16, 2*cache.D), 2, cache.D), upload(t, dev, tensor.I32, []int32{0, 1}, 2)
	good := cache.GatherSlotsArgs{Out: out, Cache: c, Indices: idx}
	with := func(change func(*cache.GatherSlotsArgs)) func(*vk.Recorder) error {
		a := good
		change(&a)
		return func(rec *vk.Recorder) error { return op.Record(rec, a) }
	}
	refuses(t, dev, out, map[string]func(*vk.Recorder) error{
		"no out":     with(func(a *cache.GatherSlotsArgs) { a.Out = tensor.Tensor{} }),
		"out rows":   with(func(a *cache.GatherSlotsArgs) { a.Out.Shape = []int{1, cache.D} }),
		"no indices": with(func(a *cache.GatherSlotsArgs) { a.Indices = tensor.Tensor{} }),
		"index type": with(func(a *cache.GatherSlotsArgs) { a.Indices.DType = tensor.I64 }),
		"no cache":   with(func(a *cache.GatherSlotsArgs) { a.Cache = cache.KVCache{} }),
	})
}
