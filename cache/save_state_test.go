package cache_test

import (
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestSaveStateArguments(t *testing.T) {
	dev := testkit.Device(t)
	s := newSequence(t, dev, compressors[0], 5)
	type saveArgs = cache.SaveStateArgs
	good := saveArgs{KvScore: s.rows, Ape: s.ape, Positions: s.positions, Slots: s.stateSlots, State: s.newCaches(1).state}
	testkit.Changes[saveArgs]{
		"KvScore": {func(a *saveArgs) { a.KvScore = tensor.Tensor{} }, func(a *saveArgs) { a.KvScore.Shape = []int{10, 1024} },
			func(a *saveArgs) { a.KvScore.DType = tensor.I32 }, func(a *saveArgs) { a.KvScore.Shape = []int{4, 2048} }},
		"Ape":       {func(a *saveArgs) { a.Ape.Shape = []int{2, 2048} }},
		"Positions": {func(a *saveArgs) { a.Positions.Shape = []int{4} }},
		"Slots":     {func(a *saveArgs) { a.Slots = tensor.Tensor{} }, func(a *saveArgs) { a.Slots.DType = tensor.I32 }},
		"Channels":  {func(a *saveArgs) { a.State = cache.StateCache{} }},
		"State.Layout": {func(a *saveArgs) { a.State.Layout.Channels = 512 },
			func(a *saveArgs) { a.State.Layout.Page = 2 }},
	}.Refuse(t, dev, s.save.Record, good)
	good.Slots.Shape = []int{0}
	do(t, dev, func(rec *vk.Recorder) error { return s.save.Record(rec, good) })
}
