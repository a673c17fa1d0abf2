package cache_test

import (
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestGather(t *testing.T) { testkit.TestOp(t, "dequantize_and_gather_k_cache") }

func TestGatherArguments(t *testing.T) {
	dev := testkit.Device(t)
	op := must[*cache.Gather](t)(cache.NewGather(dev, cache.PagesConfig{Page: 2}))
	lens := testkit.Zeros(t, dev, tensor.I32, 2)
	good := cache.GatherArgs{Out: testkit.Zeros(t, dev, tensor.BF16, 2, 4, cache.D), Cache: newCache(t, dev, 3, 2, 1728),
		SeqLens: lens, GatherLens: lens, Table: testkit.Zeros(t, dev, tensor.I32, 2, 1)}
	testkit.Changes[cache.GatherArgs]{
		"Offset":            {func(a *cache.GatherArgs) { a.Offset = 5 }, func(a *cache.GatherArgs) { a.Offset = -1 }},
		"Cache.Layout.Page": {func(a *cache.GatherArgs) { a.Cache.Layout.Page = 1 }},
		"Stride":            {func(a *cache.GatherArgs) { a.Cache.Layout.Page = 64 }, func(a *cache.GatherArgs) { a.Cache.Layout.Stride = 584 }},
	}.Refuse(t, dev, op.Record, good)
	good.Offset = 4 // no room left: nothing to do
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, good) })
}
