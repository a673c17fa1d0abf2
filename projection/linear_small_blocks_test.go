package projection_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// The product is that of the weights as bf16, bit for bit, where kernels add both in one order:
// proj_linear, proj_linear_cm and proj_linear_whole.
func TestLinearSmallBlocksAsBF16(t *testing.T) {
	dev := testkit.Device(t)
	const tokens, n, k = 80, 64, 448
	rng := rand.New(rand.NewPCG(33, 1))
	h := randomHost(rng, projection.FormatFP8x32, tokens, 1, n, k)
	for i := range h.Data { // all codes but NaN
		if h.Data[i] = byte(rng.UintN(256)); h.Data[i]&0x7F == 0x7F {
			h.Data[i] = 0
		}
	}
	for i := range h.Scale { // products of codes with them are numbers of binary16, too
		h.Scale[i] = byte(121 + rng.IntN(10))
	}
	b := h
	b.Weights, b.Scale, b.Data = projection.FormatBF16, nil, nil
	for row := range n {
		for i := range k {
			w := h.Weight(row, i)
			b.Data = binary.LittleEndian.AppendUint16(b.Data, numfmt.BF16Encode(float32(w)))
			require.Equal(t, w, b.Weight(row, i), "bf16 holds it")
		}
	}
	everyInvariant(t, dev, func(t *testing.T, variant string) {
		if variant == opkit.Dot {
			t.Skip("scales are those of sums")
		}
		for _, tile := range [][5]int{{16, 32, 32, 8, 8}, {16, 64, 32, 8, 32}} {
			of := func(h projection.LinearHost) [][]float32 {
				op, err := projection.NewLinearTiled(dev, linearConfig(h, variant), ofMatrices(dev, tile))
				require.NoError(t, err)
				if variant != opkit.Base {
					return [][]float32{linear(t, dev, h, op, 1)}
				}
				var all [][]float32
				for _, o := range projection.OnlyTiles(op) {
					all = append(all, linear(t, dev, h, o, 0))
				}
				return all
			}
			for i, got := range of(h) {
				for j, v := range of(b)[i] {
					if math.Float32bits(v) != math.Float32bits(got[j]) {
						t.Fatalf("output %d is %g, with bf16 %g", j, got[j], v)
					}
				}
			}
			if variant == opkit.Base {
				break
			}
		}
	})
}

// ofMatrices is a tile whose subgroups have a matrix at least, as long as a device has square ones.
func ofMatrices(dev *vk.Device, tile [5]int) [5]int {
	for _, s := range dev.Adapter().Caps.CoopMat {
		if s.M == s.N && s.A == "f16" {
			tile[3], tile[4] = max(tile[3], int(s.M)), max(tile[4], int(s.N))
		}
	}
	return tile
}
