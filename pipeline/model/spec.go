package model

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

// LayerSpec is a kind of layer: one row of the table that all else follows. Package
// pipeline makes pools, block tables and snapshots from it; nothing asks a layer for its name.
type LayerSpec struct {
	Name  string // as in "window", "C4A", "C128A"; no two kinds of a model share it
	Ratio int    // tokens of a compressed entry; 0: the layer has no entries

	// How the layer's own compressor pools tokens.
	Overlap  bool // an entry also pools the group before its own, by channels of their own
	Unplaced bool // scores have no positional term; those of groups of one token are left out
	Latent   bool // what was pooled is rounded to bf16 before its norm and after it: the latent
	// LatentKeys: index keys are a product of the latents, with a norm of its own; else they have a
	// compressor of their own.
	LatentKeys bool

	Borrows    bool       // its entries and index keys are those of an earlier layer; it has no compressor
	Picks      Picks      // which entries it attends
	Candidates Candidates // which entries its indexer scores
	Block      bool       // it attends in blocks of Config.DraftBlock tokens that are not kept: see DraftBlock
	Pools      []PoolSpec // its caches
}

// Picks says which compressed entries a layer attends.
type Picks uint8

// Values of Picks.
const (
	PickNone    Picks = iota // all entries, if there are any
	PickOwn                  // those that its indexer picks
	PickEarlier              // those that an earlier layer's indexer picked
)

// Candidates says which of the entries that a token may see its indexer scores. Candidates are the
// Config.CandidateBlocks blocks of Config.CandidateBlock entries each that hold the largest scores,
// and the newest block.
type Candidates uint8

// Values of Candidates.
const (
	CandidatesNone Candidates = iota // all
	CandidatesMade                   // all, and it makes candidates for later layers
	CandidatesUsed                   // the candidates of an earlier layer
)

// PoolSpec is a pool of pages. Layers whose specs name the same pool share page numbers,
// block table and snapshot section; each has memory of its own for the pages.
type PoolSpec struct {
	Name   string  // as in "c4a.state"; no two pools of a model share it
	Stores []Store // what is in a page, each in a buffer of its own
	Page   int     // slots of a page, 1 to 65536, unless an engine's options say another number
	Tokens int     // tokens of a slot
	Keep   int     // tokens before the next one that a step reads; or KeepAll, KeepWindow, KeepContext
}

// Values of PoolSpec.Keep besides numbers of tokens.
const (
	KeepAll     = -1 // every token of a sequence
	KeepWindow  = -2 // Config.Window - 1 tokens
	KeepContext = -3 // Config.Window tokens: what is in front of a block of drafts
)

// Store names the contents of a cache.
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
	EntriesOf    int // whose compressed entries and index keys it reads: its own unless Borrows
	PicksOf      int // whose picks it attends: its own unless PickEarlier
	CandidatesOf int // whose candidates its indexer scores; unused without CandidatesUsed

	// Draft: the layer only predicts ahead. Its tensors are those of mtp.M.attn, M counting such
	// layers from 0. They come last.
	Draft bool
}

// From lists the layers that a layer takes from, itself among them.
func (l *Layer) From() []int {
	if l.Candidates == CandidatesUsed {
		return []int{l.EntriesOf, l.PicksOf, l.CandidatesOf}
	}
	return []int{l.EntriesOf, l.PicksOf}
}

// windowPool is the pool of the sliding window, which every layer has. Its page is that of vLLM for
// V4, as is that of C4A's entries. Entries of C128A cover 128 tokens each, so a small page wastes
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

// Compression describes how tokens become entries of dim numbers: cache.D for those that are
// attended, cache.IndexDim for index keys.
func (s *LayerSpec) Compression(dim int) cache.Compression {
	keys := s.LatentKeys && dim == cache.IndexDim // whose rows are a product of latents, one for each entry
	return cache.Compression{Dim: dim, Ratio: s.Ratio, Overlap: s.Overlap, Latent: s.Latent, Ungated: keys || !s.gated()}
}

// Compresses reports whether the layer has a compressor.
func (s *LayerSpec) Compresses() bool { return s.Ratio > 0 && !s.Borrows }

// Gated reports whether the layer's compressor weighs tokens: a group of one has nothing to weigh.
func (s *LayerSpec) Gated() bool { return s.Compresses() && s.gated() }

func (s *LayerSpec) gated() bool { return s.Ratio > 1 || !s.Unplaced }

// WindowRows returns the most rows of the window that a token attends. With Block they are those of
// window positions before the block, and all rows of the block, newer ones among them.
func (s *LayerSpec) WindowRows(c *Config) int {
	if s.Block {
		return c.Window + c.DraftBlock
	}
	return c.Window
}

// Kept returns the number of tokens before the next one that a step reads of the pool, or KeepAll;
// window is that of the Config.
func (p *PoolSpec) Kept(window int) int {
	switch p.Keep {
	case KeepWindow:
		return window - 1
	case KeepContext:
		return window
	}
	return p.Keep
}

// Pool returns the pool with a store, nil for a layer that has no such cache.
func (s *LayerSpec) Pool(store Store) *PoolSpec {
	for i := range s.Pools {
		if slices.Contains(s.Pools[i].Stores, store) {
			return &s.Pools[i]
		}
	}
	return nil
}

const (
	// MaxPoolName is the most bytes of a PoolSpec.Name.
	MaxPoolName = 24

	// maxPage is the most slots of a page.
	maxPage = 1 << 16
)
