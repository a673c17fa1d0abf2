package projection_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// The last rows of a layer in parts of K, beside whole ones, and all of them whole
// without scratch memory: whole numbers whose sums are exact in any order.
func TestLinearTail(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(21, 11))
	const tokens, n, k, f = 70, 168, 2048, projection.FormatFP8F32
	h := linearHost(f, tokens, 1, n, k,
		func(int, int) uint16 { return small(f, rng.IntN(7)-3) }, func(int, int) float32 { return float32(rng.IntN(9) - 4) })
	want := make([]float64, tokens*n)
	require.NoError(t, projection.LinearRef(h, want))
	for _, variant := range []string{opkit.CMB, opkit.CM} {
		t.Run(variant, func(t *testing.T) {
			cfg := linearConfig(h, variant)
			cfg.Workgroups = 2 // four tiles; six are half a round too many
			tiling := [5]int{64, 64, 32, 32, 32}
			if dev.Adapter().Type == vk.TypeCPU { // whose subgroups have a quarter of a GPU's invocations
				tiling = [5]int{64, 64, 32, 16, 16}
			}
			op, err := projection.NewLinearTiled(dev, cfg, tiling)
			if errors.Is(err, vk.ErrMissingFeature) {
				t.Skip(err)
			}
			require.NoError(t, err)
			assert.Equal(t, 128, projection.WholeRows(op, tokens), "rows whole")
			for _, share := range []float64{0, 1} {
				for i, v := range linear(t, dev, h, op, share) {
					if float64(v) != want[i] {
						t.Fatalf("%.0f %% of scratch: output %d is %g, want %g", 100*share, i, v, want[i])
					}
				}
			}
		})
	}
}
