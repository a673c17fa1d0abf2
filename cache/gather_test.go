package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestGather(t *testing.T) { testkit.TestOp(t, "dequantize_and_gather_k_cache") }

func TestGatherArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.PagesConfig{
		"page 0":  {},
		"variant": {Page: 64, Variant: "fast"},
		"size":    {Page: 64, Variant: "base", MaxBytes: dev.Caps().MaxStorageBufferRange + 1},
	} {
		_, err := cache.NewGather(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*cache.Gather](t)(cache.NewGather(dev, cache.PagesConfig{Page: 2}))
	c := newCache(t, dev, 3, 2, 1728)
	out := upload(t, dev, tensor.BF16, make([]uint16, 2*4*cache.D), 2, 4, cache.D)
	lens, table := upload(t, dev, tensor.I32, []int32{2, 2}, 2), upload(t, dev, tensor.I32, []int32{0, 1}, 2, 1)
	good := cache.GatherArgs{Out: out, Cache: c, SeqLens: lens, GatherLens: lens, Table: table}
	with := func(change func(*cache.GatherArgs)) func(*vk.Recorder) error {
		a := good
		change(&a)
		return func(rec *vk.Recorder) error { return op.Record(rec, a) }
	}
	refuses(t, dev, out, map[string]func(*vk.Recorder) error{
		"offset":        with(func(a *cache.GatherArgs) { a.Offset = 5 }),
		"offset -1":     with(func(a *cache.GatherArgs) { a.Offset = -1 }),
		"pages of 64":   with(func(a *cache.GatherArgs) { a.Cache.Layout.Page = 64 }),
		"stride of 584": with(func(a *cache.GatherArgs) { a.Cache.Layout.Stride = 584 }),
	})
	// No room left after the offset: nothing to do.
	full := good
	full.Offset = 4
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, full) })
}
