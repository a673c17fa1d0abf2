package model

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/cache"
)

// Sources are the layers from which the kinds of DeepSeek-V4.1's layers follow: numbers of layers,
// ascending.
type Sources struct {
	Entries    []int // kv_source_layer_ids: these have a compressor, entries and index keys
	Picks      []int // index_source_layer_ids: these have an indexer, all of Entries among them
	Candidates int   // candidate_source_layer_id; negative: there are no candidates
}

// V41Layers returns layers of DeepSeek-V4.1 by their entries of compress_ratios: 0 means Window, 1
// and 2 mean entries of 1 or 2 tokens. Such a layer reads the entries of the newest layer of
// Sources.Entries at or below it, and the picks of the newest one of Sources.Picks. So it is one of
//
//	full      a compressor, entries, keys and an indexer of its own
//	reindex   an indexer of its own over borrowed entries and keys
//	reuse     borrowed entries and picks
//
// The layer that makes candidates is a kind of its own, as are those after it with an indexer:
// these pick from candidates alone, even of entries of their own. Names end with the ratio.
// Config.Check refuses rows without a source, and those of other ratios.
func V41Layers(s Sources, ratios ...int) []Layer {
	list := make([]Layer, 0, len(ratios))
	for i, ratio := range ratios {
		if ratio == 0 {
			list = appendLayers(list, false, []int{0})
			continue
		}
		l := Layer{EntriesOf: newest(s.Entries, i), PicksOf: newest(s.Picks, i)}
		l.LayerSpec = LayerSpec{Ratio: ratio, Picks: PickOwn, Pools: []PoolSpec{windowPool}}
		role := "full"
		switch {
		case l.EntriesOf == i:
			l.full()
		case l.PicksOf == i:
			role, l.Borrows = "reindex", true
		default:
			role, l.Borrows, l.Picks = "reuse", true, PickEarlier
		}
		switch source := s.Candidates; {
		case source < 0 || l.PicksOf != i || source > i:
		case source == i:
			role, l.Candidates = role+"-blocks", CandidatesMade
		default:
			role, l.Candidates, l.CandidatesOf = role+"-within", CandidatesUsed, source
		}
		if slices.Contains(v41Ratios, ratio) {
			l.Name = fmt.Sprint(role, ratio)
		}
		list = append(list, l)
	}
	return list
}

// SourcesOf returns the Sources by which V41Layers makes these layers.
func SourcesOf(layers []Layer) Sources {
	s := Sources{Candidates: -1}
	for i := range layers {
		l := &layers[i]
		if l.Compresses() {
			s.Entries = append(s.Entries, i)
		}
		if l.Picks == PickOwn {
			s.Picks = append(s.Picks, i)
		}
		if l.Candidates == CandidatesMade {
			s.Candidates = i
		}
	}
	return s
}

// v41Ratios are the tokens of an entry of V4.1; 0: no entries.
var v41Ratios = []int{0, 1, 2}

// full gives a row what only layers with a compressor have.
func (l *Layer) full() {
	l.Unplaced, l.Latent, l.LatentKeys = true, true, true
	pool := fmt.Sprint("ratio", l.Ratio)
	l.Pools = append(l.Pools, PoolSpec{Name: pool, Stores: []Store{StoreEntries, StoreKeys}, Page: 64, Tokens: l.Ratio, Keep: KeepAll})
	if l.Gated() {
		l.Pools = append(l.Pools, PoolSpec{Name: pool + ".state", Stores: []Store{StoreState}, Page: 16, Tokens: 1, Keep: l.Ratio - 1})
	}
}

// newest returns the last number of an ascending list that is not above i, or -1.
func newest(list []int, i int) int {
	for _, n := range slices.Backward(list) {
		if n <= i {
			return n
		}
	}
	return -1
}

// DraftBlock is a layer of a DSpark draft block, of DeepSeek-V4.1 and of those of V4 that have one.
// It keeps rows of the tokens of a sequence, its context, and gives nothing for them. A block of
// drafts attends the window that ends with the context, and all of itself; it is not kept.
//
// All layers of a block get the same input for the context, which the caller makes of what layers
// Config.DraftTargets do to a token: main_norm(main_proj(states)), with the states one after
// another, each the mean of its streams. A state is that before its layer in V4.1, and that after
// it in V4.
//
// Source: Transformer.forward and DSparkBlock in inference/model.py of either model.
var DraftBlock = LayerSpec{Name: "draft", Block: true,
	Pools: []PoolSpec{{Name: "draft", Stores: []Store{StoreWindow}, Page: windowPool.Page, Tokens: 1, Keep: KeepContext}}}

// WithDrafts returns the configuration with `layers` more layers that draft, as DraftBlock says,
// after all others, in blocks of 5 tokens unless DraftBlock is another number. The released models
// that have such layers have 3.
func (c Config) WithDrafts(layers int) Config {
	c.Layers, c.DraftBlock = slices.Clone(c.Layers), cmp.Or(c.DraftBlock, 5)
	for range layers {
		i := len(c.Layers)
		c.Layers = append(c.Layers, Layer{LayerSpec: DraftBlock, EntriesOf: i, PicksOf: i, Draft: true})
	}
	return c
}

// Records says in what bytes caches are kept. EngineOptions.Keys of package pipeline may ask for
// other index keys.
type Records uint8

// Values of Records.
//
// Sources: vLLM vllm/models/deepseek_v4; FlashMLA's V41 and V41_FP4.
const (
	// RecordsV4: window rows and entries of 584 bytes (cache.RecordV4), index keys of 132, FP8.
	// What DeepSeek-V4 has, and vLLM for V4.1 on some devices.
	RecordsV4 Records = iota + 1
	// RecordsV41: window rows of 528 bytes (cache.RecordFP8), entries of 288 (cache.RecordFP4),
	// index keys of 68, MXFP4. What DeepSeek-V4.1 was trained with.
	RecordsV41
)

// String returns "v4" or "v41".
func (r Records) String() string {
	switch r {
	case RecordsV4:
		return "v4"
	case RecordsV41:
		return "v41"
	}
	return fmt.Sprintf("records(%d)", uint8(r))
}

// Record returns the record that a slot of StoreWindow or StoreEntries holds.
func (r Records) Record(s Store) cache.Record {
	switch {
	case r != RecordsV41:
		return cache.RecordV4
	case s == StoreEntries:
		return cache.RecordFP4
	}
	return cache.RecordFP8
}

// Keys returns the format that index keys are kept in, unless an engine's options say otherwise.
func (r Records) Keys() cache.IndexKeyFormat {
	if r == RecordsV41 {
		return cache.IndexKeyMXFP4
	}
	return cache.IndexKeyFP8
}

// KeyStride is the bytes from a page of index keys to the next, 0 for the usual ones.
func (r Records) KeyStride(keys cache.IndexKeyFormat, page int) int {
	if r == RecordsV41 {
		return ceilDiv(page*(keys.RowBytes()+cache.IndexScaleBytes), 16) * 16
	}
	return 0
}

// FlashV41Config returns the configuration of DeepSeek-V4.1-Flash, without the layers that draft:
// see WithDrafts.
func FlashV41Config() Config {
	ratios := make([]int, 40)
	for i := range ratios {
		switch {
		case i >= 20:
			ratios[i] = 1
		case i >= 2:
			ratios[i] = 2
		}
	}
	c := FlashConfig()
	c.Hidden, c.QRank, c.IndexHeads, c.Eps = 5120, 1280, 32, 1e-20
	c.Layers = V41Layers(Sources{[]int{2, 8, 14, 20}, []int{2, 8, 14, 20, 24, 28, 32, 36}, 20}, ratios...)
	c.setV41()
	c.CandidateBlocks, c.CandidateBlock, c.DraftBlock = 2048, 8, 5
	return c
}

// setV41 sets what is the same in all models of DeepSeek-V4.1.
func (c *Config) setV41() {
	c.PlainQueries, c.WeightBlock, c.Records = true, v41Block, RecordsV41
}

// v41Block is the side of a block of FP8 weights with one scale, in DeepSeek-V4.1.
const v41Block = 32
