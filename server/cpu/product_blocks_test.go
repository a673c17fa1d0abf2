package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// inC are the formats that C decodes.
var inC = []string{"Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ2_XXS",
	"IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}

// TestDecode compares every build with the definition, bit by bit, for random blocks of finite
// values: each code and each f16 occurs, subnormal ones and the largest included.
func TestDecode(t *testing.T) {
	have := instructions
	defer func() { instructions = have }()
	rng := rand.New(rand.NewPCG(5, 1))
	const blocks = 1 << 13
	for _, name := range inC {
		f := gguf.FormatNamed(name)
		var src []byte
		for range blocks {
			b := make([]byte, f.Bytes)
			for again := true; again; again = !f.Finite(b) {
				for i := range b {
					b[i] = byte(rng.Uint32())
				}
			}
			src = append(src, b...)
		}
		want, got := make([]float32, blocks*f.Values), make([]float32, blocks*f.Values)
		f.Decode(want, src)
		for level := range have + 1 {
			instructions = level
			clear(got)
			m := &weights.Matrix{Format: weights.Blocks, N: blocks, K: f.Values, Stored: f, Factor: 1, Data: src}
			require.True(t, decode(got, m, 0, blocks), name)
			for i := range want {
				if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
					require.Failf(t, "another value", "%s %s: %v at %d, want %v", Instructions(), name, got[i], i, want[i])
				}
			}
		}
	}
}

// BenchmarkBlocks multiplies by the formats of GGUF; MB/s are millions of numbers a second.
func BenchmarkBlocks(b *testing.B) {
	rng := rand.New(rand.NewPCG(6, 1))
	for _, name := range inC {
		m := &weights.Matrix{Format: weights.Blocks, N: 2048, K: 4096, Stored: gguf.FormatNamed(name), Factor: 1}
		m.Data = fakegguf.Random(rng, "a", name, m.N, m.K).Data
		b.Run(name, func(b *testing.B) {
			var in rows
			in.reset(1, m.K, m.Format)
			y := make([]float32, m.N)
			b.SetBytes(int64(m.N * m.K))
			for b.Loop() {
				product(m, &in, []int32{0}, 0, m.N, y, m.N)
			}
		})
	}
}
