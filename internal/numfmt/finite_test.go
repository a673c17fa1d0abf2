package numfmt

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSpecial finds an infinite element or none in every place, among any others.
func TestSpecial(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, s := range []Special{SpecialF64, SpecialF32, SpecialBF16, SpecialF16, SpecialE4M3, SpecialUE8M0} {
		for n := 1; n < 40; n++ {
			data := make([]byte, n*s.Bytes)
			put := func(i int, v uint64) {
				for k := range s.Bytes {
					data[i*s.Bytes+k] = byte(v >> (8 * k))
				}
			}
			for i := range n {
				v := rng.Uint64()
				put(i, v&^(s.Mask&-s.Mask)) // a bit of the mask is missing
			}
			at, _ := s.Find(data)
			require.Equal(t, -1, at, "%+v", s)
			for i := range n {
				old := append([]byte{}, data...)
				put(i, rng.Uint64()|s.Mask)
				at, bits := s.Find(data)
				require.Equal(t, i, at, "%+v of %d", s, n)
				require.Equal(t, s.Mask, bits&s.Mask)
				copy(data, old)
			}
		}
	}
}
