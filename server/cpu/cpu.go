package cpu

import (
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
)

// Options say how to compute.
type Options struct {
	Workers int  // cores; 0: as many as the program may use
	Exact   bool // round nothing to bf16: for tests against references in float32
	Cold    int  // layers, the first ones, whose experts Warm leaves out
}

// CPU computes for one step at a time.
type CPU struct {
	w     *weights.Model
	cfg   *weights.Config
	pool  *Pool
	exact bool
	cold  int

	// Memory that steps use again.
	streams, input, hidden, heads rows
	mixed, logits, outputs        []float32
	follow                        []float32
	everyToken                    []int32
	read                          int64
}

// New prepares computing with weights, which stay open until Close.
func New(w *weights.Model, o Options) *CPU {
	return &CPU{w: w, cfg: &w.Config, pool: NewPool(o.Workers), exact: o.Exact, cold: o.Cold}
}

// Read is the bytes of weights that products have read so far, each matrix once for all tokens.
func (c *CPU) Read() int64 { return c.read }

// Workers returns the number of cores that compute.
func (c *CPU) Workers() int { return c.pool.Workers() }

// Close ends the workers.
func (c *CPU) Close() { c.pool.Close() }

// round rounds a stored activation to bf16.
func (c *CPU) round(x float32) float32 {
	if c.exact {
		return x
	}
	return numfmt.BF16Round(x)
}

// room is s with n numbers, of any content.
func room(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}
