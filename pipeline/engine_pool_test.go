package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
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
	dev = device(t, vk.DeviceOptions{MemoryHook: hook})
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
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
		require.NoError(t, add())
		for i := range layers {
			pool := e.Caches(i).Window.Pool
			require.NoError(t, pool.Upload(t.Context(), bytes.Repeat([]byte{byte(i), 7, 9}, int(pool.Bytes()))[:pool.Bytes()]))
		}
		var before, after bytes.Buffer
		require.NoError(t, all[0].Save(t.Context(), &before))
		var err error
		for err == nil {
			err = add()
		}
		assert.ErrorIs(t, err, cache.ErrPoolFull, "room for %d pages", room)
		assert.ErrorIs(t, err, vk.ErrOutOfDeviceMemory, "room for %d pages", room)
		assert.GreaterOrEqual(t, len(all), want, "room for %d pages", room)
		pages, _ := e.Pages()
		if held := e.Memory().Caches; held != uint64(pages[0]*many)*page || held != dev.MemoryInUse()["caches"] {
			t.Errorf("room for %d pages: %d in use, memory of %d", room, pages[0], held/many/page)
		}
		require.NoError(t, all[0].Save(t.Context(), &after), "room for %d pages: other bytes", room)
		assert.True(t, bytes.Equal(before.Bytes(), after.Bytes()), "room for %d pages: other bytes", room)
		if room == 30 && above == 0 {
			assert.NoError(t, errors.Join(e.Prepare(t.Context(), 1), all[1].Close(), add()))
			if n, _ := e.Submissions(1); n == 0 || !errors.Is(add(), cache.ErrPoolFull) {
				t.Errorf("%d submissions", n)
			} else if now, _ := e.Submissions(1); now != n {
				t.Errorf("%d submissions of a step, %d after caches could not grow", n, now)
			}
		}
		assert.NoError(t, errors.Join(all[2].Close(), add(), e.Close()), "room for %d pages", room)
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
		require.NoError(t, errors.Join(pool.Upload(t.Context(), bytes.Repeat([]byte{3, 7, 9}, int(pool.Bytes()))[:pool.Bytes()]),
			all[0].Advance(t.Context(), 1000), all[0].Save(t.Context(), &before)))
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
		assert.Equal(t, had-e.PageBytes(free), e.Memory().Held,
			"of %d bytes are held, and %v of pages %v are free", had, free, pages)
		t.Logf("%d bytes at first: %d tokens, grown %d times, then %v; of pages %v %v are free", first, tokens, grown, err, pages, free)
		require.ErrorIs(t, err, cache.ErrPoolFull, "%d bytes at first: %d tokens, grown %d times", first, tokens, grown)
		assert.False(t, tokens < 200000 || grown > 30 || had > limit || e.PageBytes(free) > limit/8,
			"%d bytes at first: %d tokens, grown %d times", first, tokens, grown)
		require.NoError(t, all[0].Save(t.Context(), &after), "other bytes")
		assert.True(t, bytes.Equal(before.Bytes(), after.Bytes()), "other bytes")
	}
}

// An allocation fails within each growth for a long sequence, which is closed then. What was left
// of it does not come on top of MaxCacheBytes when short ones, with more pages of windows and
// states, take all there is.
func TestEngineInterruptedGrowth(t *testing.T) {
	testkit.WithoutMatrices(t)
	eachModel(t, fakemodel.Tiny(4, 0, 128), interruptedGrowth)
}

func interruptedGrowth(t *testing.T, c model.Config, records model.Records) {
	left := -1
	dev := device(t, vk.DeviceOptions{MemoryHook: failing(&left)})
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c})))
	const limit = 12 << 20
	cfg.Records = records
	long := int(7 << 40 / (cfg.CacheBytes(3<<20) - cfg.CacheBytes(2<<20))) // tokens of 7 MiB
	for n, ended := 0, true; ended; n++ {
		e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{MaxTokens: long,
			MaxSessions: 99, MaxStep: 256, CacheBytes: 6 << 20, MaxCacheBytes: limit, Records: records}))
		s := must[*pipeline.Session](t)(e.Open())
		left = n
		err := s.Advance(t.Context(), long)
		left = -1
		ended = err != nil
		require.False(t, ended && !errors.Is(err, errFull), "allocation %d: %v", n, err)
		for err = s.Close(); err == nil; {
			if s, err = e.Open(); err == nil {
				err = s.Advance(t.Context(), 16)
			}
			assert.LessOrEqual(t, e.Memory().Caches, uint64(limit), "allocation %d", n)
		}
		assert.ErrorIs(t, err, cache.ErrPoolFull)
		require.NoError(t, e.Close())
		assert.True(t, ended || n >= 10, "only %d allocations", n)
	}
}

// TestLongStepGivesBack holds that a step longer than the window ends with the pages that its
// session still needs: the next step, which looks for others, finds none.
func TestLongStepGivesBack(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, ctx := testkit.Device(t), t.Context()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0)})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 512, MaxStep: 400})
	s := must[*pipeline.Session](t)(e.Open())
	var held []uint64
	for _, n := range []int{400, 1} {
		st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: n}))
		require.NoError(t, errors.Join(st.SetInput(0, 0, make([]float32, n*cfg.Hidden)), st.Run(ctx), st.Commit()))
		held = append(held, e.Memory().Held)
	}
	assert.Positive(t, held[0])
	assert.Equal(t, held[1], held[0], "bytes of pages after 400 tokens, and after one more")
}
