package model

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/cache"
)

// LayerSpec is a kind of layer: one row of the table that all else follows. Package
// pipeline makes pools, block tables and snapshots from it; nothing asks a layer for its name.
type LayerSpec struct {
	Name    string     // as in "window", "C4A", "C128A"; no two kinds of a model share it
	Ratio   int        // tokens of a compressed entry; 0: the layer has no entries
	Overlap bool       // an entry also pools the group before its own, by channels of their own
	Borrows bool       // its entries and index keys are those of an earlier layer; it has no compressor
	Picks   Picks      // which entries it attends
	Pools   []PoolSpec // its caches
}

// Picks says which compressed entries a layer attends.
type Picks uint8

// Values of Picks.
const (
	PickNone    Picks = iota // all entries, if there are any
	PickOwn                  // those that its indexer picks
	PickEarlier              // those that an earlier layer's indexer picked
)

// PoolSpec is a pool of pages. Layers whose specs name the same pool share page numbers,
// block table and snapshot section; each has memory of its own for the pages.
type PoolSpec struct {
	Name   string  // as in "c4a.state"; no two pools of a model share it
	Stores []Store // what is in a page, each in a buffer of its own
	Page   int     // slots of a page, 1 to MaxPage, unless an engine's options say another number
	Tokens int     // tokens of a slot
	Keep   int     // tokens before the next one that a step reads; or KeepAll, KeepWindow
}

// Values of PoolSpec.Keep besides numbers of tokens.
const (
	KeepAll    = -1 // every token of a sequence
	KeepWindow = -2 // Config.Window - 1 tokens
)

// Store is what a cache holds.
type Store uint8

// Values of Store.
const (
	StoreWindow   Store = iota // keys of the sliding window, a row a token
	StoreEntries               // compressed entries
	StoreKeys                  // the indexer's keys of the entries
	StoreState                 // what the compressor remembers of a token
	StoreKeyState              // the same, of the indexer's compressor
)

// Layer is a layer of a model: its kind, and which layers it takes from. The numbers are
// indices of Config.Layers.
type Layer struct {
	LayerSpec
	EntriesOf int // whose compressed entries and index keys it reads: its own unless Borrows
	PicksOf   int // whose picks it attends: its own unless PickEarlier

	// Draft: the layer only predicts ahead. Its tensors are those of mtp.M.attn, M counting such
	// layers from 0. They come last.
	Draft bool
}

// windowPool is the pool of the sliding window, which every layer has. Its page is that of vLLM, as
// is that of C4A's entries. Entries of C128A cover 128 tokens each, so a small page wastes
// little. Pages of states are large enough to keep their block tables short: a table has an
// entry for each page of a sequence although only the last few pages exist.
var windowPool = PoolSpec{Name: "window", Stores: []Store{StoreWindow}, Page: 64, Tokens: 1, Keep: KeepWindow}

// The kinds of layers of DeepSeek-V4.
var (
	// Window attends the sliding window only.
	Window = LayerSpec{Name: "window", Pools: []PoolSpec{windowPool}}
	// C4A also attends the entries of 4 tokens that its indexer picks.
	C4A = LayerSpec{Name: "C4A", Ratio: 4, Overlap: true, Picks: PickOwn, Pools: []PoolSpec{windowPool,
		{Name: "c4a", Stores: []Store{StoreEntries, StoreKeys}, Page: 64, Tokens: 4, Keep: KeepAll},
		{Name: "c4a.state", Stores: []Store{StoreState, StoreKeyState}, Page: 16, Tokens: 1, Keep: 7}}}
	// C128A also attends all entries of 128 tokens.
	C128A = LayerSpec{Name: "C128A", Ratio: 128, Pools: []PoolSpec{windowPool,
		{Name: "c128a", Stores: []Store{StoreEntries}, Page: 16, Tokens: 128, Keep: KeepAll},
		{Name: "c128a.state", Stores: []Store{StoreState}, Page: 32, Tokens: 1, Keep: 127}}}
)

// VLLMPages are the slots of vLLM's pages, by the names of V4's pools: a page of entries is for 256
// tokens. They are for EngineOptions.Pages of package pipeline.
//
// Source: block sizes of vLLM vllm/models/deepseek_v4/{attention,compressor}.py and
// vllm/v1/attention/backends/mla/sparse_swa.py.
func VLLMPages() map[string]int {
	return map[string]int{"window": 64, "c4a": 64, "c4a.state": 4, "c128a": 2, "c128a.state": 8}
}

// V4Layers returns layers of DeepSeek-V4 by their entries of compress_ratios: 0 and 1 mean
// Window, 4 means C4A and 128 means C128A. Config.Check refuses the rows of other ratios.
func V4Layers(ratios ...int) []Layer {
	return appendLayers(make([]Layer, 0, len(ratios)), false, ratios)
}

// appendLayers appends the layers of some ratios, each with entries and picks of its own.
func appendLayers(list []Layer, draft bool, ratios []int) []Layer {
	for _, r := range ratios {
		spec := LayerSpec{Ratio: r}
		switch r {
		case 0, 1:
			spec = Window
		case C4A.Ratio:
			spec = C4A
		case C128A.Ratio:
			spec = C128A
		}
		list = append(list, Layer{LayerSpec: spec, EntriesOf: len(list), PicksOf: len(list), Draft: draft})
	}
	return list
}

// Compression is how tokens become entries of dim numbers: HeadDim for those that are
// attended, IndexDim for index keys.
func (s *LayerSpec) Compression(dim int) cache.Compression {
	return cache.Compression{Dim: dim, Ratio: s.Ratio, Overlap: s.Overlap}
}

// Compresses reports whether the layer has a compressor.
func (s *LayerSpec) Compresses() bool { return s.Ratio > 0 && !s.Borrows }

// Pool returns the pool with a store, nil for a layer that has no such cache.
func (s *LayerSpec) Pool(store Store) *PoolSpec {
	for i := range s.Pools {
		if slices.Contains(s.Pools[i].Stores, store) {
			return &s.Pools[i]
		}
	}
	return nil
}

// stores lists the caches that a layer has to have, without StoreWindow.
func (s *LayerSpec) stores() []Store {
	switch {
	case !s.Compresses():
		return nil
	case s.Picks == PickOwn:
		return []Store{StoreEntries, StoreKeys, StoreState, StoreKeyState}
	}
	return []Store{StoreEntries, StoreState}
}

// layerCheck finds what is wrong with a list of layers.
type layerCheck struct {
	list  []Layer
	bad   func(field string, got any, want string, a ...any)
	pools map[string]PoolSpec
	kinds map[string]LayerSpec
}

func checkLayers(list []Layer, bad func(field string, got any, want string, a ...any)) {
	c := layerCheck{list: list, bad: bad, pools: map[string]PoolSpec{}, kinds: map[string]LayerSpec{}}
	for i := range list {
		c.layer(i)
	}
}

func (c *layerCheck) layer(i int) {
	l := &c.list[i]
	field := fmt.Sprintf("layers[%d]", i)
	if l.Name == "" || l.Ratio < 0 || l.Ratio > cache.MaxRatio {
		c.bad("compress_ratios", fmt.Sprintf("%d for layer %d", l.Ratio, i), "0, 1, 4 or 128")
		return
	}
	if l.Ratio == 0 && (l.Overlap || l.Borrows || l.Picks != PickNone) || l.Borrows && l.Overlap || l.Picks > PickEarlier {
		c.bad(field, l.Name, "no fields about entries that the layer does not have")
	}
	if k, seen := c.kinds[l.Name]; seen && !k.equal(&l.LayerSpec) {
		c.bad(field, l.Name, "one kind of layer by that name")
	}
	c.kinds[l.Name] = l.LayerSpec
	if i > 0 && c.list[i-1].Draft && !l.Draft {
		c.bad(field+".Draft", l.Draft, "true, behind a layer that only predicts ahead")
	}
	c.sources(field, i)
	c.caches(field, l)
}

// sources checks that a layer takes from itself or from an earlier one that has it.
func (c *layerCheck) sources(field string, i int) {
	l := &c.list[i]
	from := func(name string, source int, earlier bool) *Layer {
		switch {
		case !earlier && source != i:
			c.bad(field+"."+name, source, "%d, the layer itself", i)
		case earlier && (source < 0 || source >= i):
			c.bad(field+"."+name, source, "an earlier layer")
		default:
			return &c.list[source]
		}
		return nil
	}
	entries := from("EntriesOf", l.EntriesOf, l.Borrows)
	if entries != nil && l.Borrows && (!entries.Compresses() || entries.Ratio != l.Ratio ||
		l.Picks == PickOwn && entries.Picks != PickOwn) {
		c.bad(field+".EntriesOf", l.EntriesOf, "a layer with what %s reads, by a compressor of ratio %d", l.Name, l.Ratio)
	}
	picks := from("PicksOf", l.PicksOf, l.Picks == PickEarlier)
	if picks != nil && l.Picks == PickEarlier && (picks.Picks != PickOwn || picks.EntriesOf != l.EntriesOf) {
		c.bad(field+".PicksOf", l.PicksOf, "a layer whose indexer picks of the same entries")
	}
}

// caches checks that a layer has the pools that it needs, and that each is one pool
// throughout the model.
func (c *layerCheck) caches(field string, l *Layer) {
	var have []Store
	for _, p := range l.Pools {
		at := fmt.Sprintf("%s.Pools %q", field, p.Name)
		if p.Name == "" || len(p.Name) > MaxPoolName || p.Page < 1 || p.Page > MaxPage || p.Tokens < 1 || p.Keep < KeepWindow {
			c.bad(at, fmt.Sprintf("%+v", p), "a name, and 1 to %d slots of at least a token", MaxPage)
		}
		if q, seen := c.pools[p.Name]; seen && (q.Page != p.Page || q.Tokens != p.Tokens || q.Keep != p.Keep) {
			c.bad(at, fmt.Sprintf("%+v", p), "one pool by that name")
		}
		c.pools[p.Name] = p
		for _, s := range p.Stores {
			have = append(have, s)
			if tokens, keeps := l.reads(s, p.Keep); p.Tokens != tokens || !keeps {
				c.bad(at, fmt.Sprintf("%+v", p), "slots of %d tokens, and Keep at least what a step reads", tokens)
			}
		}
	}
	want := append([]Store{StoreWindow}, l.stores()...)
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		c.bad(field+".Pools", fmt.Sprintf("stores %v", have), "%v", want)
	}
}

// reads returns the tokens of a slot of a store, and whether keep is enough for what a step reads.
func (s *LayerSpec) reads(store Store, keep int) (tokens int, enough bool) {
	switch store {
	case StoreWindow:
		return 1, keep == KeepWindow || keep == KeepAll
	case StoreEntries, StoreKeys:
		return s.Ratio, keep == KeepAll
	}
	c := s.Compression(HeadDim)
	return 1, keep >= c.Window()-1 || keep == KeepAll
}

func (s *LayerSpec) equal(o *LayerSpec) bool {
	return s.Name == o.Name && s.Ratio == o.Ratio && s.Overlap == o.Overlap && s.Borrows == o.Borrows && s.Picks == o.Picks &&
		slices.EqualFunc(s.Pools, o.Pools, func(a, b PoolSpec) bool {
			return a.Name == b.Name && a.Page == b.Page && a.Tokens == b.Tokens && a.Keep == b.Keep && slices.Equal(a.Stores, b.Stores)
		})
}

const (
	// MaxPoolName is the most bytes of a PoolSpec.Name.
	MaxPoolName = 24

	// MaxPage is the most slots of a page.
	MaxPage = 1 << 16
)
