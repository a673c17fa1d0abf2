package projection_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// On demand, a layer asks for the one kernel of a number of tokens, and for another if K is cut. It
// plans the same launches as a layer that asks for all kernels.
func TestLinearOnDemand(t *testing.T) {
	// Nothing reads the scratch, which has room for all parts.
	scratch := tensor.Of(vk.View{Buffer: new(vk.Buffer)}, tensor.F32, 1<<30)
	for _, d := range knowncaps.Devices() {
		t.Run(d.Name, func(t *testing.T) {
			all, some := testkit.As(t, d), testkit.As(t, d)
			for _, tokens := range []int{1, 2, 4, 8, 16, 32, 64, 100, 1000} {
				cfg := projection.LinearConfig{N: 1024, K: 4096, Weights: projection.FormatFP8F32, Out: tensor.BF16, MaxTokens: tokens}
				before := len(all.Kernels())
				eager, err := projection.NewLinear(all, cfg)
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				cfg.OnDemand = true
				none := len(some.Kernels())
				lazy := must[*projection.Linear](t)(projection.NewLinear(some, cfg))
				assert.Len(t, some.Kernels(), none, "%d tokens: before Prepare", tokens)
				require.NoError(t, lazy.Prepare(tokens, scratch))
				require.NoError(t, lazy.Prepare(tokens, scratch))
				most := none + 1
				if lazy.ScratchLen(tokens) > 0 {
					most++
				}
				assert.LessOrEqual(t, len(some.Kernels()), most, "%d tokens: after Prepare", tokens)
				assert.Subset(t, named(all), named(some), "%d tokens", tokens)
				assert.Equal(t, eager.ScratchLen(tokens), lazy.ScratchLen(tokens), "%d tokens", tokens)
				if tokens == 1 {
					assert.Greater(t, len(all.Kernels()), before)
				}
				for _, wrong := range []int{-1, 0, tokens + 1} {
					assert.ErrorIs(t, lazy.Prepare(wrong, scratch), vk.ErrArgument, "%d of %d tokens", wrong, tokens)
				}
			}
			assert.NotEmpty(t, some.Kernels())
		})
	}
}

// named lists the kernels that a device was asked for.
func named(dev *vk.Device) (list []string) {
	for _, k := range dev.Kernels() {
		list = append(list, fmt.Sprint(k.Name(), " ", k.Constants(), " ", k.SubgroupSize()))
	}
	return list
}
