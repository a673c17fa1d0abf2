package cpu

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/server/weights"
)

// TestHyper computes the example that comes with the model's description.
func TestHyper(t *testing.T) {
	const n, d = 4, 2
	m, base := make([]float32, 24), make([]float32, 24)
	for i := range m {
		m[i], base[i] = float32((7*i+3)%11-5)/4, float32((5*i)%7-3)/8
	}
	h := &weights.Hyper{Base: base, Scale: []float32{0.5, 1, 2}}
	s := &Streams{T: 1, Y: make([]float32, n*d), post: make([]float32, n), comb: make([]float32, n*n), squares: make([]float32, 1)}
	pre := make([]float32, n)
	mixing(pre, s.post, s.comb, m, h, 20, 1e-6)
	near := func(want, got []float32, what string) { assert.InDeltaSlice(t, want, got, 1.5e-6, what) }
	near([]float32{0.348646, 0.705786, 0.531210, 0.348646}, pre, "pre")
	near([]float32{1.596374, 1.062419, 0.490170, 1.185333}, s.post, "post")
	near([]float32{0.304414, 0.155243, 0.385102, 0.155240, 0.493804, 0.251820, 0.002553, 0.251822,
		0.197837, 0.100895, 0.600377, 0.100890, 0.003944, 0.492041, 0.011967, 0.492047}, s.comb, "comb")

	cfg := &weights.Config{Streams: n}
	cfg.Hidden = d
	c := &CPU{cfg: cfg, pool: NewPool(2), exact: true}
	defer c.Close()
	for i := range n {
		s.Y[i*d], s.Y[i*d+1] = float32(2*i)-3.5, float32(2*i)-2.5
	}
	u := make([]float32, d)
	c.gather(u, pre, s.Y)
	near([]float32{-1.141720, 0.792569}, u, "u")
	c.Leave(s, []float32{1, -2})
	near([]float32{-0.101003, -3.890125, 1.421888, -0.765369, -0.531410, -1.001921, 1.544823, -1.011178}, s.Y, "Y'")
}
