package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
)

// randomMatrix is a matrix of any codes but NaN, with scales around 1.
func randomMatrix(rng *rand.Rand, f weights.Format, n, k int) *weights.Matrix {
	m := &weights.Matrix{Format: f, N: n, K: k}
	switch f {
	case weights.BF16:
		m.Data = make([]byte, 2*n*k)
		for i := range n * k {
			binary.LittleEndian.PutUint16(m.Data[2*i:], uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
		}
	case weights.F32:
		m.Data = make([]byte, 4*n*k)
		for i := range n * k {
			binary.LittleEndian.PutUint32(m.Data[4*i:], math.Float32bits(float32(rng.NormFloat64())))
		}
	case weights.FP8:
		m.Data, m.Side = make([]byte, n*k), 1+rng.IntN(3)
		for i := range m.Data {
			for m.Data[i] = 0x7F; m.Data[i]&0x7F == 0x7F; m.Data[i] = byte(rng.Uint32()) {
			}
		}
		for range (n + m.Side - 1) / m.Side * ((k + 127) / 128) {
			m.BlockScales = append(m.BlockScales, float32(math.Exp2(float64(rng.IntN(9)-4))))
		}
	case weights.MXFP4:
		m.Data, m.Scales = make([]byte, n*k/2), make([]byte, n*k/32)
		for i := range m.Data {
			m.Data[i] = byte(rng.Uint32())
		}
		for i := range m.Scales {
			m.Scales[i] = byte(123 + rng.IntN(9))
		}
		m.Scales[rng.IntN(len(m.Scales))] = byte(rng.IntN(2)) // the smallest
	case weights.Blocks:
		m.Stored, m.Factor, m.Data = gguf.FormatNamed("Q8_0"), 1, fakegguf.Random(rng, "a", "Q8_0", n, k).Data
	}
	return m
}

// TestProduct compares every build with the definition, bit by bit: products of bf16 with decoded
// weights are exact in f32, so only f32 weights know whether a sum was fused.
func TestProduct(t *testing.T) {
	assert.Contains(t, Products(), runtime.GOARCH, "nodes of another one would share what they keep")
	have := instructions
	defer func() { instructions = have }()
	rng := rand.New(rand.NewPCG(1, uint64(have)))
	for _, f := range []weights.Format{weights.BF16, weights.F32, weights.FP8, weights.MXFP4} {
		for _, k := range []int{32, 128, 352, 1024} {
			const n, tokens = 7, 6
			m := randomMatrix(rng, f, n, k)
			var in rows
			in.reset(tokens, k, formOf(m))
			x := make([][]float32, tokens)
			for i := range x {
				for range k {
					x[i] = append(x[i], numfmt.BF16Round(float32(rng.NormFloat64())))
				}
				in.set(i, 0, x[i])
			}
			take := []int32{5, 0, 3, 3, 1, 2}
			for level := range have + 1 {
				instructions = level
				const first, stride = 2, n
				y := make([]float32, len(take)*stride)
				for i := range y {
					y[i] = 1e30 // poison
				}
				product(m, &in, take, first, n-1, y, stride)
				for i, token := range take {
					for r := range n {
						got, what := y[i*stride+r], fmt.Sprintf("%s %s K %d, row %d of token %d", Instructions(), f, k, first+r, token)
						switch {
						case r >= n-1-first:
							assert.Equal(t, float32(1e30), got, what)
						case f == weights.F32:
							assert.InDelta(t, ProductRef(m, first+r, x[token]), got, 1e-4, what)
						default:
							assert.Equal(t, ProductRef(m, first+r, x[token]), got, what)
						}
					}
				}
			}
		}
	}
}

// TestE4M3NaN holds that a weight that is no number does not become one.
func TestE4M3NaN(t *testing.T) {
	have := instructions
	defer func() { instructions = have }()
	m := randomMatrix(rand.New(rand.NewPCG(2, 2)), weights.FP8, 1, 128)
	m.Data[77] = 0xFF
	var in rows
	in.reset(1, 128, formOf(m))
	in.set(0, 0, make([]float32, 128))
	for level := range have + 1 {
		instructions = level
		y := []float32{0}
		product(m, &in, []int32{0}, 0, 1, y, 1)
		assert.True(t, math.IsNaN(float64(y[0])), Instructions())
	}
}

// TestProductRef compares the definition with a plain sum of decoded weights.
func TestProductRef(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, f := range []weights.Format{weights.BF16, weights.F32, weights.FP8, weights.MXFP4} {
		m := randomMatrix(rng, f, 5, 416)
		w := make([]float32, m.K)
		x := make([]float32, m.K)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		for r := range m.N {
			m.Row(w, r)
			sum, size := 0.0, 0.0
			for c := range w {
				sum += float64(w[c]) * float64(x[c])
				size += math.Abs(float64(w[c]) * float64(x[c]))
			}
			assert.InDelta(t, sum, ProductRef(m, r, x), 2e-6*size, "%s row %d", f, r)
		}
	}
}
