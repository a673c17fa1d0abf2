package fakemodel

import (
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// largest returns the largest magnitude of w.
func largest(w []float32) (most float32) {
	for _, x := range w {
		most = max(most, float32(math.Abs(float64(x))))
	}
	return most
}

// fp8 quantises a matrix [n, k] to E4M3 codes [n, k] and scales of blocks
// [ceil(n/side), ceil(k/side)], powers of two if pow2 is set, as weight_dequant in DeepSeek's
// inference/kernel.py takes them: w = e4m3 * scale.
func fp8(w []float32, n, k, side int, pow2 bool) (data []byte, scales []float32) {
	data = make([]byte, n*k)
	for r := 0; r < n; r += side {
		for c := 0; c < k; c += side {
			rows, end := min(r+side, n), min(c+side, k)
			amax := float32(0)
			for i := r; i < rows; i++ {
				amax = max(amax, largest(w[i*k+c:i*k+end]))
			}
			s := max(amax, numfmt.ActivationEps) / numfmt.E4M3Max
			if pow2 {
				s = numfmt.UE8M0Scale(numfmt.UE8M0Encode(amax, numfmt.ActivationEps, numfmt.E4M3InvMax))
			}
			for i := r; i < rows; i++ {
				for j := i*k + c; j < i*k+end; j++ {
					data[j] = numfmt.E4M3Encode(float32(float64(w[j]) / float64(s)))
				}
			}
			scales = append(scales, s)
		}
	}
	return data, scales
}

// nvfp4 quantises a matrix to pairs of E2M1 codes, the even column in the low nibble, an E4M3 scale
// for every 16 columns, and a factor for magnitudes up to amax, as NVIDIA's Model Optimizer does:
// w = e2m1 * e4m3 * global.
func nvfp4(w []float32, amax float32) (data, scales []byte, global float32) {
	const run = 16
	global = max(amax/(numfmt.E2M1Max*numfmt.E4M3Max), 0x1p-126)
	data, scales = make([]byte, len(w)/2), make([]byte, len(w)/run)
	for b := range scales {
		block := w[b*run:][:run]
		if q := float64(largest(block)) / (numfmt.E2M1Max * float64(global)); q < 1.0/64 {
			scales[b] = byte(math.Ceil(q * 512)) // codes of 2^-9 each, up to that of 2^-6
		} else {
			scales[b] = numfmt.E4M3Encode(float32(q))
		}
		s := float64(numfmt.E4M3Decode(scales[b])) * float64(global)
		if s == 0 {
			continue
		}
		for i := 0; i < run; i += 2 {
			even, odd := numfmt.E2M1Encode(float32(float64(block[i])/s)), numfmt.E2M1Encode(float32(float64(block[i+1])/s))
			data[(b*run+i)/2] = numfmt.E2M1Pack(even, odd)
		}
	}
	return data, scales, global
}
