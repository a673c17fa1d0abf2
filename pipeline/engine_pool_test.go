package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/fakemodel"
	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineGrowsLess grows caches on a device without room for twice their size: what
// some layers got by then has to go back, so that there is room for less, pages keep
// what is in them, and none is lost.
func TestEngineGrowsLess(t *testing.T) {
	testkit.WithoutMatrices(t)
	var dev *vk.Device
	budget := uint64(1 << 62) // of all caches
	hook := func(size uint64) error {
		if dev != nil && dev.MemoryInUse()["caches"]+size > budget {
			return fmt.Errorf("%w: over budget", vk.ErrOutOfDeviceMemory)
		}
		return nil
	}
	dev = must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{MemoryHook: hook}))
	defer dev.Close()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(pipeline.RatioWindow)})))
	defer layers[0].Close() // before the device
	const many, first = 8, 20
	layers = slices.Repeat(layers, many)
	page := uint64(must[cache.Layout](t)(cache.NewLayout(64, 0)).Stride)
	for room, want := range map[int]int{30: 26, 35: 30, 45: 40} { // pages of a layer
		budget = 1 << 62
		e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{
			MaxTokens: 64, MaxSessions: 100, MaxStep: 64, CacheBytes: first * many * page}))
		budget = uint64(room*many) * page
		var all []*pipeline.Session
		add := func() (err error) {
			s := must[*pipeline.Session](t)(e.Open())
			if err = s.Advance(t.Context(), 64); err == nil {
				all = append(all, s)
			}
			return err
		}
		if err := add(); err != nil {
			t.Fatal(err)
		}
		for i := range layers {
			pool := e.Caches(i).Window.Pool
			if err := pool.Upload(t.Context(), bytes.Repeat([]byte{byte(i), 7, 9}, int(pool.Bytes()))[:pool.Bytes()]); err != nil {
				t.Fatal(err)
			}
		}
		var before, after bytes.Buffer
		if err := all[0].Save(t.Context(), &before); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			err = add()
		}
		if !errors.Is(err, cache.ErrPoolFull) || !errors.Is(err, vk.ErrOutOfDeviceMemory) || len(all) < want {
			t.Errorf("room for %d pages: %d sessions of a page, then %v", room, len(all), err)
		}
		pages, _ := e.Pages()
		if held := e.Memory().Caches; held != uint64(pages[0]*many)*page || held != dev.MemoryInUse()["caches"] {
			t.Errorf("room for %d pages: %d in use, memory of %d", room, pages[0], held/many/page)
		}
		if err := all[0].Save(t.Context(), &after); err != nil || !bytes.Equal(before.Bytes(), after.Bytes()) {
			t.Errorf("room for %d pages: other bytes, %v", room, err)
		}
		if err := errors.Join(all[1].Close(), add(), e.Close()); err != nil {
			t.Errorf("room for %d pages: %v", room, err)
		}
	}
}
