package numfmt

import "math"

// FP4ScaleMin is the least scale of a block of E2M1 codes with an E4M3 scale, byte 1.
const FP4ScaleMin float32 = 0x1p-9

// FP4Scale returns the E4M3 scale byte of a block of E2M1 codes whose absolute maximum is amax:
// max(amax, 6*2^-9)/6 rounded to nearest, saturated at 448. It is no power of two, and since it is
// rounded, amax may lie beyond six scales. The product with fp32(1/6) gives the byte of the
// quotient for every bf16 amax.
func FP4Scale(amax float32) byte {
	return E4M3Encode(max(amax, E2M1Max*FP4ScaleMin) * E2M1InvMax)
}

// FP4Encode rounds x/s to the nearest E2M1 value, ties to the even code, saturated at 6, for a
// scale s that E4M3 has. It divides nothing: a code counts the midpoints of E2M1 that lie below
// |x|/s, and midpoint times s is exact. The sign of zeros is kept; a NaN becomes +6.
func FP4Encode(x, s float32) byte {
	u := math.Float32bits(x)
	a := math.Float32frombits(u & 0x7FFFFFFF)
	if a != a {
		return 7
	}
	code := byte(u >> 28 & 8)
	for i, m := range [7]float32{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5} {
		if a > m*s || a == m*s && i%2 == 1 {
			code++
		}
	}
	return code
}
