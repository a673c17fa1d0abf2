package verify_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// maker calls one of the functions that make an operation, without a device.
func maker[C, O any](f func(*vk.Device, C) (O, error), cfg C) func() error {
	return func() error { _, err := f(nil, cfg); return err }
}

// No operation is made without a device, and that is an error of the argument.
func TestNothingIsMadeWithoutDevice(t *testing.T) {
	main := verify.C4Main
	logits := indexer.LogitsConfig{Heads: 64, Page: 64, Format: cache.IndexKeyFP8}
	for name, make := range map[string]func() error{
		"kv":           maker(cache.NewKV, cache.KVConfig{Layout: cache.Layout{Page: 2, Stride: 1728}, Pages: 3}),
		"touch":        func() error { _, err := cache.NewTouch(nil); return err },
		"table update": func() error { _, err := cache.NewTableUpdate(nil); return err },
		"insert":       maker(cache.NewInsert, cache.PagesConfig{Page: 64}),
		"gather":       maker(cache.NewGather, cache.PagesConfig{Page: 64}),
		"gather slots": maker(cache.NewGatherSlots, cache.PagesConfig{Page: 64}),
		"gather runs":  maker(cache.NewGatherRuns, cache.GatherRunsConfig{PagesConfig: cache.PagesConfig{Page: 64}}),
		"slot mapping": maker(cache.NewSlotMapping, cache.SlotMappingConfig{Page: 64, Ratio: 1}),
		"save state":   maker(cache.NewSaveState, cache.SaveStateConfig{Compression: main, Page: 8}),
		"compress":     maker(cache.NewCompress, cache.CompressConfig{Compression: main, Page: 64, StatePage: 8}),

		"top-k":       maker(indexer.NewTopK, indexer.TopKConfig{K: 512}),
		"query quant": maker(indexer.NewQueryQuant, indexer.QueryQuantConfig{Format: cache.IndexKeyFP8}),
		"logits":      maker(indexer.NewLogits, logits),
		"select":      maker(indexer.NewSelect, indexer.SelectConfig{K: 512, Logits: logits}),
		"visible":     maker(indexer.NewVisible, indexer.VisibleConfig{Ratio: 4}),

		"window indices":  maker(attention.NewWindowIndices, attention.WindowIndicesConfig{Page: 64}),
		"combine indices": func() error { _, err := attention.NewCombineIndices(nil); return err },
		"global top-k":    maker(attention.NewGlobalTopK, attention.GlobalTopKConfig{Page: 64}),
		"c128 indices":    maker(attention.NewC128Indices, attention.C128IndicesConfig{Page: 2}),
		"decoder":         maker(attention.NewDecoder, attention.DecoderConfig{Heads: 64, WindowPage: 64}),
		"two-pass":        maker(attention.NewTwoPass, attention.TwoPassConfig{DecoderConfig: attention.DecoderConfig{Heads: 64, WindowPage: 64}}),
		"gathered": maker(attention.NewGathered, attention.GatheredConfig{Heads: 64, WindowPage: 64,
			Rows: attention.RowConfig{Window: 128, Windows: 128}}),
		"prefill": maker(attention.NewPrefill, attention.PrefillConfig{Heads: 64}),

		"inverse rope":       maker(projection.NewInverseRope, projection.InverseRopeConfig{}),
		"qkv norm":           maker(projection.NewQKVNorm, projection.QKVNormConfig{Rank: 512}),
		"q insert":           maker(projection.NewQInsert, projection.QInsertConfig{Page: 64}),
		"inverse rope quant": maker(projection.NewInverseRopeQuant, projection.InverseRopeQuantConfig{Groups: 8, Heads: 8}),
		"linear": maker(projection.NewLinear,
			projection.LinearConfig{N: 512, K: 512, Weights: projection.FormatBF16, Out: tensor.BF16}),
	} {
		var wrong *vk.ArgumentError
		err := make()
		require.ErrorAs(t, err, &wrong, name)
		assert.Equal(t, "device", wrong.Arg, name)
	}
}
