package projection

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// QuantiseRef is the definition of Quantise on host memory, for x [T, groups, k] bf16. With amax
// the largest magnitude of a block, for the formats of FP8 and block b of 128 numbers, and for
// MXFP8 and block b of 32, with least = 1e-10, and 1e-4 for MXFP8,
//
//	sb = 127 + ceil(log2(max(amax, least)/448))
//	codes[g][t][i] = e4m3(x / 2^(sb-127)),  scales[g][b][t] = sb
//
// and for NVFP4 and block b of 16 numbers, with inverse = f32(1/inputScale),
//
//	s = e4m3(inverse * (amax * f32(1/6)))
//	codes[g][t][i] = e2m1(f32(x * inverse) / s),  scales[g][t][b] = s
//
// where every product is rounded to f32 and the quotient is not; it counts as 0, with the sign of
// x, where s is 0. A block with a NaN has s = NaN, or sb = 255, which an infinity gives too: what a
// product makes of it is no number.
//
// It writes codes [groups, T, k], of NVFP4 [groups, T, k/2], and scales: for FP8 the UE8M0 bytes
// [groups, k/128, T], of MXFP8 [groups, k/32, T], which the formats spell as numbers or pack four
// by four, for NVFP4 [groups, T, k/16]. The error is a *vk.ArgumentError, and then nothing was
// written.
func QuantiseRef(format ActivationFormat, x []uint16, groups, k int, inputScale float32, codes, scales []byte) error {
	const op = "quantise reference"
	if err := checkQuantise(op, format, groups, k); err != nil {
		return err
	}
	is, T := format.row(), len(x)/(groups*k)
	if len(x)%(groups*k) != 0 || len(codes) != len(x)*16/is.quad || len(scales) != len(x)/is.amaxOf {
		return pkg.Wrong(op, "x, codes, scales", fmt.Sprintf("%d, %d, %d elements", len(x), len(codes), len(scales)),
			"%d, %d, %d", T*groups*k, T*groups*k*16/is.quad, T*groups*k/is.amaxOf)
	}
	if err := checkInputScale(op, format, inputScale); err != nil {
		return err
	}
	for i := range len(x) / is.amaxOf {
		t, g, b := i/(groups*k/is.amaxOf), i%(groups*k/is.amaxOf)/(k/is.amaxOf), i%(k/is.amaxOf)
		block, amax := numfmt.BF16DecodeSlice(nil, x[i*is.amaxOf:][:is.amaxOf]), float32(0)
		for _, v := range block {
			amax = max(amax, v, -v)
		}
		first := ((g*T+t)*k + b*is.amaxOf) * 16 / is.quad
		if format == ActivationNVFP4 {
			scales[(g*T+t)*(k/is.amaxOf)+b] = nvfp4Block(block, amax, inputScale, codes[first:])
			continue
		}
		sb := numfmt.UE8M0Encode(amax, is.least, numfmt.E4M3InvMax)
		if amax != amax {
			sb = 255
		}
		for d, v := range block {
			codes[first+d] = numfmt.E4M3Encode(v * numfmt.UE8M0Inverse(sb))
		}
		scales[(g*(k/is.amaxOf)+b)*T+t] = sb
	}
	return nil
}

// nvfp4Block writes the codes of a block and returns that of its scale.
func nvfp4Block(block []float32, amax, inputScale float32, codes []byte) byte {
	inverse := 1 / inputScale
	scale := numfmt.E4M3Encode(inverse * float32(amax*numfmt.E2M1InvMax))
	for d, v := range block {
		code := nvfp4Code(float32(v*inverse), numfmt.E4M3Decode(scale))
		if d%2 == 1 {
			code = numfmt.E2M1Pack(codes[d/2], code)
		}
		codes[d/2] = code
	}
	return scale
}

// nvfp4Code is the code nearest to v/s, of two the even one, with the sign of v. float64 has the
// bits to tell a quotient between two codes from one beside it.
func nvfp4Code(v, s float32) byte {
	if s != s {
		return numfmt.E2M1Encode(s)
	}
	sign, quotient := numfmt.E2M1Encode(v)&8, 0.0
	if s != 0 {
		quotient = min(math.Abs(float64(v))/float64(s), numfmt.E2M1Max)
	}
	var best byte
	least := math.Inf(1)
	for code := range byte(8) {
		far := math.Abs(quotient - float64(numfmt.E2M1Decode(code)))
		if far < least || far == least && code%2 == 0 {
			best, least = code, far
		}
	}
	return best | sign
}
