package numfmt

import "math"

// F16Encode rounds x to the nearest IEEE binary16, ties to even, subnormals
// included, and returns its 16 bits. Beyond 65504 (from 65520 on) the result is
// an infinity; a NaN keeps its sign and becomes quiet.
func F16Encode(x float32) uint16 {
	u := math.Float32bits(x)
	sign := uint16(u >> 16 & 0x8000)
	a := u & 0x7FFFFFFF
	switch {
	case a > 0x7F800000:
		return sign | 0x7E00 | uint16(a>>13&0x3FF)
	case a >= 0x477FF000: // 65520, the tie between 65504 and 65536
		return sign | 0x7C00
	case a < 0x38800000: // below 2^-14: a multiple of 2^-24
		// The product is exact, and RoundToEven decides the tie.
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(a))*(1<<24)))
	}
	a += 0xFFF + a>>13&1
	return sign | uint16(a>>13-(127-15)<<10)
}

// F16Decode returns the value of 16 binary16 bits. It is exact.
func F16Decode(b uint16) float32 {
	sign := uint32(b&0x8000) << 16
	e, m := uint32(b>>10&0x1F), uint32(b&0x3FF)
	switch e {
	case 0:
		v := float32(m) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	case 31:
		return math.Float32frombits(sign | 0x7F800000 | m<<13)
	}
	return math.Float32frombits(sign | (e+127-15)<<23 | m<<13)
}
