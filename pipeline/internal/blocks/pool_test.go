package blocks

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/vk"
)

func newPool(t *testing.T, n int) *Pool {
	t.Helper()
	p, err := NewPool(n)
	require.NoError(t, err)
	return p
}

func TestPoolAllOrNothing(t *testing.T) {
	p := newPool(t, 5)
	got, err := p.Alloc(3)
	require.NoError(t, err, "Alloc(3) = %v", got)
	require.Equal(t, 3, len(got), "Alloc(3) = %v", got)
	require.Equal(t, 2, p.Free(), "Alloc(3) = %v", got)
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"more than free":         {func() error { _, err := p.Alloc(3); return err }, cache.ErrPoolFull},
		"negative":               {func() error { _, err := p.Alloc(-1); return err }, vk.ErrArgument},
		"release of a free page": {func() error { return p.Release(got[0], 4) }, ErrDoubleFree},
		"release once too often": {func() error { return p.Release(got[0], got[1], got[0]) }, ErrDoubleFree},
		"release beyond":         {func() error { return p.Release(got[0], 5) }, ErrForeignBlock},
		"release of -1":          {func() error { return p.Release(got[0], -1) }, ErrForeignBlock},
		"retain of a free page":  {func() error { return p.Retain(got[0], 4) }, ErrForeignBlock},
		"retain beyond":          {func() error { return p.Retain(got[0], 99) }, ErrForeignBlock},
	} {
		assert.ErrorIs(t, c.do(), c.want, name)
		require.Equal(t, 2, p.Free(), "%s: changed the pool", name)
		require.Equal(t, 1, p.Refs(got[0]), "%s: changed the pool", name)
		require.Equal(t, 1, p.Refs(got[1]), "%s: changed the pool", name)
	}
	err = p.Retain(got[0], got[0])
	require.NoError(t, err, "Retain twice")
	require.Equal(t, 3, p.Refs(got[0]), "Retain twice")
	err = p.Release(got[0], got[0], got[0])
	require.NoError(t, err, "Release of three holders at once")
	require.Equal(t, 3, p.Free(), "Release of three holders at once")
	require.Equal(t, 0, p.Refs(got[0]), "Release of three holders at once")
	_, err = NewPool(-1)
	assert.ErrorIs(t, err, vk.ErrArgument, "NewPool(-1)")
}

// A pool against a plain map of holders, under random calls, good and bad.
func FuzzPool(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		capacity := rng.IntN(20)
		p, model := newPool(t, capacity), map[int32]int{}
		for range 400 {
			ids := make([]int32, rng.IntN(4))
			for i := range ids {
				ids[i] = int32(rng.IntN(capacity+2)) - 1
			}
			switch rng.IntN(3) {
			case 0:
				n := rng.IntN(6)
				got, err := p.Alloc(n)
				require.False(t, (n <= capacity-len(model)) != (err == nil) ||
					err != nil && !errors.Is(err, cache.ErrPoolFull),
					"Alloc(%d) with %d of %d held: %v", n, len(model), capacity, err)
				for _, b := range got {
					if model[b] != 0 || b < 0 || int(b) >= capacity {
						t.Fatalf("Alloc gave page %d, held %d times", b, model[b])
					}
					model[b] = 1
				}
			case 1:
				ok := true
				for _, b := range ids {
					ok = ok && model[b] > 0
				}
				if err := p.Retain(ids...); ok != (err == nil) {
					t.Fatalf("Retain(%v): %v, model %v", ids, err, model)
				} else if ok {
					for _, b := range ids {
						model[b]++
					}
				}
			case 2:
				count := map[int32]int{}
				ok := true
				for _, b := range ids {
					count[b]++
					ok = ok && model[b] >= count[b]
				}
				if err := p.Release(ids...); ok != (err == nil) {
					t.Fatalf("Release(%v): %v, model %v", ids, err, model)
				} else if ok {
					for b, n := range count {
						if model[b] -= n; model[b] == 0 {
							delete(model, b)
						}
					}
				}
			}
			require.Equal(t, capacity-len(model), p.Free(), "free")
			for b := range int32(capacity) {
				if p.Refs(b) != model[b] {
					t.Fatalf("page %d has %d holders, want %d", b, p.Refs(b), model[b])
				}
			}
		}
	})
}

func TestPoolConcurrent(t *testing.T) {
	p := newPool(t, 64)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				got, err := p.Alloc(8)
				if err != nil {
					t.Error(err)
					return
				}
				assert.NoError(t, errors.Join(p.Retain(got...), p.Release(got...), p.Release(got...)))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 64, p.Free(), "pages free at the end")
}
