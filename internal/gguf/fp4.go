package gguf

import (
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// fp4Codes are the values of E2M1 doubled, with one zero only.
var fp4Codes = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// mxfp4Most is the largest scale of MXFP4 whose products are all numbers of f32.
const mxfp4Most = 252

// MXFP4: 32 values in 17 bytes: u8 e; u8 q[16] of E2M1 codes, value j in the low nibble of q[j],
// value j + 16 in the high one.
//
//	x = 2^(e - 128) * code
func mxfp4(dst []float32, b []byte) {
	d, q := math.Float32frombits(0x00200000<<b[0]), b[1:] // a subnormal below 2^-126
	if b[0] > 1 {
		d = math.Float32frombits(uint32(b[0]-1) << 23)
	}
	for j := range 16 {
		dst[j] = d * fp4Codes[q[j]&15]
		dst[j+16] = d * fp4Codes[q[j]>>4]
	}
}

func mxfp4Finite(b []byte) bool { return b[0] <= mxfp4Most }

// NVFP4: 64 values in 36 bytes: u8 d[4], E4M3 without a sign, for 16 values each; u8 q[32] of E2M1
// codes: of 16 values those from 0 to 7 in the low nibbles of 8 bytes, the others in the high ones.
//
//	x = d / 2 * code
//
// A d of 0x7F counts as 0. A tensor NAME.weight may have a further factor beside it, NAME.scale.
func nvfp4(dst []float32, b []byte) {
	for i, code := range b[:4] {
		d, q, x := ue4m3(code)/2, b[4+8*i:], dst[16*i:]
		for j := range 8 {
			x[j] = d * fp4Codes[q[j]&15]
			x[j+8] = d * fp4Codes[q[j]>>4]
		}
	}
}

func ue4m3(b byte) float32 {
	if b == 0x7F {
		return 0
	}
	return numfmt.E4M3Decode(b & 0x7F)
}
