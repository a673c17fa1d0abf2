package numfmt

import "math"

// E2M1Max is the largest E2M1 value.
const E2M1Max = 6

var e2m1Values = [8]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}

// E2M1Encode rounds x to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the
// even code, and returns the code in bits 0..2 with the sign in bit 3. It
// saturates at 6 and keeps the sign of zeros and of values that round to zero.
// A NaN becomes +6, as the saturating hardware conversion does.
func E2M1Encode(x float32) byte {
	u := math.Float32bits(x)
	sign, a := byte(u>>28&8), u&0x7FFFFFFF
	switch {
	case a > 0x7F800000:
		return 7
	case a < 0x3F800000: // below 1: a multiple of 0.5, the last place of 2^22
		return sign | byte(math.Float32bits(math.Float32frombits(a)+0x1p22))
	}
	// From 1, code 2, on: the exponent and one bit behind the point, ties to the even code.
	return sign | byte(min((a+0x1FFFFF+a>>22&1)>>22-252, 7))
}

// E2M1Decode returns the value of the low four bits of b.
func E2M1Decode(b byte) float32 {
	v := e2m1Values[b&7]
	return math.Float32frombits(math.Float32bits(v) | uint32(b&8)<<28)
}

// E2M1Pack puts the code of an even element in the low and that of the
// following odd element in the high nibble.
func E2M1Pack(even, odd byte) byte { return even&15 | odd<<4 }

// E2M1Unpack takes apart what E2M1Pack put together.
func E2M1Unpack(b byte) (even, odd byte) { return b & 15, b >> 4 }
