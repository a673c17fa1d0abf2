package projection_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
)

// Tiles and passes that a CPU does without, against whole numbers.
func TestLinearBaseTiles(t *testing.T) {
	dev := testkit.Device(t)
	testkit.WithoutMatrices(t)
	const f = projection.WeightFP8
	rng := rand.New(rand.NewPCG(7, 7))
	h := linearHost(f, 256, 1, 264, 160, func(int, int) uint16 { return small(f, rng.IntN(7)-3) }, func(int, int) float32 { return float32(rng.IntN(7) - 3) })
	want := make([]float64, h.T*h.N)
	require.NoError(t, projection.LinearRef(h, want))
	cfg := linearConfig(h, projection.VariantBase)
	cfg.Workgroups = 2
	hopper, err := tuning.Named("hopper")
	require.NoError(t, err)
	op := must[*projection.Linear](t)(projection.NewLinearOf(dev, cfg, &hopper.Linear))
	check := func(op *projection.Linear, tokens int) {
		x := h
		x.T, x.X = tokens, h.X[:2*tokens*h.K]
		for i, v := range linear(t, dev, x, op, 0) {
			if float64(v) != want[i] {
				t.Fatalf("%d tokens: output %d is %g, want %g", tokens, i, v, want[i])
			}
		}
	}
	check(op, 7)  // a pass of 8
	check(op, 21) // two of 16
	tiles := projection.OnlyTiles(op)
	require.Len(t, tiles, 3, "tiles")
	for _, x := range tiles {
		check(x, 77)
		check(x, 256)
	}
}
