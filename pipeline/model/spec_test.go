package model_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline/model"
)

// The pools of V4's kinds keep what their compressors read.
func TestSpecs(t *testing.T) {
	for _, s := range []model.LayerSpec{model.Window, model.C4A, model.C128A} {
		assert.Equal(t, model.KeepWindow, s.Pool(model.StoreWindow).Keep, s.Name)
		for _, store := range []model.Store{model.StoreState, model.StoreKeyState} {
			if p := s.Pool(store); p != nil {
				assert.Equal(t, s.Compression(cache.D).Window()-1, p.Keep, "%s: %s", s.Name, p.Name)
			}
		}
	}
	assert.Equal(t, verify.C4Main, model.C4A.Compression(cache.D))
	assert.Equal(t, verify.C4Index, model.C4A.Compression(cache.IndexDim))
	assert.Equal(t, verify.C128Main, model.C128A.Compression(cache.D))
	assert.Nil(t, model.Window.Pool(model.StoreEntries))
}

// borrowing are layers like those of V4.1: one with a compressor and an indexer, one with an
// indexer over borrowed keys, and two with borrowed picks.
func borrowing() []model.Layer {
	window := model.Window.Pools[0]
	full := model.LayerSpec{Name: "full", Ratio: 1, Picks: model.PickOwn, Pools: []model.PoolSpec{window,
		{Name: "full", Stores: []model.Store{model.StoreEntries, model.StoreKeys}, Page: 64, Tokens: 1, Keep: model.KeepAll},
		{Name: "full.state", Stores: []model.Store{model.StoreState, model.StoreKeyState}, Page: 16, Tokens: 1, Keep: 0}}}
	reindex := model.LayerSpec{Name: "reindex", Ratio: 1, Borrows: true, Picks: model.PickOwn, Pools: []model.PoolSpec{window}}
	reuse := model.LayerSpec{Name: "reuse", Ratio: 1, Borrows: true, Picks: model.PickEarlier, Pools: []model.PoolSpec{window}}
	return []model.Layer{
		{LayerSpec: full},
		{LayerSpec: reindex, EntriesOf: 0, PicksOf: 1},
		{LayerSpec: reuse, EntriesOf: 0, PicksOf: 1},
		{LayerSpec: reuse, EntriesOf: 0, PicksOf: 0},
	}
}

// Check accepts layers that take from earlier ones, and refuses rows that make no sense.
func TestCheckLayers(t *testing.T) {
	cfg := model.FlashConfig()
	cfg.Layers = borrowing()
	require.NoError(t, cfg.Check())
	for name, change := range map[string]func(l []model.Layer){
		"compress_ratios":      func(l []model.Layer) { l[1] = model.V4Layers(8)[0] },
		"layers[0]: got full":  func(l []model.Layer) { l[0].Ratio = 0 },
		"layers[3]: got reuse": func(l []model.Layer) { l[3].Picks = model.PickNone },
		"layers[0].EntriesOf":  func(l []model.Layer) { l[0].EntriesOf = 1 },
		"layers[1].EntriesOf":  func(l []model.Layer) { l[1].EntriesOf = 1 },
		"layers[2].EntriesOf":  func(l []model.Layer) { l[2].EntriesOf = 1 },
		"layers[1].PicksOf":    func(l []model.Layer) { l[1].PicksOf = 0 },
		"layers[3].PicksOf":    func(l []model.Layer) { l[3].PicksOf = 2 },
		"layers[0].Pools":      func(l []model.Layer) { l[0].Pools = l[0].Pools[:2] },
		"layers[0].Pools \"\"": func(l []model.Layer) { l[0].Pools[1].Name = "" },
		"layers[0].Pools \"fu": func(l []model.Layer) { l[0].Pools[1].Tokens = 2 },
		"layers[0].Pools \"full.st": func(l []model.Layer) {
			l[0].Ratio, l[0].Pools[1].Tokens = 2, 2
		},
		"layers[1].Pools \"win": func(l []model.Layer) { l[1].Pools[0].Page = 32 },
	} {
		list := borrowing()
		for i := range list {
			list[i].Pools = slices.Clone(list[i].Pools)
		}
		change(list)
		cfg.Layers = list
		err := cfg.Check()
		require.ErrorIs(t, err, model.ErrConfig, name)
		assert.ErrorContains(t, err, name)
	}
}
