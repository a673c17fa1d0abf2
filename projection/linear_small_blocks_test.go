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
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// smallBlocks makes whole numbers under scales that change from block to block of 32.
func smallBlocks(seed uint64, tokens, groups, n, k int) projection.LinearHost {
	const f = projection.FormatFP8x32
	rng := rand.New(rand.NewPCG(32, seed))
	h := linearHost(f, tokens, groups, n, k, func(int, int) uint16 { return small(f, rng.IntN(7)-3) },
		func(int, int) float32 { return float32(rng.IntN(7) - 3) })
	for i := range h.Scale {
		h.Scale[i] = byte(124 + rng.IntN(7))
	}
	return h
}

// exactly compares with the definition, which whole numbers reach in any order.
func exactly(t *testing.T, dev *vk.Device, h projection.LinearHost, op *projection.Linear) {
	t.Helper()
	want := make([]float64, h.T*h.Groups*h.N)
	require.NoError(t, projection.LinearRef(h, want))
	for i, v := range linear(t, dev, h, op, 1) {
		if float64(v) != want[i] {
			t.Fatalf("%d tokens: output %d is %g, want %g", h.T, i, v, want[i])
		}
	}
}

// FP8 weights in blocks of 32 by every kernel, with groups and rows that end and begin within
// blocks and tiles.
func TestLinearSmallBlocks(t *testing.T) {
	dev := testkit.Device(t)
	whole := smallBlocks(1, 70, 2, 168, 368)
	everyInvariant(t, dev, func(t *testing.T, variant string) {
		cfg := linearConfig(whole, variant)
		cfg.Workgroups = 264 // a large device's kernels for few rows
		op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
		for _, tokens := range []int{1, 2, 9, 17, 70} {
			h := whole
			h.T, h.X = tokens, whole.X[:2*tokens*h.Groups*h.K]
			exactly(t, dev, h, op)
		}
	})
	for i, s := range []struct {
		tokens, groups, n, k int
		tiled                [5]int // of proj_linear_cm and proj_linear_whole; 0: proj_linear_tokens32to64
	}{
		{27, 1, 264, 1120, [5]int{}}, {40, 2, 104, 352, [5]int{16, 64, 32, 8, 16}}, {40, 2, 64, 576, [5]int{16, 32, 32, 8, 8}},
	} {
		for _, variant := range []string{opkit.CM, opkit.CMB} {
			t.Run(fmt.Sprint(s, variant), func(t *testing.T) {
				h := smallBlocks(uint64(2+i), s.tokens, s.groups, s.n, s.k)
				cfg := linearConfig(h, variant)
				cfg.MaxTokens, cfg.Workgroups = s.tokens, 8
				tiled := s.tiled != [5]int{}
				op, err := projection.NewLinear32to64(dev, cfg)
				if tiled {
					op, err = projection.NewLinearTiled(dev, cfg, s.tiled)
				}
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				if tiled {
					assert.Equal(t, s.n%s.tiled[1] == 0, projection.Paired(op, h.T), "by pairs of steps")
				}
				exactly(t, dev, h, op)
			})
		}
	}
}

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
