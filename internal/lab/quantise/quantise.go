// Package quantise turns weights into the stored forms FP8 (E4M3 with a scale per
// block of 128 by 128) and NVFP4 (E2M1 with an E4M3 scale per 16 columns and one f32
// for the matrix), and says how far the result can be from what went in.
//
// # What rounding costs, FP8
//
// A block with largest magnitude A has scale s = A/448, or with power-of-two scales
// the next power of two from there on: s < 2 A/448. So y = x/s is within +-448, the
// finite range, and its nearest E4M3 value differs from it by half of the distance of
// neighbours. From 2^-6 on, E4M3 has 3 bits after the leading one: neighbours in
// [2^e, 2^(e+1)) are 2^(e-3) apart, and half of that is at most 2^-4 |y|. Below,
// they are 2^-9 apart. Multiplied by s:
//
//	|x' - x| <= max(2^-4 |x|, 2^-10 s)
//
// A floor of 1e-10 under A keeps s a normal number where a block is (nearly) 0.
// On average (root mean square) the error of a magnitude in [2^e, 2^(e+1)) is
// 2^(e-3)/sqrt(12). In the Frobenius norm, |W' - W| / |W| is therefore at most 0.036,
// 0.024 where magnitudes are spread evenly between powers of two, and about 0.027 for
// normal weights (measured; the tests hold it below 0.03).
//
// # What rounding costs, NVFP4
//
// The matrix with largest magnitude M has the factor g = M/(6*448), and a block of 16
// with largest magnitude A the scale q = A/(6 g), at most 448, rounded to the nearest
// E4M3 value c; below 2^-6, where E4M3 grows coarse, it is rounded up. So c is at
// least q/(1+2^-4), and y = x/(c g) within +-6.375. The values 0, 0.5, 1, 1.5, 2, 3,
// 4, 6 are at most 0.25 from any |y| up to 1.25 and at most 0.2 |y| from any beyond,
// also from those that saturate at 6 (0.375 is less than 0.2 * 6.375). And c is at
// most (1+2^-4) q, or q + 2^-9 where it was rounded up. Multiplied by c g:
//
//	|x' - x| <= max(0.2 |x|, 0.25 c g),  c g <= 1.0625 A/6 + 2^-9 M/2688
//
// For independent normal weights the error is about 0.095 of |W| (measured; the tests
// hold it between 0.07 and 0.11).
//
// # What that does to a layer
//
// A linear layer's output y = x W^T moves by at most sum_k |x_k| |W'_k - W_k|, and,
// rounding errors being as good as independent of x and of each other, by about
// |W' - W|/|W| of its length. Errors of consecutive layers add like the sides of a
// right angle while they are small.
//
// Sources: section 3 of "FP8 Formats for Deep Learning", Micikevicius et al.; the
// scales follow weight_dequant in DeepSeek's inference/kernel.py, and the two levels
// of NVFP4 NVIDIA's Model Optimizer.
package quantise

import (
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// Sizes of the blocks that share a scale.
const (
	Side = 128 // rows and columns of an FP8 block
	Run  = 16  // columns of an NVFP4 block
)

// ErrArgument is wrapped by every error of this package: sizes that do not fit, or
// weights that are not finite.
var ErrArgument = errors.New("invalid argument")

// AMax returns the largest magnitude of w.
func AMax(w []float32) float32 {
	m := float32(0)
	for _, x := range w {
		m = max(m, float32(math.Abs(float64(x))))
	}
	return m
}

func check(op string, w []float32, n, k, multiple int) error {
	if n < 1 || k < 1 || k%multiple != 0 || len(w) != n*k {
		return fmt.Errorf("quantise: %s: %d weights for [%d, %d], of columns in multiples of %d: %w", op, len(w), n, k, multiple, ErrArgument)
	}
	for i, x := range w {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return fmt.Errorf("quantise: %s: weight %v at %d: %w", op, x, i, ErrArgument)
		}
	}
	return nil
}

// FP8 quantises a matrix [n, k] to E4M3 codes [n, k] and scales of blocks
// [ceil(n/side), ceil(k/side)], powers of two if pow2 is set. w = e4m3 * scale.
func FP8(w []float32, n, k, side int, pow2 bool) (data []byte, scales []float32, err error) {
	if err := check("fp8", w, n, k, 1); err != nil {
		return nil, nil, err
	}
	data = make([]byte, n*k)
	for r := 0; r < n; r += side {
		for c := 0; c < k; c += side {
			rows, end := min(r+side, n), min(c+side, k)
			amax := float32(0)
			for i := r; i < rows; i++ {
				amax = max(amax, AMax(w[i*k+c:i*k+end]))
			}
			s := fp8Scale(amax, pow2)
			for i := r; i < rows; i++ {
				for j := i*k + c; j < i*k+end; j++ {
					data[j] = numfmt.E4M3Encode(float32(float64(w[j]) / float64(s)))
				}
			}
			scales = append(scales, s)
		}
	}
	return data, scales, nil
}

func fp8Scale(amax float32, pow2 bool) float32 {
	if pow2 {
		return numfmt.UE8M0Scale(numfmt.UE8M0Encode(amax, numfmt.ActivationEps, numfmt.E4M3InvMax))
	}
	return max(amax, numfmt.ActivationEps) / numfmt.E4M3Max
}

// FP8Bound returns the largest possible error of a weight x in a block with largest
// magnitude amax, whichever scales are used.
func FP8Bound(x, amax float32) float64 {
	s := 2 * math.Max(float64(amax), float64(numfmt.ActivationEps)) / numfmt.E4M3Max
	return slack * math.Max(math.Abs(float64(x))/16, s/1024)
}

// slack covers the float32 roundings of scales and of their products.
const slack = 1 + 1.0/(1<<20)

// NVFP4 quantises a matrix [n, k] to pairs of E2M1 codes [n, k/2], the even column
// in the low nibble, E4M3 scales [n, k/16] and a factor. amax is the largest magnitude
// that the factor has to serve: that of w, or of several matrices that are to share
// it. w = e2m1 * e4m3 * global.
func NVFP4(w []float32, n, k int, amax float32) (data, scales []byte, global float32, err error) {
	if err := check("nvfp4", w, n, k, Run); err != nil {
		return nil, nil, 0, err
	}
	if !(amax >= AMax(w) && amax <= math.MaxFloat32) {
		return nil, nil, 0, fmt.Errorf("quantise: nvfp4: largest magnitude %v, of these weights %v: %w", amax, AMax(w), ErrArgument)
	}
	global = max(amax/(numfmt.E2M1Max*numfmt.E4M3Max), 0x1p-126)
	if amax == 0 {
		global = 1
	}
	data, scales = make([]byte, n*k/2), make([]byte, n*k/Run)
	for b := range scales {
		block := w[b*Run : (b+1)*Run]
		scales[b] = nvfp4Scale(float64(AMax(block)) / (numfmt.E2M1Max * float64(global)))
		s := float64(numfmt.E4M3Decode(scales[b])) * float64(global)
		if s == 0 {
			continue
		}
		for i := 0; i < Run; i += 2 {
			even, odd := numfmt.E2M1Encode(float32(float64(block[i])/s)), numfmt.E2M1Encode(float32(float64(block[i+1])/s))
			data[(b*Run+i)/2] = numfmt.E2M1Pack(even, odd)
		}
	}
	return data, scales, global, nil
}

func nvfp4Scale(q float64) byte {
	if q < 1.0/64 {
		return byte(math.Ceil(q * 512)) // codes of 2^-9 each, up to that of 2^-6
	}
	return numfmt.E4M3Encode(float32(q))
}

// NVFP4Bound returns the largest possible error of a weight x in a block with largest
// magnitude block, of matrices with largest magnitude amax.
func NVFP4Bound(x, block, amax float32) float64 {
	g := math.Max(float64(amax)/(numfmt.E2M1Max*numfmt.E4M3Max), 0x1p-126)
	return slack * math.Max(0.2*math.Abs(float64(x)), 0.25*(1.0625*float64(block)/numfmt.E2M1Max+g/512))
}
