package projection_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// proj_linear_tokens8to32 with two tiles a workgroup, against whole numbers: even and odd numbers
// of tiles, of one group and of two.
func TestLinearTokens8to32(t *testing.T) {
	dev := testkit.Device(t)
	for i, c := range []struct {
		f                    projection.Format
		tokens, groups, n, k int
	}{
		{projection.FormatFP8F32, 5, 1, 136, 640}, {projection.FormatFP8F32, 7, 2, 72, 640},
	} {
		for _, variant := range []string{opkit.CM, opkit.CMB} {
			t.Run(fmt.Sprintf("%v/%d/%dx%d/%s", c.f, c.tokens, c.n, c.k, variant), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(12, uint64(i)))
				h := linearHost(c.f, c.tokens, c.groups, c.n, c.k, func(int, int) uint16 { return small(c.f, rng.IntN(7)-3) },
					func(int, int) float32 { return float32(rng.IntN(5) - 2) })
				cfg := linearConfig(h, variant)
				cfg.MaxTokens, cfg.Workgroups = c.tokens, 1
				op, err := projection.NewLinear(dev, cfg)
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				if few, _ := projection.Lanes(op); few == 0 {
					t.Skip("matrices lie otherwise on this device")
				}
				require.Equal(t, 2, projection.Tiles8to32(op))
				want := make([]float64, h.T*h.Groups*h.N)
				require.NoError(t, projection.LinearRef(h, want))
				for i, v := range linear(t, dev, h, op, 1) {
					require.Equal(t, want[i], float64(v), "output %d", i)
				}
			})
		}
	}
}
