package gpu

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// matricesOf are those of the device; a test that finds none is skipped.
func matricesOf(t testing.TB, dev *vk.Device) *matrices {
	t.Helper()
	halves, err := keepsHalves(dev)
	require.NoError(t, err)
	d := fitMatrices(dev.Caps())
	if d == nil || !halves {
		require.NotEqual(t, "1", os.Getenv("VKMLA_TEST_REQUIRE_CM"))
		t.Skip("no matrices")
	}
	return d
}

// TestMatrices compares experts by matrices with those of the processor and with kernels without,
// in all formats: steps with padding, tiles that are not full, experts without a token.
func TestMatrices(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(13, 14))
	d := matricesOf(t, dev)
	const most = 40
	for i, f := range []formats{released,
		{routed: weights.FP8, shared: weights.MXFP4, gate: weights.F32, ends: weights.BF16},
		{ends: weights.BF16, stored: [3]string{"IQ2_XXS", "Q2_K", "Q8_0"}},
		{ends: weights.BF16, stored: [3]string{"Q4_K", "Q6_K", "Q8_0"}},
		{ends: weights.BF16, stored: [3]string{"MXFP4", "Q4_K", "F16"}}} {
		w := small(rng, f, 2)
		g, c := opened(t, dev, w, most)
		x, tile := activations(rng, most*w.Config.Hidden), d.least
		if i == 0 {
			tile *= 2
		}
		for k, s := range []struct{ padded, tokens int }{{most, most - 1}, {2, 1}} {
			ids, x := tokenIDs(rng, s.tokens, w.Config.Vocab), x[:s.tokens*w.Config.Hidden]
			layer := (i + k) % 2
			want := make([]float32, len(x))
			c.Experts(layer, &cpu.Streams{T: s.tokens, IDs: ids}, x, want, nil)
			g.matrices, g.tiles = nil, usual
			without := outputs(t, g, layer, s.padded, ids, x)
			of := *d
			of.least, of.most = tile, tile
			g.matrices, g.tiles.matrices, g.tiles.tiles = &of, 0, 1
			got := outputs(t, g, layer, s.padded, ids, x)
			assert.Less(t, off(got, want), 4e-3, "formats %d, %+v", i, s)
			assert.Less(t, off(got, without), 4e-3, "formats %d, %+v", i, s)
			assert.False(t, slices.Equal(got, without), "formats %d, %+v: other kernels ran", i, s)
		}
	}
}

// BenchmarkMatrices times the experts of some layers of V4-Flash by matrices, with tiles of some
// tokens (0: without matrices).
func BenchmarkMatrices(b *testing.B) {
	dev := device(b)
	d := matricesOf(b, dev)
	for i, f := range [][2]string{{"Q2_K", "Q2_K"}, {"MXFP4", "MXFP4"}, {"IQ2_XXS", "Q2_K"}, {"Q4_K", "Q6_K"}} {
		g, err := New(b.Context(), dev, flash(2, f[0], f[1]), Options{MaxStep: 4096, Matrices: true})
		require.NoError(b, err)
		for _, T := range []int{1024, 4096, 64, 128, 256} {
			for _, tile := range []int{0, 16, 32, 64, 128} {
				if tile == 0 && T > 256 || T > 256 && tile == 16 || i > 0 && (T != 1024 || tile > 64) {
					continue
				}
				b.Run(fmt.Sprintf("%s/T=%d/tile=%d", strings.Join(f[:], ","), T, tile), func(b *testing.B) {
					if g.matrices = nil; tile > 0 {
						of := *d
						of.least, of.most = tile, tile
						g.matrices, g.tiles.matrices = &of, 0
					}
					var r Rates
					for range b.N {
						r, err = g.Measure(b.Context(), T)
						require.NoError(b, err)
					}
					b.ReportMetric(0, "ns/op")
					for name, x := range map[string]Rate{"all": r.Experts, "up": r.Up, "down": r.Down} {
						b.ReportMetric(x.Seconds*1e6/float64(len(g.layers)), "us/layer:"+name)
					}
				})
			}
		}
		require.NoError(b, g.Close())
	}
}
