package attention_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// Records that no build reads together are refused by all forms of attention.
func TestRecordsTogether(t *testing.T) {
	dev := testkit.Device(t)
	for name, r := range map[string][2]cache.Record{
		"DeepSeek-V4's with another": {cache.RecordFP8, cache.RecordV4},
		"another with DeepSeek-V4's": {cache.RecordV4, cache.RecordFP4},
		"an unknown record":          {cache.RecordFP8, 3},
	} {
		cfg := attention.DecoderConfig{Heads: 8, WindowPage: 32, CompressedPage: 64, WindowRecord: r[0], CompressedRecord: r[1]}
		_, err := attention.NewDecoder(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
		_, err = attention.NewTwoPass(dev, attention.TwoPassConfig{DecoderConfig: cfg})
		assert.ErrorIs(t, err, vk.ErrArgument, name)
		_, err = attention.NewGathered(dev, attention.GatheredConfig{Heads: 8, WindowPage: 32, CompressedPage: 64,
			WindowRecord: r[0], CompressedRecord: r[1], Rows: attention.RowConfig{Window: 9, Windows: 64, Ratio: 2, Width: 5, Entries: 64}})
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}
