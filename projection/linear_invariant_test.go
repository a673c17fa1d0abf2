package projection_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// A token of an invariant layer has the same bits in a Record of any number of tokens, wherever it
// stands. Of layers that are not, some token has others, so that this test can fail; wherever it
// stands among as many tokens, the same.
//
// VKMLA_TEST_FULL=1 takes more numbers of tokens, and on a processor all layers with matrices, of
// which one is half a minute to compile.
func TestLinearInvariant(t *testing.T) {
	dev, full := testkit.Device(t), os.Getenv("VKMLA_TEST_FULL") == "1"
	slow := dev.Adapter().Type == vk.TypeCPU && !full
	for i, c := range []struct {
		f            projection.Format
		groups, n, k int
		profile      string
	}{
		{projection.FormatFP8F32, 1, 264, 1408, ""},
		{projection.FormatFP8, 2, 200, 1152, "hopper"},
		{projection.FormatNVFP4, 1, 136, 1568, ""},
		{projection.FormatBF16, 1, 328, 1000, "hopper"},
		{projection.FormatFP8Rows, 1, 136, 1024, ""},
		{projection.FormatFP8x32, 2, 104, 1104, "hopper"},
	} {
		everyInvariant(t, dev, func(t *testing.T, variant string) {
			if slow && i > 0 && variant != opkit.Base {
				t.Skip("half a minute to compile")
			}
			const most = 70
			rng := rand.New(rand.NewPCG(31, uint64(i)))
			h := unevenHost(rng, c.f, most, c.groups, c.n, c.k)
			cfg := linearConfig(h, variant)
			cfg.Workgroups = 4 // few, or layers as small as these would never come to the kernels of many tokens
			sizes := []int{1, 7, 17}
			if full || !slow {
				sizes = []int{1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 49, 63, 64, 65, 69}
			}
			differ := map[bool]int{}
			for _, invariant := range []bool{true, false} {
				cfg.Invariant = invariant
				want := linearOf(t, dev, h, cfg, c.profile)
				for _, tokens := range sizes {
					part, at := h, rng.IntN(most-tokens+1)
					part.T, part.X = tokens, h.X[2*at*h.Groups*h.K:][:2*tokens*h.Groups*h.K]
					few := cfg
					few.MaxTokens = tokens * rng.IntN(2)
					if !invariant {
						samePlaces(t, dev, part, few, c.profile)
					}
					for j, v := range linearOf(t, dev, part, few, c.profile) {
						a, b := math.Float32bits(want[at*h.Groups*h.N+j]), math.Float32bits(v)
						if a == b {
							continue
						}
						if differ[invariant]++; invariant {
							t.Fatalf("%d tokens: output %d of token %d is %08x, of %d tokens %08x", tokens, j%h.N, at+j/h.N, b, most, a)
						}
					}
				}
			}
			assert.Positive(t, differ[false], "outputs that the number of tokens changes where it may")
		})
	}
}

// samePlaces demands that a token has the same bits wherever it stands, among as many tokens.
func samePlaces(t *testing.T, dev *vk.Device, h projection.LinearHost, cfg projection.LinearConfig, profile string) {
	t.Helper()
	first, row := linearOf(t, dev, h, cfg, profile), 2*h.Groups*h.K
	h.X = append(slices.Clone(h.X[row:]), h.X[:row]...)
	second := linearOf(t, dev, h, cfg, profile)
	for i, v := range second {
		if a, b := math.Float32bits(v), math.Float32bits(first[(i+h.Groups*h.N)%len(first)]); a != b {
			t.Fatalf("%d tokens: output %d is %08x, then %08x", h.T, i, b, a)
		}
	}
}

// everyInvariant is eachLinear for the variants that compute otherwise than those before.
func everyInvariant(t *testing.T, dev *vk.Device, f func(t *testing.T, variant string)) {
	eachLinear(t, dev, func(t *testing.T, variant string) {
		if variant == opkit.DA {
			t.Skip("base by addresses")
		}
		f(t, variant)
	})
}

// unevenHost is randomHost with scales that are no powers of two, and some tiny inputs.
func unevenHost(rng *rand.Rand, f projection.Format, tokens, groups, n, k int) projection.LinearHost {
	h := randomHost(rng, f, tokens, groups, n, k)
	switch f {
	case projection.FormatFP8F32:
		for i := 0; i < len(h.Scale); i += 4 {
			binary.LittleEndian.PutUint32(h.Scale[i:], math.Float32bits(0.3+rng.Float32()))
		}
	case projection.FormatFP8, projection.FormatFP8x32:
		for i := range h.Scale {
			h.Scale[i] = byte(120 + rng.IntN(12))
		}
	case projection.FormatNVFP4:
		for i := range h.Scale {
			h.Scale[i] = byte(0x20 + rng.IntN(0x30))
		}
	}
	for i := range h.RowScale {
		h.RowScale[i] = 0.3 + rng.Float32()
	}
	for i := 0; i < len(h.X); i += 2 * 50 { // numbers that become subnormals of binary16
		binary.LittleEndian.PutUint16(h.X[i:], numfmt.BF16Encode(float32(rng.NormFloat64()*0x1p-18)))
	}
	return h
}

// linearOf runs a layer with the numbers of a profile, "" for the device's.
func linearOf(t *testing.T, dev *vk.Device, h projection.LinearHost, cfg projection.LinearConfig, profile string) []float32 {
	t.Helper()
	p := tuning.Of(dev)
	if profile != "" {
		p = must[*tuning.Profile](t)(tuning.Named(profile))
	}
	op, err := projection.NewLinearOf(dev, cfg, &p.Linear)
	if errors.Is(err, vk.ErrMissingFeature) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return linear(t, dev, h, op, 1)
}

// What an invariant layer launches does not depend on MaxTokens but for kernels that are left out.
func TestLinearInvariantPlan(t *testing.T) {
	rig := newTuningRig(t)
	for _, dev := range rig.devices {
		for _, cfg := range rig.layers {
			cfg.Invariant, cfg.OnDemand = true, true
			op, err := projection.NewLinear(dev, cfg)
			require.NoError(t, err, "%s: %+v", dev.Adapter().Name, cfg)
			for _, tokens := range []int{1, 2, 16, 33, 128, 4096} {
				few := cfg
				few.MaxTokens = tokens
				bounded, err := projection.NewLinear(dev, few)
				require.NoError(t, err)
				assert.Zero(t, op.ScratchLen(tokens), "K in parts")
				assert.Equal(t, projection.OrderOf(op, tokens), projection.OrderOf(bounded, tokens),
					fmt.Sprintf("%s: %+v, %d tokens", dev.Adapter().Name, cfg, tokens))
				assert.Equal(t, projection.OrderOf(op, 1), projection.OrderOf(op, tokens),
					fmt.Sprintf("%s: %+v, %d tokens", dev.Adapter().Name, cfg, tokens))
			}
		}
	}
}
