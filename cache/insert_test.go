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
	op := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 2}))
	assert.Equal(t, "base", op.Variant(), "variant")
	type insertArgs = cache.InsertArgs
	good := insertArgs{K: testkit.Zeros(t, dev, tensor.BF16, 2, cache.D), Slots: testkit.Zeros(t, dev, tensor.I64, 2),
		Cache: newCache(t, dev, 3, 2, 1728)}
	testkit.Changes[insertArgs]{
		"K":                 {func(a *insertArgs) { a.K.Shape = []int{3, cache.D} }},
		"Cache.Layout.Page": {func(a *insertArgs) { a.Cache.Layout.Page = 1 }},
		"Cache.Pool": {func(a *insertArgs) { a.Cache.Layout.Stride = 1736 },
			func(a *insertArgs) { a.Cache.Pool.Offset, a.Cache.Pool.Shape = 4, []int{2, 1728} }},
	}.Refuse(t, dev, op.Record, good)
	assert.ErrorIs(t, op.Record(nil, good), vk.ErrArgument, "no recorder")
	good.Slots.Shape = []int{0} // nothing to do, and that is no error
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, good) })
}
