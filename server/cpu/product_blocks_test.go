package cpu

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
)

// TestBlocks compares products of GGUF's formats with the definition. Weights have more digits than
// bf16, so sums know whether they were fused.
func TestBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	const n, k, tokens = 21, 768, 5
	for _, format := range []string{"F16", "Q8_0", "Q4_0", "Q5_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ2_XXS", "IQ2_XS",
		"IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"} {
		m := &weights.Matrix{Format: weights.Blocks, N: n, K: k, Stored: gguf.FormatNamed(format), Factor: 2,
			Data: fakegguf.Random(rng, "a", format, n, k).Data}
		var in rows
		in.reset(tokens, k, m.Format)
		x := make([][]float32, tokens)
		for i := range x {
			for range k {
				x[i] = append(x[i], numfmt.BF16Round(float32(rng.NormFloat64())))
			}
			in.set(i, 0, x[i])
		}
		const first, end, poison = 3, n - 1, 1e30
		take := []int32{4, 0, 0, 2, 1}
		y := make([]float32, len(take)*n)
		for i := range y {
			y[i] = poison
		}
		product(m, &in, take, first, end, y, n)
		for i, token := range take {
			for r := range n {
				if got := y[i*n+r]; r < end-first {
					want := ProductRef(m, first+r, x[token])
					assert.InDelta(t, want, got, 1e-4*max(1, float64(max(want, -want))), "%s: row %d of token %d", format, first+r, token)
				} else {
					assert.Equal(t, float32(poison), got, "%s: beyond the rows", format)
				}
			}
		}
	}
}
