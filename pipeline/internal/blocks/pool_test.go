package blocks

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
)

// A pool against a plain map of holders, under random calls.
func FuzzPool(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		capacity := rng.IntN(20)
		p, model := NewPool(capacity), map[int32]int{}
		for range 400 {
			var ids []int32 // of pages that are held
			for _, b := range slices.Sorted(maps.Keys(model)) {
				if rng.IntN(3) == 0 {
					ids = append(ids, b)
				}
			}
			switch rng.IntN(3) {
			case 0:
				n := rng.IntN(6)
				got, err := p.take(nil, n)
				if n > capacity-len(model) {
					require.ErrorIs(t, err, cache.ErrPoolFull)
					continue
				}
				require.NoError(t, err)
				require.Len(t, got, n)
				for _, b := range got {
					require.True(t, model[b] == 0 && b >= 0 && int(b) < capacity, "page %d, held %d times", b, model[b])
					model[b] = 1
				}
			case 1:
				p.Retain(ids...)
				for _, b := range ids {
					model[b]++
				}
			case 2:
				p.Release(ids...)
				for _, b := range ids {
					if model[b]--; model[b] == 0 {
						delete(model, b)
					}
				}
			}
			require.Equal(t, capacity-len(model), p.Free(), "free")
			for b := range int32(capacity) {
				require.Equal(t, model[b], p.Refs(b), "holders of page %d", b)
			}
		}
	})
}

// A pool shrinks to the last page that is held, and pages that were free there are not handed out.
func TestPoolShrink(t *testing.T) {
	p := NewPool(8)
	x := NewTable(p, 4)
	grow(t, x, 20)
	x.Recycle(8)
	assert.Equal(t, 5, p.Least())
	assert.Equal(t, 0, NewPool(3).Least())
	p.Shrink(6)
	assert.True(t, p.Capacity() == 6 && p.Free() == 3 && p.Refs(4) == 1 && p.Refs(5) == 0, "%v %v", p.Capacity(), p.Free())
	got, err := p.take(nil, 3)
	slices.Sort(got)
	assert.NoError(t, err)
	assert.Equal(t, []int32{0, 1, 5}, got)
	p.Grow(7)
	require.Equal(t, 1, p.Free())
	assert.Equal(t, 6, p.Least())
}
