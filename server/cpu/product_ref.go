package cpu

import (
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
)

// ProductRef is row r of a matrix times x [K]: the definition, with the sum's order, but for blocks
// of GGUF that are multiplied by whole numbers (whole.go, blocks_body.h). Columns go by blocks of
// 128. In a block, 16 lanes add up 8 products each; MXFP4 gives lane i the columns 8i to 8i+7,
// other formats the columns i, i+16 and on. Lanes are multiplied by their scale and added to the
// sum of theirs. At the end lanes 8 apart are added, then 4, 2 and 1.
func ProductRef(m *weights.Matrix, r int, x []float32) float32 {
	w, scale := make([]float32, m.K), make([]float32, m.K)
	unscaled(m, r, w, scale)
	var sum [16]float32
	for c := 0; c < m.K; c += blockColumns {
		var part, s [16]float32
		for j := range 8 {
			for i := range 16 {
				at := c + 16*j + i
				if m.Format == weights.MXFP4 {
					at = c + 8*i + j
				}
				if at < m.K {
					part[i] += w[at] * x[at]
					s[i] = scale[at]
				}
			}
		}
		for i := range sum {
			sum[i] += s[i] * part[i]
		}
	}
	for n := 8; n > 0; n /= 2 {
		for i := range n {
			sum[i] += sum[i+n]
		}
	}
	return sum[0]
}

// unscaled decodes a row to numbers and the scales that they are to be multiplied by.
func unscaled(m *weights.Matrix, r int, w, scale []float32) {
	m.Row(w, r)
	for c := range w {
		scale[c] = 1
		switch m.Format {
		case weights.MXFP4:
			scale[c] = numfmt.UE8M0Scale(m.Scales[(r*m.K+c)/weights.MXBlock])
			w[c] = numfmt.E2M1Decode(m.Data[(r*m.K+c)/2] >> (4 * (c % 2)))
		case weights.FP8:
			scale[c] = m.BlockScales[r/m.Side*((m.K+127)/128)+c/128]
			w[c] = numfmt.E4M3Decode(m.Data[r*m.K+c])
		}
	}
}
