package cpu

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
)

// inC are the formats that C multiplies.
var inC = []string{"Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M",
	"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}

// blocksOf makes a matrix of random blocks of which fit says yes.
func blocksOf(rng *rand.Rand, name string, n, k int, fit func(b []byte) bool) *weights.Matrix {
	f := gguf.FormatNamed(name)
	m := &weights.Matrix{Format: weights.Blocks, N: n, K: k, Stored: f, Factor: 1}
	for range n * k / f.Values {
		b := make([]byte, f.Bytes)
		for again := true; again; again = !f.Finite(b) || !fit(b) {
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
		}
		m.Data = append(m.Data, b...)
	}
	return m
}

// everyBuild calls f for each build that the processor takes.
func everyBuild(f func()) {
	have := instructions
	defer func() { instructions = have }()
	for level := range have + 1 {
		instructions = level
		f()
	}
}

// TestCodes multiplies blocks by tokens of a single 1: each product is the weight that the
// definition decodes, bit by bit but for the sign of a zero. Each code and each f16 occurs,
// subnormal ones and the largest included.
func TestCodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for _, name := range inC {
		// Of MXFP4, sums of weights above 2^100 overflow before the scale of activations.
		m := blocksOf(rng, name, 1<<10, 256, func(b []byte) bool { return name != "MXFP4" || b[0] < 224 })
		var in rows
		in.reset(m.K, m.K, wholes)
		take := make([]int32, m.K)
		for c := range m.K {
			in.set(c, c, []float32{1})
			in.finish(c)
			take[c] = int32(c)
		}
		want, got := make([]float32, m.N*m.K), make([]float32, m.N*m.K)
		m.Stored.Decode(want, m.Data)
		everyBuild(func() {
			clear(got)
			product(m, &in, take, 0, m.N, got, m.N)
			for i, w := range want {
				if g := got[i%m.K*m.N+i/m.K]; w != g {
					require.Failf(t, "another weight", "%s %s: %v at %d, want %v", Instructions(), name, g, i, w)
				}
			}
		})
	}
}

// TestBlocks compares products of GGUF's formats with the definition: the sum of decoded weights
// times rounded activations. All builds give the same bits. Columns have every width.
func TestBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	const n, tokens, first, end, poison = 21, 7, 3, 20, 1e30
	take := []int32{4, 0, 0, 2, 1, 6, 5}
	for _, name := range append([]string{"F16", "NVFP4"}, inC...) {
		f := gguf.FormatNamed(name)
		k := f.Values * (1 + rng.IntN(1024/f.Values))
		m := &weights.Matrix{Format: weights.Blocks, N: n, K: k, Stored: f, Factor: 2}
		m.Data = fakegguf.Random(rng, "a", name, n, k).Data
		var in rows
		in.reset(tokens, k, formOf(m))
		x := make([][]float32, tokens)
		for i := range x {
			for range k {
				x[i] = append(x[i], float32(rng.NormFloat64()*math.Exp2(float64(20*i-60))))
			}
			in.fill(i, x[i])
			if formOf(m) == wholes {
				x[i] = rounded(&in, i)
			}
		}
		var before []float32
		everyBuild(func() {
			y := make([]float32, len(take)*n)
			for i := range y {
				y[i] = poison
			}
			product(m, &in, take, first, end, y, n)
			if before != nil && formOf(m) == wholes {
				require.Equal(t, before, y, "%s: %s and the build before", name, Instructions())
			}
			before = y
		})
		w := make([]float32, k)
		for i, token := range take {
			for r := range n {
				if r >= end-first {
					require.Equal(t, float32(poison), before[i*n+r], "%s: beyond the rows", name)
					continue
				}
				m.Row(w, first+r)
				sum, size := 0.0, 0.0
				for c, v := range w {
					sum += float64(v) * float64(x[token][c])
					size = max(size, math.Abs(float64(v)))
				}
				most := 0.0
				for _, v := range x[token] {
					most += math.Abs(float64(v))
				}
				got := before[i*n+r]
				require.InDelta(t, sum, got, 1e-6*size*most, "%s: row %d of token %d, K %d", name, first+r, token, k)
			}
		}
	}
}

// rounded returns a row of whole numbers as numbers.
func rounded(r *rows, t int) []float32 {
	x := make([]float32, r.k)
	for c := range x {
		w := &r.whole[t*r.wholes()+c/wholeColumns]
		p := &w.x[c%wholeColumns/64]
		x[c] = w.scale * float32(128*int(p[0][c%64])+int(p[1][c%64]))
	}
	return x
}

// TestWhole holds how activations are rounded: at most half of 2^-13 of the power of two above
// them, and not at all where bf16 has no more digits.
func TestWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for range 2000 {
		var r rows
		r.reset(1, 1+rng.IntN(600), wholes)
		x := make([]float32, r.k)
		size := math.Exp2(float64(rng.IntN(230) - 110))
		for i := range x {
			x[i] = numfmt.BF16Round(float32(rng.NormFloat64() * size))
		}
		r.fill(0, x)
		for c, got := range rounded(&r, 0) {
			w := &r.whole[c/wholeColumns]
			power := float64(w.scale) * (1 << 13)
			most := 0.0
			for _, v := range x[c/wholeColumns*wholeColumns : min(r.k, c/wholeColumns*wholeColumns+wholeColumns)] {
				most = max(most, math.Abs(float64(v)))
			}
			require.LessOrEqual(t, most, power)
			require.True(t, power < 2*most || power == math.Exp2(-113), "%v for %v", power, most)
			require.LessOrEqual(t, math.Abs(float64(got-x[c])), power/(1<<14))
			if math.Abs(float64(x[c])) >= power/64 {
				require.Equal(t, x[c], got)
			}
			p := w.x[c%wholeColumns/64]
			require.LessOrEqual(t, max(p[0][c%64], -p[0][c%64], p[1][c%64], -p[1][c%64]), int8(64), "out of AVX2's range")
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		m := blocksOf(rng, "Q4_K", 1, 512, func([]byte) bool { return true })
		var r rows
		r.reset(1, m.K, wholes)
		x := make([]float32, m.K)
		x[300] = float32(bad)
		r.fill(0, x)
		everyBuild(func() {
			y := []float32{0}
			product(m, &r, []int32{0}, 0, 1, y, 1)
			assert.True(t, math.IsNaN(float64(y[0])), "%s: %v", Instructions(), bad)
		})
		r.fill(0, make([]float32, m.K))
		everyBuild(func() {
			y := []float32{1}
			product(m, &r, []int32{0}, 0, 1, y, 1)
			assert.Equal(t, float32(0), y[0], "%s: all zero", Instructions())
		})
	}
}

// BenchmarkBlocks computes six of 64 experts of V4-Flash's width for each token, from GGUF's
// formats; MB/s are millions of numbers a second.
func BenchmarkBlocks(b *testing.B) {
	const experts, hidden, width = 64, 4096, 2048
	rng := rand.New(rand.NewPCG(6, 1))
	for _, name := range inC {
		f := gguf.FormatNamed(name)
		cfg := weights.Config{Experts: experts, PerToken: 6, Width: width, Streams: 4, Scoring: "sqrtsoftplus", Vocab: 1 << 12}
		cfg.Hidden = hidden
		l := weights.Layer{Gate: weights.Matrix{Format: weights.F32, N: experts, K: hidden, Data: make([]byte, 4*experts*hidden)}}
		matrix := func(n, k int) weights.Matrix {
			few := fakegguf.Random(rng, "a", name, 16, k).Data
			return weights.Matrix{Format: weights.Blocks, N: n, K: k, Stored: f, Factor: 1, Data: bytes.Repeat(few, n/16)}
		}
		for range experts {
			e := weights.Expert{W1: matrix(width, hidden), W3: matrix(width, hidden), W2: matrix(hidden, width)}
			l.Experts = append(l.Experts, e)
		}
		l.Shared = l.Experts[0] // for its forms
		for range cfg.Vocab * cfg.PerToken / experts {
			for _, e := range rng.Perm(experts) {
				l.Table = append(l.Table, int32(e))
			}
		}
		for _, tokens := range []int{1, 8} {
			for threads := 1; threads <= 2; threads++ {
				b.Run(fmt.Sprintf("%s/T%d/threads%d", name, tokens, threads), func(b *testing.B) {
					c := New(&weights.Model{Config: cfg, Layers: []weights.Layer{l}}, Options{Workers: threads})
					defer c.Close()
					x, y, ids := make([]float32, tokens*hidden), make([]float32, tokens*hidden), make([]int32, tokens)
					for i := range x {
						x[i] = numfmt.BF16Round(float32(rng.NormFloat64()))
					}
					b.SetBytes(int64(tokens * cfg.PerToken * 3 * hidden * width))
					none := make([]float32, tokens*hidden)
					best := time.Duration(math.MaxInt64)
					for b.Loop() {
						for i := range ids {
							ids[i] = rng.Int32N(int32(cfg.Vocab))
						}
						began := time.Now()
						c.Experts(0, &Streams{T: tokens, IDs: ids}, x, y, func() []float32 { return none })
						best = min(best, time.Since(began))
					}
					b.ReportMetric(float64(tokens*cfg.PerToken*3*hidden*width)/best.Seconds()/1e6, "best-M/s")
				})
			}
		}
	}
}
