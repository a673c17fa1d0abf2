package numfmt

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The scale is the E4M3 number nearest to the quotient, for every bf16 maximum.
func TestFP4Scale(t *testing.T) {
	for b := range 0x7F80 {
		amax := BF16Decode(uint16(b))
		q := max(float64(amax), 6*0x1p-9) / 6
		if got, want := FP4Scale(amax), byte(nearest(min(q, 448), 127, e4m3Value)); got != want {
			t.Fatalf("amax %g: got 0x%02x, want 0x%02x", amax, got, want)
		}
	}
	for amax, want := range map[float32]byte{0: 0x01, 6: 0x38, 6.3125: 0x38, 6.5: 0x39, 2688: 0x7E, 1e30: 0x7E} {
		assert.Equal(t, want, FP4Scale(amax), "amax %g", amax)
	}
}

// The code is the E2M1 number nearest to the exact quotient: for every scale, at the midpoints and
// numbers of the format, the bf16 next to them, and one of every 16 bf16.
func TestFP4Encode(t *testing.T) {
	value := func(c int) float64 { return float64(E2M1Decode(byte(c))) }
	for sb := byte(1); sb < 0x7F; sb++ {
		s := E4M3Decode(sb)
		check := func(b uint16) {
			x := BF16Decode(b)
			// Up to where codes saturate differences of x and multiples of s are exact.
			want := nearest(min(float64(x), 7*float64(s)), 8, func(c int) float64 { return value(c) * float64(s) })
			if got := FP4Encode(x, s); got != byte(want) {
				t.Fatalf("%g under scale %g: got %d, want %d", x, s, got, want)
			}
			if got := FP4Encode(-x, s); got != byte(want)|8 {
				t.Fatalf("%g under scale %g: got %d, want %d", -x, s, got, want|8)
			}
		}
		for b := 0; b < 0x7F80; b += 16 {
			check(uint16(b))
		}
		for _, m := range []float32{0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6} {
			b := BF16Encode(m * s)
			check(b)
			check(b + 1)
			if b > 0 {
				check(b - 1)
			}
		}
	}
	assert.Equal(t, byte(7), FP4Encode(float32(math.NaN()), 1), "NaN")
	assert.Equal(t, byte(8), FP4Encode(float32(math.Copysign(0, -1)), 1), "-0")
}

// A dequantised number needs no rounding: for every code and scale the product is a bf16 value.
func TestFP4Exact(t *testing.T) {
	for sb := byte(1); sb < 0x7F; sb++ {
		for code := range byte(16) {
			x := E2M1Decode(code) * E4M3Decode(sb)
			assert.Equal(t, x, BF16Round(x), "code %d, scale 0x%02x", code, sb)
		}
	}
}
