package pipelines

import (
	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// choicesV41 are those of DeepSeek-V4.1's layers that are not DeepSeek-V4's: records of 528 and 288
// bytes, MXFP4 keys, candidates, and entries of one or two tokens.
func choicesV41(c model.Config) []choice {
	decode := []int{1, 32}
	window, entries := c.Records.Record(model.StoreWindow), c.Records.Record(model.StoreEntries)
	pages := func(dev *vk.Device, tokens int) error {
		op, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: c.Heads, WindowPage: 64, CompressedPage: 64,
			WindowRecord: window, CompressedRecord: entries, OnDemand: true})
		if err != nil {
			return err
		}
		return op.Prepare(tokens, c.Window, c.TopK)
	}
	list := []choice{
		{"v4.1 decode", append(decode, 128), pages},
		{"v4.1 prefill", []int{4096}, func(dev *vk.Device, tokens int) error {
			if !attention.Gathers(dev, tokens, 1) {
				return pages(dev, tokens)
			}
			op, err := attention.NewGathered(dev, attention.GatheredConfig{Heads: c.Heads, WindowPage: 64, CompressedPage: 64,
				WindowRecord: window, CompressedRecord: entries,
				Rows: attention.RowConfig{Window: c.Window, Width: c.TopK, Ratio: 1, Windows: 1 << 16, Entries: 1 << 17}})
			if err != nil {
				return err
			}
			return op.Prepare(tokens)
		}},
	}
	keys := indexer.LogitsConfig{Format: c.Records.Keys(), Block: c.CandidateBlock}
	within := keys
	within.Blocks = c.CandidateBlocks
	list = append(list,
		selection(c, "v4.1 selection", indexer.SelectConfig{Logits: keys}),
		selection(c, "v4.1 selection and candidates", indexer.SelectConfig{Logits: keys, Candidates: c.CandidateBlocks}),
		selection(c, "v4.1 selection of candidates", indexer.SelectConfig{Logits: within}))
	for _, x := range []struct {
		op string
		c  cache.CompressConfig
	}{
		{"v4.1 compressor, two tokens", cache.CompressConfig{Compression: cache.C2Main, StatePage: 4, Page: 64, Record: entries}},
		{"v4.1 compressor, one token", cache.CompressConfig{Compression: cache.C1Main, Page: 64, Record: entries}},
		{"v4.1 compressor keys", cache.CompressConfig{Compression: cache.C2Index, Page: 64, Keys: c.Records.Keys()}},
	} {
		list = append(list, choice{x.op, decode[:1], func(dev *vk.Device, _ int) error {
			x.c.Save = true
			_, err := cache.NewCompress(dev, x.c)
			return err
		}})
	}
	return append(list, choice{"v4.1 q insert", decode[:1], func(dev *vk.Device, _ int) error {
		_, err := projection.NewQInsert(dev, projection.QInsertConfig{Page: 64, Record: window, RotateOnly: c.PlainQueries})
		return err
	}})
}
