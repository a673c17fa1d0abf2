package projection_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

func TestLinearDeep(t *testing.T) {
	dev := testkit.Device(t)
	os.Setenv("VKX", "deep=1")
	defer os.Setenv("VKX", "")
	f := projection.WeightFP8UE8M0
	for _, s := range []struct{ tokens, groups, n, k int }{{64, 1, 32, 128}, {75, 2, 64, 384}, {200, 1, 96, 1152}} {
		rng := rand.New(rand.NewPCG(8, 1))
		h := linearHost(f, s.tokens, s.groups, s.n, s.k, func(int, int) uint16 { return small(f, rng.IntN(7)-3) },
			func(int, int) float32 { return float32(rng.IntN(7) - 3) })
		for i := range h.Scale {
			h.Scale[i] = byte(126 + rng.IntN(3))
		}
		want := make([]float64, h.T*h.Groups*h.N)
		require.NoError(t, projection.LinearRef(h, want))
		for _, variant := range []string{projection.VariantCM, projection.VariantCMB} {
			t.Run(fmt.Sprint(f, "/", variant, s), func(t *testing.T) {
				op, err := projection.NewLinearTiled(dev, linearConfig(h, variant), wholeTiling(dev, f, projection.ActivationBF16))
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				require.True(t, projection.Paired(op, h.T), "not by pairs of steps")
				got := linear(t, dev, h, op, 1)
				for i, v := range got {
					if float64(v) != want[i] {
						t.Fatalf("output %d is %g, want %g", i, v, want[i])
					}
				}
			})
		}
	}
}
