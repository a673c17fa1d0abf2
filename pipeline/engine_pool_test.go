package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineGrowsLess grows caches on a device without room for twice their size. They grow by
// less, keep the bytes of their pages, and lose no page. The same holds if the room is not in one
// piece, so that caches that have grown shrink again. If the room is known to be missing, recorded
// commands stay.
func TestEngineGrowsLess(t *testing.T) {
	testkit.WithoutMatrices(t)
	var dev *vk.Device
	const many, first = 8, 20
	page := uint64(must[cache.Layout](t)(cache.NewLayout(64, 0)).Stride)
	budget, above := uint64(1<<62), uint64(0) // of all caches, for pools that are larger than that
	hook := func(size uint64) error {
		if dev != nil && size > above && dev.MemoryInUse()["caches"]+size > budget {
			return fmt.Errorf("%w: over budget", vk.ErrOutOfDeviceMemory)
		}
		return nil
	}
	dev = must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{MemoryHook: hook}))
	defer dev.Close()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	defer layers[0].Close() // before the device
	layers = slices.Repeat(layers, many)
	grow := func(room, want int) { // pages of a layer
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
		if room == 30 && above == 0 {
			if err := errors.Join(e.Prepare(t.Context(), 1), all[1].Close(), add()); err != nil {
				t.Error(err)
			}
			if n, _ := e.Submissions(1); n == 0 || !errors.Is(add(), cache.ErrPoolFull) {
				t.Errorf("%d submissions", n)
			} else if now, _ := e.Submissions(1); now != n {
				t.Errorf("%d submissions of a step, %d after caches could not grow", n, now)
			}
		}
		if err := errors.Join(all[2].Close(), add(), e.Close()); err != nil {
			t.Errorf("room for %d pages: %v", room, err)
		}
	}
	for _, above = range []uint64{0, first * page} {
		for room, want := range map[int]int{30: 26, 35: 30, 45: 40} {
			grow(room, want)
		}
	}
}

// TestEngineSharesCaches fills caches up to MaxCacheBytes. They grow a few times only, since
// growing copies them. In the end no pool has free pages whose bytes another pool needs, whatever
// CacheBytes was. Bytes of pages stay.
func TestEngineSharesCaches(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4, 0, 128)})))
	const sessions, limit = 65, 100 << 20
	for _, first := range []uint64{0, limit} {
		e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 1 << 19, MaxSessions: sessions, MaxStep: 256, CacheBytes: first, MaxCacheBytes: limit})
		var all []*pipeline.Session
		for range sessions {
			all = append(all, must[*pipeline.Session](t)(e.Open()))
		}
		pool := e.Caches(0).Compressed.Pool
		var before, after bytes.Buffer
		if err := errors.Join(pool.Upload(t.Context(), bytes.Repeat([]byte{3, 7, 9}, int(pool.Bytes()))[:pool.Bytes()]),
			all[0].Advance(t.Context(), 1000), all[0].Save(t.Context(), &before)); err != nil {
			t.Fatal(err)
		}
		tokens, grown, had := 0, 0, e.Memory().Caches
		var err error
		for i := 0; err == nil; i++ {
			if err = all[1+i%(sessions-1)].Advance(t.Context(), 256); err == nil {
				tokens += 256
			}
			if now := e.Memory().Caches; now != had {
				grown, had = grown+1, now
			}
		}
		pages, free := e.Pages()
		if held := e.Memory().Held; held != had-e.PageBytes(free) {
			t.Errorf("%d of %d bytes are held, and %v of pages %v are free", held, had, free, pages)
		}
		t.Logf("%d bytes at first: %d tokens, grown %d times, then %v; of pages %v %v are free", first, tokens, grown, err, pages, free)
		if !errors.Is(err, cache.ErrPoolFull) || tokens < 200000 || grown > 30 || had > limit || e.PageBytes(free) > limit/8 {
			t.Errorf("%d bytes at first: %d tokens, grown %d times", first, tokens, grown)
		}
		if err := all[0].Save(t.Context(), &after); err != nil || !bytes.Equal(before.Bytes(), after.Bytes()) {
			t.Errorf("other bytes, %v", err)
		}
	}
}
