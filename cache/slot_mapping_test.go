package cache_test

import (
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestSlotMapping(t *testing.T) { testkit.TestOp(t, "get_compressed_slot_mapping") }

func TestSlotMappingArguments(t *testing.T) {
	dev := testkit.Device(t)
	op := must[*cache.SlotMapping](t)(cache.NewSlotMapping(dev, cache.SlotMappingConfig{Page: 64, Ratio: 4}))
	i32 := func(shape ...int) tensor.Tensor { return testkit.Zeros(t, dev, tensor.I32, shape...) }
	a := cache.SlotMappingArgs{QueryStart: i32(2), SeqLens: i32(1), Table: i32(1, 1), Slots: testkit.Zeros(t, dev, tensor.I64, 2)}
	a.SeqLens.Shape, a.QueryStart.Shape, a.Table.Shape = []int{0}, []int{1}, []int{0, 1}
	testkit.Refuses(t, dev, "SeqLens", func(rec *vk.Recorder) error { return op.Record(rec, a) })
}
