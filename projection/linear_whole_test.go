package projection_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// wholeTiling is whole tiles that a device compiles soon enough. A subgroup has two tiles of
// tokens with bf16 weights and two of rows with NVFP4.
func wholeTiling(dev *vk.Device, f projection.Format, x projection.ActivationFormat) [5]int {
	switch {
	case dev.Adapter().Type != vk.TypeCPU:
		return [5]int{128, 128, 32, 64, 64}
	case f == projection.FormatNVFP4:
		return [5]int{16, 32, 32, 8, 16}
	case x != projection.ActivationBF16:
		return [5]int{16, 16, 32, 8, 8}
	case f == projection.FormatBF16:
		return [5]int{32, 32, 32, 16, 8}
	}
	return [5]int{16, 32, 32, 8, 8}
}

// Whole tiles by pairs of steps: one tile and one pair, a last tile of tokens that begins
// earlier, groups, scales that change within a part, and parts of K.
func TestLinearWhole(t *testing.T) {
	dev := testkit.Device(t)
	for i, f := range weightFormats {
		if f == projection.FormatFP8 && dev.Adapter().Type == vk.TypeCPU || f != projection.FormatBF16 && testing.Short() {
			continue // ten seconds to compile, and FP8 with f32 scales has more to it
		}
		for _, s := range []struct{ tokens, groups, n, k int }{{32, 1, 32, 64}, {32, 1, 32, 1152}, {41, 2, 64, 384}, {75, 1, 96, 1152}, {128, 2, 128, 128}, {200, 1, 384, 704}} {
			rng := rand.New(rand.NewPCG(8, uint64(i)))
			h := linearHost(f, s.tokens, s.groups, s.n, s.k, func(int, int) uint16 { return small(f, rng.IntN(7)-3) },
				func(int, int) float32 { return float32(rng.IntN(7) - 3) })
			for i := range h.Scale {
				switch {
				case f == projection.FormatFP8:
					h.Scale[i] = byte(126 + rng.IntN(3))
				case f == projection.FormatFP8F32 && i%4 == 0:
					binary.LittleEndian.PutUint32(h.Scale[i:], math.Float32bits(1+float32(rng.IntN(8))/8))
				}
			}
			want := make([]float64, h.T*h.Groups*h.N)
			require.NoError(t, projection.LinearRef(h, want))
			for _, variant := range []string{opkit.CM, opkit.CMB} {
				t.Run(fmt.Sprint(f, "/", variant, s), func(t *testing.T) {
					tiling := wholeTiling(dev, f, projection.ActivationBF16)
					blocks := f == projection.FormatFP8F32 || f == projection.FormatFP8
					if s.n%tiling[1] != 0 || s.tokens < tiling[0] || blocks && s.k%projection.ScaleBlock != 0 {
						t.Skip("no whole tiles")
					}
					op, err := projection.NewLinearTiled(dev, linearConfig(h, variant), tiling)
					if errors.Is(err, vk.ErrMissingFeature) {
						t.Skip(err)
					}
					require.NoError(t, err)
					assert.True(t, projection.Paired(op, h.T), "not by pairs of steps")
					for _, share := range []float64{0, 1} {
						got := linear(t, dev, h, op, share)
						if f == projection.FormatFP8F32 { // ratios of fractions are rounded
							nearLinear(t, got, want, 1e-6)
							continue
						}
						for i, v := range got {
							if float64(v) != want[i] {
								t.Fatalf("output %d is %g, want %g", i, v, want[i])
							}
						}
					}
				})
			}
		}
	}
}

// E4M3 activations, whose scales change from block to block and token to token.
func TestLinearWholeActivations(t *testing.T) {
	dev := testkit.Device(t)
	const tokens, groups, n, k, pitch = 141, 2, 128, 512, 144
	for weights, act := range map[projection.Format]projection.ActivationFormat{
		projection.FormatFP8F32: projection.ActivationFP8, projection.FormatFP8: projection.ActivationFP8Packed,
	} {
		if testing.Short() {
			break
		}
		rng := rand.New(rand.NewPCG(9, uint64(act)))
		h := linearHost(weights, tokens, groups, n, k, func(int, int) uint16 { return small(weights, rng.IntN(7)-3) }, func(int, int) float32 { return 0 })
		h.Activations, h.ScalePitch, h.X = act, pitch, h.X[:tokens*groups*k]
		for i := range h.X {
			h.X[i] = byte(small(weights, rng.IntN(7)-3))
		}
		for range groups * (k / projection.ScaleBlock) * pitch {
			b := byte(126 + rng.IntN(3))
			if act == projection.ActivationFP8 {
				h.XScale = binary.LittleEndian.AppendUint32(h.XScale, uint32(b)<<23)
			} else {
				h.XScale = append(h.XScale, b)
			}
		}
		want := make([]float64, tokens*groups*n)
		require.NoError(t, projection.LinearRef(h, want))
		for _, variant := range []string{opkit.CM, opkit.CMB} {
			t.Run(fmt.Sprint(weights, "/", act, "/", variant), func(t *testing.T) {
				op, err := projection.NewLinearTiled(dev, linearConfig(h, variant), wholeTiling(dev, weights, act))
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				assert.True(t, projection.Paired(op, h.T), "not by pairs of steps")
				for i, v := range linear(t, dev, h, op, 1) {
					if float64(v) != want[i] {
						t.Fatalf("output %d is %g, want %g", i, v, want[i])
					}
				}
			})
		}
	}
}
