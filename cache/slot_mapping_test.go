package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestSlotMapping(t *testing.T) { testkit.TestOp(t, "get_compressed_slot_mapping") }

func TestSlotMappingArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.SlotMappingConfig{
		"page 0":   {Ratio: 1},
		"ratio 0":  {Page: 64},
		"ratio -4": {Page: 64, Ratio: -4},
	} {
		_, err := cache.NewSlotMapping(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*cache.SlotMapping](t)(cache.NewSlotMapping(dev, cache.SlotMappingConfig{Page: 64, Ratio: 4}))
	slots := upload(t, dev, tensor.I64, []int64{7, 7}, 2)
	good := cache.SlotMappingArgs{
		QueryStart: upload(t, dev, tensor.I32, []int32{0, 2}, 2), SeqLens: upload(t, dev, tensor.I32, []int32{4}, 1),
		Table: upload(t, dev, tensor.I32, []int32{0}, 1, 1), Slots: slots,
	}
	with := func(change func(*cache.SlotMappingArgs)) func(*vk.Recorder) error {
		a := good
		change(&a)
		return func(rec *vk.Recorder) error { return op.Record(rec, a) }
	}
	refuses(t, dev, slots, map[string]func(*vk.Recorder) error{
		"no requests": with(func(a *cache.SlotMappingArgs) {
			a.SeqLens.Shape, a.QueryStart.Shape, a.Table.Shape = []int{0}, []int{1}, []int{0, 1}
		}),
	})
}
