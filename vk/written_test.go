package vk

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ranges say of each byte whether it was added.
func TestRanges(t *testing.T) {
	const size = 40
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var l ranges
		var bytes [size]bool
		for range 12 {
			first := rng.Uint64N(size - 1)
			r := byteRange{first, first + 1 + rng.Uint64N(min(8, size-first))}
			l.add(r)
			for i := r.first; i < r.end; i++ {
				bytes[i] = true
			}
			for i := 1; i < len(l); i++ {
				require.Less(t, l[i-1].end, l[i].first, "seed %d: %v", seed, l)
			}
			for first := range uint64(size) {
				want := true
				for end := first + 1; end <= size; end++ {
					want = want && bytes[end-1]
					if l.cover(byteRange{first, end}) != want {
						t.Fatalf("seed %d: %d to %d of %v: want %v", seed, first, end, l, want)
					}
				}
			}
		}
	}
}
