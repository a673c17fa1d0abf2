package projection_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
)

// Tiles and passes that a CPU does without, against whole numbers.
func TestLinearBaseTiles(t *testing.T) {
	dev := testkit.Device(t)
	testkit.WithoutMatrices(t)
	const f = projection.FormatFP8F32
	rng := rand.New(rand.NewPCG(7, 7))
	h := linearHost(f, 256, 1, 264, 160, func(int, int) uint16 { return small(f, rng.IntN(7)-3) }, func(int, int) float32 { return float32(rng.IntN(7) - 3) })
	want := make([]float64, h.T*h.N)
	require.NoError(t, projection.LinearRef(h, want))
	cfg := linearConfig(h, opkit.Base)
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

// Halves hold up to 65504: larger weights and inputs of either sign count as that in both kernels
// that multiply halves, and no number becomes infinite.
func TestLinearHalvesEnd(t *testing.T) {
	dev := testkit.Dots(t)
	weights := []float32{1, -1, 65280, 65536, -65536, 1 << 20, -0x1p100, float32(math.NaN())}
	inputs := []float32{1, -1, 0x1p17, -0x1p90}
	h := linearHost(projection.FormatBF16, 70, 1, len(weights), 64, func(row, k int) uint16 {
		if k == row+3 {
			return numfmt.BF16Encode(weights[row])
		}
		return 0
	}, func(token, _ int) float32 { return inputs[token%len(inputs)] })
	op, err := projection.NewLinear(dev, linearConfig(h, opkit.Dot))
	require.NoError(t, err)
	half := func(v float32) float32 { return max(-65504, min(v, 65504)) } // NaN stays one
	for _, tokens := range []int{40, 70} {
		x := h
		x.T, x.X = tokens, h.X[:2*tokens*h.K]
		for i, v := range linear(t, dev, x, op, 0) {
			token, row := i/h.N, i%h.N
			want := half(inputs[token%len(inputs)]) * half(weights[row])
			same := v == want || math.IsNaN(float64(v)) && math.IsNaN(float64(want))
			require.True(t, same, "%d tokens: output %d of token %d is %g, want %g", tokens, row, token, v, want)
		}
	}
}
