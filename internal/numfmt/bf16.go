package numfmt

import "math"

// BF16Encode rounds x to the nearest bf16, ties to even, and returns its 16
// bits. A finite x beyond the largest bf16 becomes an infinity; a NaN keeps
// its sign and upper payload bits and is made quiet.
func BF16Encode(x float32) uint16 {
	u := math.Float32bits(x)
	if u&0x7FFFFFFF > 0x7F800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7FFF + (u>>16)&1) >> 16)
}

// BF16Decode returns the value of 16 bf16 bits. It is exact.
func BF16Decode(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// BF16Round is the value that a trip through bf16 leaves of x.
func BF16Round(x float32) float32 { return BF16Decode(BF16Encode(x)) }

// BF16EncodeSlice writes the bf16 bits of src to dst, which must be at least
// as long, and returns the part of dst that was written. A nil dst is
// allocated.
func BF16EncodeSlice(dst []uint16, src []float32) []uint16 {
	if dst == nil {
		dst = make([]uint16, len(src))
	}
	for i, x := range src {
		dst[i] = BF16Encode(x)
	}
	return dst[:len(src)]
}

// BF16DecodeSlice writes the values of the bf16 bits in src to dst, which must
// be at least as long, and returns the part of dst that was written. A nil dst
// is allocated.
func BF16DecodeSlice(dst []float32, src []uint16) []float32 {
	if dst == nil {
		dst = make([]float32, len(src))
	}
	for i, b := range src {
		dst[i] = BF16Decode(b)
	}
	return dst[:len(src)]
}
