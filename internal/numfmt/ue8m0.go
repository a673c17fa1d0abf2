package numfmt

import "math"

// Constants of the two UE8M0 encoders in use: the floor put under a block's
// absolute maximum, and the reciprocal of the largest element, both as the
// float32 values that the upstream kernels multiply with.
const (
	E4M3InvMax float32 = 1.0 / 448 // bits 0x3B124925
	E2M1InvMax float32 = 1.0 / 6   // bits 0x3E2AAAAB

	KCacheEps     float32 = 1e-4         // K cache and FP8 indexer, bits 0x38D1B717
	ActivationEps float32 = 1e-10        // activations and attention output, bits 0x2EDBE6FF
	MXFP4Eps      float32 = 6 * 0x1p-126 // MXFP4 blocks, bits 0x01C00000
)

// UE8M0Encode returns the scale byte of a block whose absolute maximum is
// amax: the smallest power of two that is not below max(amax, eps)*invMax, as
// exponent + 127. The product is one float32 multiplication, and the power of
// two is found from its bits; an exact power of two is not raised. An infinite
// amax gives 255; a NaN gives no meaningful byte.
func UE8M0Encode(amax, eps, invMax float32) byte {
	r := max(amax, eps) * invMax
	return byte((math.Float32bits(r) + 0x007FFFFF) >> 23)
}

// UE8M0Scale returns 2^(s-127). Byte 0 is the subnormal 2^-127 and byte 255 is
// +Inf; no cache that this project writes contains either.
func UE8M0Scale(s byte) float32 {
	if s == 0 {
		return math.Float32frombits(0x00400000)
	}
	return math.Float32frombits(uint32(s) << 23)
}

// UE8M0Inverse returns 2^(127-s), which is exact for s in 1..253. From the bits
// (254-s)<<23 it follows that byte 254 gives 0; byte 255 is clamped to 0 too.
func UE8M0Inverse(s byte) float32 {
	if s == 255 {
		return 0
	}
	return math.Float32frombits((254 - uint32(s)) << 23)
}
