package projection_test

import (
	"math/rand/v2"
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/projection"
)

// Tiles that a CPU does without, against whole numbers.
func TestLinearPlainLong(t *testing.T) {
	dev := testkit.Device(t)
	testkit.WithoutMatrices(t)
	const f = projection.WeightFP8
	rng := rand.New(rand.NewPCG(7, 7))
	h := linearHost(f, 256, 1, 264, 160, func(int, int) uint16 { return small(f, rng.IntN(7)-3) }, func(int, int) float32 { return float32(rng.IntN(7) - 3) })
	want := make([]float64, h.T*h.N)
	if err := projection.LinearRef(h, want); err != nil {
		t.Fatal(err)
	}
	cfg := linearConfig(h, projection.VariantBase)
	cfg.Workgroups = 2
	op := must[*projection.Linear](t)(projection.NewLinearLong(dev, cfg))
	for _, tokens := range []int{7, 256} {
		x := h
		x.T, x.X = tokens, h.X[:2*tokens*h.K]
		for i, v := range linear(t, dev, x, op, 0) {
			if float64(v) != want[i] {
				t.Fatalf("%d tokens: output %d is %g, want %g", tokens, i, v, want[i])
			}
		}
	}
}
