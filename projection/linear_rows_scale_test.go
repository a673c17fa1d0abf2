package projection_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/projection"
)

// FP8 with a scale a row: sums of small whole numbers under scales that are powers of two are exact
// in every kernel, with both kinds of activations, and any other scale rounds a sum once.
func TestLinearRowScales(t *testing.T) {
	dev := testkit.Device(t)
	const f = projection.FormatFP8Rows
	for _, groups := range []int{1, 2} {
		rng := rand.New(rand.NewPCG(5, uint64(groups)))
		whole := linearHost(f, 130, groups, 168, 352, func(int, int) uint16 { return small(f, rng.IntN(7)-3) },
			func(int, int) float32 { return float32(rng.IntN(7) - 3) })
		for i := range whole.RowScale {
			whole.RowScale[i] = float32(math.Ldexp(1, rng.IntN(60)-30))
		}
		want := make([]float64, whole.T*groups*whole.N)
		require.NoError(t, projection.LinearRef(whole, want))
		odd := whole
		odd.RowScale = slices.Clone(whole.RowScale)
		for i := range odd.RowScale {
			odd.RowScale[i] *= float32(1 + rng.Float64())
		}
		eachLinear(t, dev, func(t *testing.T, variant string) {
			cfg := linearConfig(whole, variant)
			if groups > 1 {
				cfg.Workgroups = 264 // a large device's kernels for few rows
			}
			op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
			for _, tokens := range []int{1, 9, 40, 130} {
				h := whole
				h.T, h.X = tokens, whole.X[:2*tokens*groups*h.K]
				exact := linear(t, dev, h, op, 1)
				h.RowScale = odd.RowScale
				rounded := linear(t, dev, h, op, 0)
				for i, v := range exact {
					row := i % (groups * h.N)
					require.Equal(t, want[i], float64(v), "%d groups, %d tokens: output %d", groups, tokens, i)
					once := float32(want[i] / float64(whole.RowScale[row]) * float64(odd.RowScale[row]))
					require.Equal(t, once, rounded[i], "%d groups, %d tokens: output %d with any scale", groups, tokens, i)
				}
			}
		})
	}
}

// The same with E4M3 activations, against the reference.
func TestLinearRowScalesFP8(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(6, 6))
	h := randomHost(rng, projection.FormatFP8Rows, 20, 2, 72, 512)
	for i := range h.RowScale {
		h.RowScale[i] = float32(1e-3 * (1 + rng.Float64()))
	}
	h.Activations, h.ScalePitch, h.X = projection.ActivationFP8, h.T, nil
	for range h.T * h.Groups * h.K {
		h.X = append(h.X, numfmt.E4M3Encode(float32(rng.NormFloat64())))
	}
	for range h.Groups * h.K / 128 * h.ScalePitch {
		h.XScale = append(h.XScale, 0, 0, byte(0x80*rng.IntN(2)), 0x3F)
	}
	want := make([]float64, h.T*h.Groups*h.N)
	require.NoError(t, projection.LinearRef(h, want))
	eachLinear(t, dev, func(t *testing.T, variant string) {
		op := must[*projection.Linear](t)(projection.NewLinear(dev, linearConfig(h, variant)))
		nearLinear(t, linear(t, dev, h, op, 1), want, 1e-6)
	})
	assert.Equal(t, "fp8-rows", projection.FormatFP8Rows.String())
}
