package gpu

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/server/weights"
)

// BenchmarkExperts times the experts of some layers of V4-Flash by the format of gate and up and
// that of down, for some tokens at a time and with other tilings. Their weights are pieces of the
// same random bytes; on the device each has its own.
func BenchmarkExperts(b *testing.B) {
	dev := device(b)
	copies, err := CopyRate(b.Context(), dev)
	require.NoError(b, err)
	b.Logf("copies: %.0f GB/s", copies.PerSecond()/1e9)
	without := usual
	without.tiles, without.routed = 0, 0
	for _, f := range [][2]string{{"MXFP4", "MXFP4"}, {"Q2_K", "Q2_K"}, {"IQ2_XXS", "Q2_K"}, {"Q4_K", "Q4_K"}} {
		b.Run(strings.Join(f[:], ","), func(b *testing.B) {
			g, err := New(b.Context(), dev, flash(3, f[0], f[1]), Options{MaxStep: 1024})
			require.NoError(b, err)
			b.Cleanup(func() { g.Close() })
			for _, tiles := range []tiling{usual, without, {up: 2, down: 2, gate: 1, head: 4, tokens: 4}, {up: 4, down: 8, gate: 1, head: 4, tokens: 4}} {
				for _, T := range []int{1, 8, 32, 128, 256, 1024} {
					if tiles == without && T < 128 || tiles != usual && tiles != without && T > 1 {
						continue // as others have it
					}
					b.Run(fmt.Sprintf("%v/T=%d", tiles, T), func(b *testing.B) {
						g.tiles = tiles
						var r Rates
						for range b.N {
							r, err = g.Measure(b.Context(), T)
							require.NoError(b, err)
						}
						b.ReportMetric(0, "ns/op")
						for _, x := range []struct {
							name string
							Rate
						}{{"all", r.Experts}, {"up", r.Up}, {"down", r.Down}} {
							b.ReportMetric(x.Seconds*1e6/float64(len(g.layers)), "us/layer:"+x.name)
							b.ReportMetric(100*x.PerSecond()/copies.PerSecond(), "%ofcopies:"+x.name)
						}
					})
				}
			}
		})
	}
}

// flash is a model of V4-Flash's width with random weights of little memory, routed experts in
// blocks of GGUF.
func flash(layers int, up, down string) *weights.Model {
	rng := rand.New(rand.NewPCG(7, 8))
	slab := make([]byte, 24<<20)
	for i := range slab {
		slab[i] = byte(rng.Uint32())
	}
	finite := make([]byte, len(slab)) // no NaN of E4M3 or bf16
	for i, v := range slab {
		finite[i] = v & 0xBB
	}
	some := func(from []byte, n int) []byte {
		at := rng.IntN(len(from)-n+1) &^ 15
		return from[at:][:n:n]
	}
	matrix := func(f weights.Format, n, k int) weights.Matrix {
		m := weights.Matrix{Format: f, N: n, K: k}
		switch f {
		case weights.FP8:
			m.Data, m.Side, m.BlockScales = some(finite, n*k), 128, make([]float32, n/128*(k/128))
			for i := range m.BlockScales {
				m.BlockScales[i] = 1. / 256
			}
		case weights.BF16:
			m.Data = make([]byte, 2*n*k)
			for i := 0; i < len(m.Data); i += 2 {
				m.Data[i+1] = 0x3C | byte(i>>3&1)<<7
				m.Data[i] = slab[i%len(slab)]
			}
		case weights.F32:
			m.Data = make([]byte, 4*n*k)
		}
		return m
	}
	c := weights.Config{Vocab: 512, Streams: 4, SinkhornSteps: 20, HyperEps: 1e-6, Experts: 256, PerToken: 6, Width: 2048,
		Scoring: "sqrtsoftplus", Normalise: true, Factor: 1.5, Limit: 10}
	c.Hidden, c.Eps = 4096, 1e-6
	hyper := func(rows, scales int) weights.Hyper {
		return weights.Hyper{Fn: matrix(weights.F32, rows, 4*c.Hidden), Base: make([]float32, rows), Scale: make([]float32, scales)}
	}
	stored := func(name string, n, k int) weights.Matrix {
		f := gguf.FormatNamed(name)
		return weights.Matrix{Format: weights.Blocks, N: n, K: k, Stored: f, Factor: 1, Data: some(slab, n*f.Size(k))}
	}
	expert := func(f weights.Format) weights.Expert {
		return weights.Expert{W1: matrix(f, c.Width, c.Hidden), W3: matrix(f, c.Width, c.Hidden), W2: matrix(f, c.Hidden, c.Width)}
	}
	m := &weights.Model{Config: c, Embed: matrix(weights.BF16, c.Vocab, c.Hidden), Head: matrix(weights.BF16, c.Vocab, c.Hidden),
		Norm: make([]float32, c.Hidden), HeadHC: hyper(4, 1)}
	for range layers {
		l := weights.Layer{AttnHC: hyper(24, 3), FFNHC: hyper(24, 3), AttnNorm: m.Norm, FFNNorm: m.Norm,
			Gate: matrix(weights.BF16, c.Experts, c.Hidden), Bias: make([]float32, c.Experts), Shared: expert(weights.FP8)}
		for range c.Experts {
			l.Experts = append(l.Experts, weights.Expert{W1: stored(up, c.Width, c.Hidden), W3: stored(up, c.Width, c.Hidden),
				W2: stored(down, c.Hidden, c.Width)})
		}
		m.Layers = append(m.Layers, l)
	}
	return m
}
