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

// proj_linear_tokens32to64 against whole numbers, with its weights in one set of registers (up to
// 32 tokens, but for NVFP4) and in two, with odd and even numbers of rounds, in one part and
// several, in whole tiles and rounds and others, in passes of 16 tokens and more. Layers as small
// as these are otherwise proj_linear_tokens8to32's.
func TestLinearTokens32to64(t *testing.T) {
	dev := testkit.Device(t)
	for i, c := range []struct {
		f                    projection.Format
		tokens, groups, n, k int
		workgroups           int
	}{
		{projection.FormatFP8F32, 27, 1, 264, 1152, 2}, {projection.FormatFP8F32, 27, 1, 256, 1280, 2}, {projection.FormatFP8F32, 31, 2, 200, 1152, 64},
		{projection.FormatFP8F32, 40, 1, 264, 1152, 2}, {projection.FormatFP8F32, 33, 2, 256, 1280, 64},
		{projection.FormatBF16, 27, 1, 128, 1000, 32}, {projection.FormatBF16, 32, 1, 128, 64, 2},
		{projection.FormatNVFP4, 13, 1, 128, 1568, 1}, {projection.FormatNVFP4, 27, 1, 128, 1568, 1}, {projection.FormatNVFP4, 27, 1, 128, 2048, 16},
	} {
		// Two sets of registers are 10 s to compile each: whole tiles of one format, and others of
		// another.
		if dev.Adapter().Type == vk.TypeCPU && (c.f == projection.FormatNVFP4 && c.k == 2048 || c.tokens == 40) {
			continue
		}
		for _, variant := range []string{opkit.CM, opkit.CMB} {
			t.Run(fmt.Sprintf("%v/%d/%dx%d/%s", c.f, c.tokens, c.n, c.k, variant), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(11, uint64(i)))
				h := linearHost(c.f, c.tokens, c.groups, c.n, c.k, func(int, int) uint16 { return small(c.f, rng.IntN(7)-3) }, func(int, int) float32 { return float32(rng.IntN(5) - 2) })
				cfg := linearConfig(h, variant)
				cfg.MaxTokens, cfg.Workgroups = c.tokens, c.workgroups
				op, err := projection.NewLinear32to64(dev, cfg)
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				if _, lanes := projection.Lanes(op); lanes == 0 {
					t.Skip("matrices lie otherwise on this device")
				}
				require.Equal(t, c.workgroups > 2, op.ScratchLen(h.T) > 0, "in parts")
				want := make([]float64, h.T*h.Groups*h.N)
				require.NoError(t, projection.LinearRef(h, want))
				for i, v := range linear(t, dev, h, op, 1) {
					if float64(v) != want[i] {
						t.Fatalf("output %d is %g, want %g", i, v, want[i])
					}
				}
			})
		}
	}
}
