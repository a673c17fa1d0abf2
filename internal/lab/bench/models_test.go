package bench

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestLayerWorkV41 compares the bytes of caches that a step of DeepSeek-V4.1 has to move with those
// of its records: rows of 528, entries of 288, keys of 68, and 584, 584, 132 in V4's records.
func TestLayerWorkV41(t *testing.T) {
	const tokens, window, picks, candidates = 131072, 128, 512, 16384
	for _, x := range []struct {
		records         model.Records
		row, entry, key float64
	}{{model.RecordsV41, 528, 288, 68}, {model.RecordsV4, 584, 584, 132}} {
		o := LayerOptions{Records: x.records}
		c := o.config("v41-flash+5")
		s := decodeShape(1, tokens, 1)
		s.keys = o.keys(c)
		for kind, want := range map[string]struct{ attended, scored, made float64 }{
			"window":          {0, 0, 0},
			"full2":           {picks, tokens / 2, 1},
			"reuse2":          {picks, 0, 0},
			"full-blocks1":    {picks, tokens, 1},
			"reuse1":          {picks, 0, 0},
			"reindex-within1": {picks, candidates, 0},
		} {
			spec := c.Layers[layerOf(c, kind)].LayerSpec
			w := &model.DeviceLayer{}
			if spec.Compresses() {
				w.Compressor = &model.DeviceCompressor{}
			}
			if spec.Picks == model.PickOwn {
				w.Indexer = &model.DeviceIndexer{}
			}
			if spec.LatentKeys {
				w.Indexer.Keys = &model.DeviceKeys{}
			}
			work := layerWork(c, spec, &randomLayer{DeviceLayer: w}, s)
			assert.Equal(t, window*x.row+want.attended*x.entry+4*(window+want.attended), work["attention"].Cache, kind)
			assert.Equal(t, want.scored*x.key, work["indexer.select"].Cache, kind)
			assert.Equal(t, 2*want.scored*32*128, work["indexer.select"].Flop, kind)
			assert.Equal(t, want.made*x.key, work["indexer.compressor.compress"].Cache, kind)
			states := 0.0
			if spec.Gated() {
				states = 2 * 2 * 512 * 4
			}
			assert.Equal(t, want.made*x.entry+states, work["compressor.compress"].Cache, kind)
		}
		// A block attends the window before it and all of itself; of its context rows are kept.
		of := func(s stepShape) map[string]Work {
			return layerWork(c, model.DraftBlock, &randomLayer{DeviceLayer: &model.DeviceLayer{}}, s)
		}
		assert.Equal(t, 133*x.row+4*133*5, of(s.drafts(c.DraftBlock))["attention"].Cache)
		context := of(s)
		assert.Equal(t, x.row, context["q_norm_rope_kv_insert"].Cache)
		assert.Len(t, context, 3)
	}
}

// TestOnlyLayers demands that layers of a model that are cut out of it take from each other as
// before, and that a layer may be there more than once.
func TestOnlyLayers(t *testing.T) {
	for _, name := range append(slices.Clone(Models), "v41-flash+5") {
		c := modelConfig(name)
		assert.NoError(t, c.Check(), name)
		assert.NoError(t, onlyLayers(c, firstOfKinds(c)...).Check(), name)
		for _, kind := range KindsOf(name) {
			i := layerOf(c, kind)
			list := append(sourcesOf(c, i), i, i)
			cut := onlyLayers(c, list...)
			assert.NoError(t, cut.Check(), "%s, %s", name, kind)
			for at, l := range cut.Layers {
				if l.Borrows {
					assert.Equal(t, c.Layers[list[at]].EntriesOf, list[l.EntriesOf], "%s, %s", name, kind)
				}
			}
		}
	}
	c := modelConfig("v41-flash")
	assert.Equal(t, []int{0, 2, 3, 20, 21, 24}, firstOfKinds(c))
	assert.Equal(t, []int{20, 24}, sourcesOf(c, 25))
	assert.Equal(t, cache.IndexKeyMXFP4, LayerOptions{}.keys(c))
	v4 := LayerOptions{Records: model.RecordsV4}
	assert.Equal(t, cache.IndexKeyFP8, v4.keys(v4.config("v41-flash")))
}
