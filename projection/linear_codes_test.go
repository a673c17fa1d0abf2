package projection_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
)

// codesHost makes operands of E4M3 whose scales change from block to block and token to token, by
// up to `spread` powers of two.
func codesHost(rng *rand.Rand, weights projection.Format, act projection.ActivationFormat, tokens, groups, n, k, spread int,
	code func() byte) projection.LinearHost {
	h := linearHost(weights, tokens, groups, n, k, func(int, int) uint16 { return uint16(code()) }, func(int, int) float32 { return 0 })
	h.Activations, h.ScalePitch, h.X = act, tokens+3, h.X[:tokens*groups*k]
	for i := range h.X {
		h.X[i] = code()
	}
	block, each := projection.ScaleBlock, 1
	if act == projection.ActivationMXFP8 {
		block = 32
	}
	if act == projection.ActivationFP8 {
		each = 4
	}
	h.XScale = make([]byte, groups*k/block*h.ScalePitch*each)
	for i := range len(h.XScale) / each {
		if b := 127 - spread/2 + rng.IntN(spread); each == 1 {
			h.XScale[i] = byte(b)
		} else {
			binary.LittleEndian.PutUint32(h.XScale[4*i:], uint32(b)<<23)
		}
	}
	for i := range h.RowScale {
		h.RowScale[i] = float32(math.Ldexp(1, rng.IntN(7)-3))
	}
	for i := range h.Scale {
		if weights != projection.FormatFP8F32 {
			h.Scale[i] = byte(127 - spread/2 + rng.IntN(spread))
		} else if i%4 == 3 {
			binary.LittleEndian.PutUint32(h.Scale[i-3:], math.Float32bits(float32(math.Ldexp(1, rng.IntN(spread)-spread/2))))
		}
	}
	return h
}

// codesFormats are the formats of operands whose codes are multiplied as they are stored.
var codesFormats = []struct {
	weights projection.Format
	act     projection.ActivationFormat
}{
	{projection.FormatFP8F32, projection.ActivationFP8},
	{projection.FormatFP8, projection.ActivationFP8Packed},
	{projection.FormatFP8Rows, projection.ActivationFP8},
	{projection.FormatFP8x32, projection.ActivationMXFP8},
}

// eachCodes runs a test with operands of every format where the device has exact matrices of E4M3,
// as the emulated RDNA4 has. f gets the operation with a share of the scratch memory, and what is
// wanted.
func eachCodes(t *testing.T, tokens, groups, n, k int, code func(rng *rand.Rand) byte,
	f func(t *testing.T, run func(share float64) []float32, want []float64)) {
	dev := testkit.Device(t)
	for i, x := range codesFormats {
		rng := rand.New(rand.NewPCG(21, uint64(i)))
		h := codesHost(rng, x.weights, x.act, tokens, groups, n, k, 9, func() byte { return code(rng) })
		op, ok, err := projection.NewLinearCodes(dev, linearConfig(h, opkit.CM))
		require.NoError(t, err)
		if !ok {
			require.NotContains(t, dev.Adapter().Caps.Features, "coopmat.e4m3.f32")
			t.Skip("no exact matrices of E4M3")
		}
		want := wanted(t, h)
		t.Run(fmt.Sprint(h.Weights, "/", h.Activations), func(t *testing.T) {
			f(t, func(share float64) []float32 { return linear(t, dev, h, op, share) }, want)
		})
	}
}

// Codes multiplied as they are stored: small whole numbers, exact in any order, in tiles that rows
// and tokens do not fill, of two groups, with K whole and in parts.
func TestLinearStoredCodes(t *testing.T) {
	small := func(rng *rand.Rand) byte { return numfmt.E4M3Encode(float32(rng.IntN(7) - 3)) }
	eachCodes(t, 45, 2, 104, 1024, small, func(t *testing.T, run func(float64) []float32, want []float64) {
		for _, share := range []float64{0, 1} {
			for i, v := range run(share) {
				require.Equal(t, want[i], float64(v), "output %d", i)
			}
		}
	})
}

// Every code but NaN, subnormals too, loses nothing: sums are as near the definition as f32 is.
// 512 additions stray by some sqrt(512) * 2^-25 of a sum, 7e-7.
func TestLinearStoredCodesNear(t *testing.T) {
	number := func(rng *rand.Rand) byte {
		for {
			if c := byte(rng.UintN(256)); c&0x7F != 0x7F {
				return c
			}
		}
	}
	eachCodes(t, 33, 1, 96, 512, number, func(t *testing.T, run func(float64) []float32, want []float64) {
		nearLinear(t, run(0), want, 1e-6)
	})
}
