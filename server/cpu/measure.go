package cpu

import (
	"bytes"
	"math/rand/v2"
	"time"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// Bandwidth holds the bytes a second that the cores read from memory.
type Bandwidth struct {
	Memory  float64 // a plain pass over memory
	Experts float64 // the experts of single tokens, in all layers
}

// Measure reads memory for about a second, then computes the experts of single tokens for as long:
// the best of several parts of a second, as other programs only ever slow it down. It is for after
// Warm. With a model that fits into the processor's caches the second number is about these.
func (c *CPU) Measure() (b Bandwidth) {
	const piece, pieces = 1 << 20, 512
	memory := make([]byte, piece*pieces)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1 // a page without a write is not memory
	}
	pass := func() float64 {
		c.pool.Run(pieces, func(i int) { bytes.IndexByte(memory[i*piece:][:piece], 2) })
		return float64(len(memory))
	}
	b.Memory = rate(pass)

	rng := rand.New(rand.NewPCG(1, 1))
	x, f := make([]float32, c.cfg.Hidden), make([]float32, c.cfg.Hidden)
	b.Experts = rate(func() float64 {
		for i := range x {
			x[i] = numfmt.BF16Round(float32(rng.NormFloat64()))
		}
		before, ids := c.read, []int32{rng.Int32N(int32(c.cfg.Vocab))}
		for l := range c.w.Layers {
			c.Experts(l, &Streams{T: 1, IDs: ids}, x, f, nil)
		}
		return float64(c.read - before)
	})
	return b
}

// rate calls f for a second, after once to warm up, and returns the most that it says by time in a
// tenth of it.
func rate(f func() float64) (best float64) {
	f()
	for range 10 {
		sum, began := 0.0, time.Now()
		for time.Since(began) < time.Second/10 {
			sum += f()
		}
		best = max(best, sum/time.Since(began).Seconds())
	}
	return best
}
