package projection

import (
	"encoding/binary"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// LinearHost holds the operands of LinearArgs in host memory, little-endian, in the same shapes (G
// is Groups), for LinearRef.
type LinearHost struct {
	T, Groups, N, K int
	Weights         Format
	Activations     ActivationFormat
	X               []byte    // [T, G, K] bf16; FP8: [G, T, K] E4M3; NVFP4: [G, T, K/2]
	XScale          []byte    // FP8: [G, K/128, ScalePitch] f32; packed, MXFP8: [G, K/512 or K/128, ScalePitch] words; NVFP4: [G, T, K/16]
	Data            []byte    // [G*N, K] bf16 or E4M3; NVFP4: [G*N, K/2]
	Scale           []byte    // FP8: [ceil(G*N/128), ceil(K/128)] f32 or UE8M0, or of 32; NVFP4: [G*N, K/16] E4M3; else none
	RowScale        []float32 // NVFP4 and FP8 by rows: [G*N]; else none
	ScalePitch      int       // FP8: tokens of a row of XScale, at least T
}

// LinearRef is the definition of Linear: for every token t, group g and 0 <= n < N it
// writes
//
//	out[(t*G + g)*N + n] = sum_k x[t][g][k] * w[g*N + n][k]
//
// with every number and the sum in float64, to be rounded to the type of the output.
//
// Errors: vk.ErrArgument for slices that do not have the sizes that follow from each
// other.
func LinearRef(h LinearHost, out []float64) error {
	if err := h.check(out); err != nil {
		return err
	}
	w := make([][]float64, h.Groups*h.N)
	for row := range w {
		w[row] = make([]float64, h.K)
		for k := range h.K {
			w[row][k] = h.Weight(row, k)
		}
	}
	x := make([]float64, h.K)
	for t := range h.T {
		for g := range h.Groups {
			for k := range x {
				x[k] = h.Activation(t, g, k)
			}
			for n := range h.N {
				var sum float64
				for k, v := range w[g*h.N+n] {
					sum += x[k] * v
				}
				out[(t*h.Groups+g)*h.N+n] = sum
			}
		}
	}
	return nil
}

// Weight is number k of a row of weights, of all groups.
func (h *LinearHost) Weight(row, k int) float64 {
	f := h.Weights.row()
	v := f.value(f, h, row, k)
	if len(h.RowScale) > 0 {
		v *= float64(h.RowScale[row])
	}
	return v
}

// Activation is number k of a token in a group.
func (h *LinearHost) Activation(t, g, k int) float64 {
	if h.Activations == ActivationBF16 {
		return float64(numfmt.BF16Decode(binary.LittleEndian.Uint16(h.X[2*((t*h.Groups+g)*h.K+k):])))
	}
	if h.Activations == ActivationNVFP4 {
		return nvfp4(h.X, h.XScale, (g*h.T+t)*h.K+k)
	}
	code := float64(numfmt.E4M3Decode(h.X[(g*h.T+t)*h.K+k]))
	kb, is := k/h.Activations.row().amaxOf, h.Activations.row()
	if is.block != is.amaxOf {
		word := h.XScale[4*((g*(h.K/is.block)+kb/4)*h.ScalePitch+t):]
		return code * float64(numfmt.UE8M0Scale(word[kb%4]))
	}
	return code * float64(math.Float32frombits(binary.LittleEndian.Uint32(h.XScale[4*((g*(h.K/ScaleBlock)+kb)*h.ScalePitch+t):])))
}

// check proves that the slices fit each other.
func (h LinearHost) check(out []float64) error {
	const op = "linear ref"
	if h.T < 0 || h.Groups < 1 || h.N < 1 || h.K < 1 || !h.Weights.Known() {
		return pkg.Wrong(op, "sizes", []int{h.T, h.Groups, h.N, h.K, int(h.Weights)}, "positive sizes and a format")
	}
	rows, numbers := h.Groups*h.N, h.T*h.Groups*h.K
	w := h.Weights.Shapes(rows, h.K)
	x, xScale := 2*numbers, 0
	switch h.Activations {
	case ActivationFP8:
		x, xScale = numbers, 4*h.Groups*(h.K/ScaleBlock)*h.ScalePitch
	case ActivationFP8Packed, ActivationMXFP8:
		x, xScale = numbers, 4*h.Groups*(h.K/h.Activations.row().block)*h.ScalePitch
	case ActivationNVFP4:
		x, xScale = numbers/2, numbers/nvBlock
	}
	for _, s := range []struct {
		name      string
		got, want int
	}{
		{"Data", len(h.Data), int(w.Data.Bytes())}, {"Scale", len(h.Scale), int(w.Scale.Bytes())},
		{"RowScale", 4 * len(h.RowScale), int(w.RowScale.Bytes())},
		{"X", len(h.X), x}, {"XScale", len(h.XScale), xScale}, {"out", len(out), h.T * rows},
	} {
		if s.got != s.want {
			return pkg.Wrong(op, s.name, s.got, "%d", s.want)
		}
	}
	return nil
}
