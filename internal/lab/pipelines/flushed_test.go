package pipelines_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A device that takes subnormals of binary16 for zeros gets builds without such numbers, and a
// build with them that is asked for by name is refused. One that promises to keep them, or is
// found to, gets the best.
func TestFlushedSubnormals(t *testing.T) {
	for _, c := range []struct {
		name          string
		promises, has bool
	}{{"promises subnormals", true, false}, {"has subnormals", false, true}, {"flushes subnormals", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			all := knowncaps.Devices()
			d := all[slices.IndexFunc(all, func(d knowncaps.Device) bool { return d.Name == "Turing" })]
			d.Name = c.name
			if !c.promises {
				delete(d.Caps.Features, "shaderDenormPreserveFloat16")
			}
			dev := testkit.As(t, d)
			dev.Adapter().Facts.(*opkit.Facts).Flushes = !c.has
			for op, build := range map[string]func(variant string) (string, error){
				"linear": func(v string) (string, error) {
					o, err := projection.NewLinear(dev, projection.LinearConfig{N: 256, K: 256, Weights: projection.FormatFP8F32,
						Out: tensor.BF16, Variant: v, OnDemand: true})
					if err != nil {
						return "", err
					}
					return o.Variant(), nil
				},
				"decode": func(v string) (string, error) {
					o, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: 64, WindowPage: 64, Variant: v, OnDemand: true})
					if err != nil {
						return "", err
					}
					return o.Variant(), nil
				},
				"prefill": func(v string) (string, error) {
					o, err := attention.NewPrefill(dev, attention.PrefillConfig{Heads: 64, Variant: v})
					if err != nil {
						return "", err
					}
					return o.Variant(), nil
				},
				"logits": func(v string) (string, error) {
					o, err := indexer.NewLogits(dev, indexer.LogitsConfig{Heads: 64, Format: cache.IndexKeyFP8, Page: 64, Variant: v})
					if err != nil {
						return "", err
					}
					return o.Variant(), nil
				},
			} {
				best, err := build("")
				require.NoError(t, err, op)
				_, forced := build(opkit.CM)
				if c.promises || c.has {
					assert.Equal(t, opkit.CM, best, op)
					assert.NoError(t, forced, op)
				} else {
					assert.Contains(t, []string{opkit.Base, opkit.DA}, best, op)
					assert.ErrorIs(t, forced, vk.ErrMissingFeature, op)
				}
			}
		})
	}
}
