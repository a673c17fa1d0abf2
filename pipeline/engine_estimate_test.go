package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// TestEstimate demands that an engine with all that steps need has the bytes that were estimated
// before the weights were uploaded, each of them. TestWarm compares engines that run.
func TestEstimate(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	v4 := fakemodel.Config(0, 4, 128, 4)
	for name, x := range map[string]struct {
		storage fakemodel.Storage
		o       options
		cfg     model.Config
		pages   map[string]int
	}{
		"v41": {fakemodel.FP8, options{MaxTokens: 5000, MaxSessions: 3, MaxStep: 12, KeepTopK: true}, fakemodel.V41(), nil},
		"v41 in pages": {fakemodel.FP8, options{MaxTokens: 900, MaxSessions: 2, MaxStep: 9,
			LayerByLayer: true}, fakemodel.V41(), fakemodel.VLLMPagesV41(64)},
		"v41 drafts": {fakemodel.FP8, options{MaxTokens: 900, MaxSessions: 2, MaxStep: 9}, draftingModel(), nil},
		"v41 as v4": {fakemodel.BF16, options{MaxTokens: 900, MaxSessions: 2, MaxStep: 9, Records: model.RecordsV4,
			LayerByLayer: true}, fakemodel.V41(), nil},
		"default":   {fakemodel.BF16, options{MaxTokens: 5000, MaxSessions: 3, MaxStep: 12}, v4, nil},
		"layers":    {fakemodel.FP8, options{MaxTokens: 300, MaxStep: 5, LayerByLayer: true, KeepTopK: true}, v4, nil},
		"quantised": {fakemodel.NVFP4, options{MaxTokens: 4096, MaxStep: 3, QuantiseActivations: true, Keys: cache.IndexKeyMXFP4}, v4, nil},
		"quant 8":   {fakemodel.FP8F32, options{MaxTokens: 77, MaxStep: 2, QuantiseActivations: true}, v4, nil},
		"gathered":  {fakemodel.FP8, options{MaxTokens: 900, MaxSessions: 2, MaxStep: 9, Variant: "twopass-base"}, v4, oddPages},
		"cache bytes": {fakemodel.FP8, options{MaxTokens: 900, MaxSessions: 4, MaxStep: 4, CacheBytes: 8 << 20,
			MaxCacheBytes: 9 << 20}, v4, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cfg := t.Context(), x.cfg
			if x.o.QuantiseActivations {
				cfg.Hidden, cfg.ORank = 256, 128
			}
			m := fake(t, fakemodel.Options{Config: cfg, Storage: x.storage})
			var of model.CheckpointOptions
			if name == "v41 drafts" {
				of.Layers = all(cfg)
			}
			c, layers := opened(t, dev, m, of)
			c.Config = fakemodel.Paged(c.Config, x.pages)
			planned := must[[]*model.DeviceLayer](t)(c.Plan())
			before := fmt.Sprint(dev.MemoryInUse())
			want := must[pipeline.EngineMemory](t)(x.o.Estimate(ctx, dev, c.Config, planned))
			assert.Equal(t, before, fmt.Sprint(dev.MemoryInUse()), "estimating allocates")
			_, err := pipeline.NewEngine(ctx, dev, c.Config, planned, x.o)
			assert.ErrorIs(t, err, vk.ErrArgument, "weights without memory")
			e := engine(t, dev, c.Config, layers, x.o)
			require.NoError(t, e.OpenAll(ctx))
			assert.Equal(t, want, e.Memory())
			assert.NotZero(t, want.Weights)
			assert.NotZero(t, want.Host)
			assert.Equal(t, name == "gathered", want.Workspace > 0)
		})
	}
}

// TestCacheBytes compares what sessions of some lengths hold with what was said before there was a
// device: a page of what is not kept may have gone already. An engine that has no more memory than
// estimated holds these sessions.
func TestCacheBytes(t *testing.T) {
	dev := testkit.Device(t)
	c, layers := opened(t, dev, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0, 4, 128, 128), Storage: fakemodel.FP8}), model.CheckpointOptions{})
	assert.Zero(t, c.Config.CacheBytes(0))
	assert.Zero(t, model.Config{}.CacheBytes(1))
	options := pipeline.EngineOptions{MaxTokens: 3000, MaxSessions: 5, MaxStep: 64}
	sameBytes(t, dev, c, layers, options)
	usual := c.Config
	c.Config = fakemodel.Paged(usual, oddPages)
	sameBytes(t, dev, c, layers, pipeline.EngineOptions{MaxTokens: 3000, MaxSessions: 5, MaxStep: 300, Rewind: 77,
		Keys: cache.IndexKeyMXFP4})
	c.Config = usual
	ctx := t.Context()
	for _, bad := range [][]int{{0}, {-1}, {3001}, {1, 1, 1, 1, 1, 1}} {
		o := pipeline.EngineOptions{MaxTokens: 3000, MaxSessions: 5}
		_, err := o.Estimate(ctx, dev, c.Config, layers, bad...)
		assert.ErrorIs(t, err, vk.ErrArgument, "%v", bad)
	}
	_, err := pipeline.EngineOptions{}.Estimate(ctx, dev, c.Config, layers)
	assert.ErrorIs(t, err, vk.ErrArgument)

	c, layers = opened(t, dev, fake(t, fakemodel.Options{Config: fakemodel.V41(), Storage: fakemodel.FP8}), model.CheckpointOptions{})
	for _, c.Config.Records = range []model.Records{model.RecordsV41, model.RecordsV4} {
		sameBytes(t, dev, c, layers, options)
	}
}

// sameBytes compares what sessions of an engine with these options hold with what was said.
func sameBytes(t *testing.T, dev *vk.Device, c *model.Checkpoint, layers []*model.DeviceLayer, x pipeline.EngineOptions) {
	t.Helper()
	lengths := []int{1, 130, 700, 2050, 3000}
	want := must[pipeline.EngineMemory](t)(x.Estimate(t.Context(), dev, c.Config, layers, lengths...))
	o := x
	o.MaxCacheBytes = want.Caches
	e := engine(t, dev, c.Config, layers, o)
	sum := uint64(0)
	for _, n := range lengths {
		s, before := must[*pipeline.Session](t)(e.Open()), e.Memory().Held
		require.NoError(t, s.Advance(t.Context(), n))
		held, most := e.Memory().Held-before, must[pipeline.EngineMemory](t)(x.Estimate(t.Context(), dev, c.Config, layers, n)).Held
		sum += most
		assert.LessOrEqual(t, held, most, "%d tokens", n)
		assert.GreaterOrEqual(t, held+e.SpareBytes(), most, "%d tokens", n)
		if x.Rewind == 0 {
			assert.Equal(t, most, c.Config.CacheBytes(n), "%d tokens", n)
		}
	}
	assert.Equal(t, want.Held, sum)
	assert.LessOrEqual(t, want.Held, want.Caches)
	assert.LessOrEqual(t, e.Memory().Caches, want.Caches)
}

// TestVLLMPagesV41 holds the bytes of vLLM's pages of DeepSeek-V4.1: 32 rows of the window, and
// entries of as many tokens.
func TestVLLMPagesV41(t *testing.T) {
	dev := testkit.Device(t)
	c, layers := opened(t, dev, fake(t, fakemodel.Options{Config: fakemodel.V41()}), model.CheckpointOptions{})
	e := engine(t, dev, fakemodel.Paged(c.Config, fakemodel.VLLMPagesV41(128)), layers, options{MaxTokens: 300, MaxStep: 4})
	full2, full1 := e.Caches(1), e.Caches(4)
	assert.Equal(t, 32*528, full2.Window.Pool.Shape[1])
	assert.Equal(t, 64*288, full2.Compressed.Pool.Shape[1])
	assert.Equal(t, 128*288, full1.Compressed.Pool.Shape[1])
	assert.Equal(t, []int{64, 64 * 68}, []int{full2.Keys.Layout.Page, full2.Keys.Pool.Shape[1]})
	assert.Equal(t, 8, full2.State.Layout.Page)
}

// TestEstimateReleasedV41 demands of the released sizes of DeepSeek-V4.1 that what passes between
// operations does not grow with sequences, and that these hold what the configuration says.
func TestEstimateReleasedV41(t *testing.T) {
	dev, c := testkit.Device(t), model.FlashV41Config()
	layers := must[[]*model.DeviceLayer](t)(c.Plan(projection.FormatFP8, 1))
	for _, c.Records = range []model.Records{model.RecordsV41, model.RecordsV4} {
		var steps []uint64
		for _, n := range []int{1 << 15, 1 << 17} {
			m := must[pipeline.EngineMemory](t)(options{MaxTokens: n, MaxStep: 32}.Estimate(t.Context(), dev, c, layers, n))
			assert.Equal(t, c.CacheBytes(n), m.Held)
			steps = append(steps, m.Steps+m.Hidden)
		}
		assert.Equal(t, steps[0], steps[1])
	}
}
