package cache_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// The operations of TestCompress save states first and compare them byte for byte; here are the
// slots that must stay as they are, for both variants.
func TestSaveStateSkips(t *testing.T) {
	dev := testkit.Device(t)
	l := must[cache.StateLayout](t)(cache.NewStateLayout(cache.C4Index, 3, 0))
	slots := []int64{-1, 5, 6, 1 << 33, -1 << 63, 4}
	positions := []int32{0, 5, 6, 7, 8, -1} // slot 6 is beyond two pages of 3; position -1 is none
	kvScore := make([]float32, len(slots)*512)
	for i := range kvScore {
		kvScore[i] = float32(i)
	}
	ape := make([]float32, 4*256)
	for i := range ape {
		ape[i] = float32(i) / 1024
	}
	for _, v := range opkit.Builds("kv_save_state") {
		if lacks := dev.Caps().Missing(v.Requires); len(lacks) > 0 {
			t.Logf("%s: device lacks %v", v.Name, lacks)
			continue
		}
		s := must[cache.StateCache](t)(cache.NewState(dev, cache.StateConfig{Pages: 2, Layout: l}))
		defer s.Pool.Close()
		fill(t, s.Pool, 0xA5)
		want := bytes.Repeat([]byte{0xA5}, 2*l.Stride)
		require.NoError(t, cache.SaveStateRef(want, l, cache.C4Index, kvScore, ape, positions, slots))
		op := must[*cache.SaveState](t)(cache.NewSaveState(dev, cache.SaveStateConfig{Compression: cache.C4Index, Page: 3, Variant: v.Name}))
		do(t, dev, func(rec *vk.Recorder) error {
			return op.Record(rec, cache.SaveStateArgs{KvScore: upload(t, dev, tensor.F32, kvScore, len(slots), 512), Ape: upload(t, dev, tensor.F32, ape, 4, 256),
				Positions: upload(t, dev, tensor.I32, positions, len(slots)), Slots: upload(t, dev, tensor.I64, slots, len(slots)), State: s})
		})
		assert.True(t, bytes.Equal(download[byte](t, bytesOf(s.Pool)), want),
			"%s: the pool is not what the reference makes of it", op.Variant())
		assert.GreaterOrEqual(t, bytes.Count(want, []byte{0xA5}), 2*l.Stride-l.SlotBytes(),
			"the reference wrote more than slot 5")
	}
}

func TestSaveStateArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.SaveStateConfig{
		"nothing": {},
		"page":    {Compression: cache.C4Main},
		"kind":    {Compression: cache.Compression{Dim: 128}, Page: 8},
		"variant": {Compression: cache.C4Main, Page: 4, Variant: "cm"},
		"size":    {Compression: cache.C4Main, Page: 4, Variant: "base", MaxBytes: dev.Caps().MaxStorageBufferRange + 1},
	} {
		_, err := cache.NewSaveState(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	s := newSequence(t, dev, compressors[0], 5)
	c := s.newCaches(1)
	good := cache.SaveStateArgs{KvScore: s.rows, Ape: s.ape, Positions: s.positions, Slots: s.stateSlots, State: c.state}
	with := func(change func(*cache.SaveStateArgs)) func(*vk.Recorder) error {
		a := good
		change(&a)
		return func(rec *vk.Recorder) error { return s.save.Record(rec, a) }
	}
	refuses(t, dev, c.state.Pool, map[string]func(*vk.Recorder) error{
		"no rows":       with(func(a *cache.SaveStateArgs) { a.KvScore = tensor.Tensor{} }),
		"row width":     with(func(a *cache.SaveStateArgs) { a.KvScore.Shape = []int{10, 1024} }),
		"row type":      with(func(a *cache.SaveStateArgs) { a.KvScore.DType = tensor.I32 }),
		"few rows":      with(func(a *cache.SaveStateArgs) { a.KvScore.Shape = []int{4, 2048} }),
		"ape":           with(func(a *cache.SaveStateArgs) { a.Ape.Shape = []int{2, 2048} }),
		"few positions": with(func(a *cache.SaveStateArgs) { a.Positions.Shape = []int{4} }),
		"no slots":      with(func(a *cache.SaveStateArgs) { a.Slots = tensor.Tensor{} }),
		"slot type":     with(func(a *cache.SaveStateArgs) { a.Slots.DType = tensor.I32 }),
		"no state":      with(func(a *cache.SaveStateArgs) { a.State = cache.StateCache{} }),
		"channels":      with(func(a *cache.SaveStateArgs) { a.State.Layout.Channels = 512 }),
		"state page":    with(func(a *cache.SaveStateArgs) { a.State.Layout.Page = 2 }),
	})
	none := good
	none.Slots.Shape = []int{0}
	do(t, dev, func(rec *vk.Recorder) error { return s.save.Record(rec, none) })
}
