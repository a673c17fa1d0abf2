package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
)

// TestSwiglu holds the clamp: the gate from above only, the other from both sides.
func TestSwiglu(t *testing.T) {
	assert.InDelta(t, -99.99546, swiglu(12, -11, 1, 10), 1e-5)
	assert.InDelta(t, -12/(1+math.Exp(12))*2, swiglu(-12, 2, 1, 10), 1e-9, "a gate far below")
	assert.InDelta(t, 12/(1+math.Exp(-12))*-11*.5, swiglu(12, -11, .5, 0), 1e-5, "no clamp")
}

// ExpertsRef is the sub-layer of experts for one token, from decoded weights.
func ExpertsRef(l *weights.Layer, cfg *weights.Config, x []float32, chosen []int32, v []float32) []float64 {
	f := make([]float64, cfg.Hidden)
	add := func(e *weights.Expert, v float32) {
		dot := func(m *weights.Matrix, r int, x []float32) (sum float64) {
			w := make([]float32, m.K)
			m.Row(w, r)
			for c := range w {
				sum += float64(w[c]) * float64(x[c])
			}
			return sum
		}
		h := make([]float32, cfg.Width)
		for r := range h {
			h[r] = numfmt.BF16Round(swiglu(float32(dot(&e.W1, r, x)), float32(dot(&e.W3, r, x)), v, cfg.Limit))
		}
		for r := range f {
			f[r] += dot(&e.W2, r, h)
		}
	}
	for i, e := range chosen {
		add(&l.Experts[e], v[i])
	}
	add(&l.Shared, 1)
	return f
}

// TestExperts compares tokens in a batch with the reference, and with each token alone. The formats
// are those of even experts, odd ones, and the shared one.
func TestExperts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, formats := range [][3]weights.Format{{weights.MXFP4, weights.MXFP4, weights.FP8},
		{weights.FP8, weights.FP8, weights.FP8}, {weights.BF16, weights.BF16, weights.BF16},
		{weights.FP8, weights.MXFP4, weights.FP8}, {weights.MXFP4, weights.FP8, weights.MXFP4},
		{weights.Blocks, weights.Blocks, weights.Blocks}, {weights.Blocks, weights.MXFP4, weights.FP8}} {
		cfg := weights.Config{Experts: 5, PerToken: 3, Width: 96, Streams: 4,
			Scoring: "sqrtsoftplus", Normalise: true, Factor: 1.5, Limit: 200, Vocab: 9}
		cfg.Hidden = 160
		expert := func(f weights.Format) weights.Expert {
			return weights.Expert{W1: *randomMatrix(rng, f, 96, 160), W3: *randomMatrix(rng, f, 96, 160), W2: *randomMatrix(rng, f, 160, 96)}
		}
		l := weights.Layer{Gate: *randomMatrix(rng, weights.BF16, 5, 160), Bias: []float32{1, 0, -1, 0, 2}, Shared: expert(formats[2])}
		for e := range cfg.Experts {
			l.Experts = append(l.Experts, expert(formats[e%2]))
		}
		c := New(&weights.Model{Config: cfg, Layers: []weights.Layer{l}}, Options{Workers: 3})
		const tokens = 7
		x := make([]float32, tokens*cfg.Hidden)
		for i := range x {
			x[i] = numfmt.BF16Round(float32(rng.NormFloat64()) / 4)
		}
		f := make([]float32, len(x))
		c.Experts(0, &Streams{T: tokens, IDs: make([]int32, tokens)}, x, f, nil)
		for token := range tokens {
			row := x[token*cfg.Hidden:][:cfg.Hidden]
			alone := make([]float32, cfg.Hidden)
			c.Experts(0, &Streams{T: 1, IDs: []int32{0}}, row, alone, nil)
			assert.Equal(t, alone, f[token*cfg.Hidden:][:cfg.Hidden], "%v: token %d beside others", formats, token)

			logits, chosen, v := make([]float32, cfg.Experts), make([]int32, cfg.PerToken), make([]float32, cfg.PerToken)
			for e := range logits {
				logits[e] = ProductRef(&l.Gate, e, row)
			}
			choose(chosen, v, logits, &l, 0, &cfg)
			want, size, off := ExpertsRef(&l, &cfg, row, chosen, v), 0.0, 0.0
			for i := range want {
				size += want[i] * want[i]
				off += math.Pow(want[i]-float64(alone[i]), 2)
			}
			assert.Less(t, math.Sqrt(off/size), 4e-3, "%v: token %d", formats, token)
		}
		c.Close()
	}
}
