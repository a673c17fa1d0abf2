package cache

import "github.com/vkmla/vkmla/vk"

// References of parts of operations.
var (
	GatherRunsRef = gatherRunsRef
	HalvesRef     = halvesRef
)

// SlotOffset is the byte of a pool at which a slot begins.
func (l StateLayout) SlotOffset(slot int64) int64 { return l.slotOffset(slot) }

// StateConfig describes a state cache to allocate.
type StateConfig struct {
	Label  string // under which its memory is counted; "" means "compressor state"
	Pages  int    // at least 1
	Layout StateLayout
}

// NewState allocates a state cache; what its pages contain is undefined. A sequence
// needs the pages of its last Compression.Window tokens and of those of the step.
// The caller closes it.
//
// Errors: *vk.ArgumentError; those of tensor.New.
func NewState(dev *vk.Device, cfg StateConfig) (StateCache, error) {
	const op = "new state cache"
	if err := cfg.Layout.check(op); err != nil {
		return StateCache{}, err
	}
	pool, err := newPages(dev, op, cfg.Label, "compressor state", cfg.Pages, cfg.Layout.Page, cfg.Layout.Stride)
	if err != nil {
		return StateCache{}, err
	}
	c := StateCache{Pool: pool, Layout: cfg.Layout}
	if err := c.check(op); err != nil {
		pool.Close()
		return StateCache{}, err
	}
	return c, nil
}

// IndexKeysConfig describes a cache of indexer keys to allocate.
type IndexKeysConfig struct {
	Label  string // under which its memory is counted; "" means "index keys"
	Pages  int    // at least 1; Pages*Page slots, fewer than 2^31
	Layout IndexKeyLayout
}

// NewIndexKeys allocates a cache; what its pages contain is undefined. The caller
// closes it. Errors: *vk.ArgumentError; those of tensor.New.
func NewIndexKeys(dev *vk.Device, cfg IndexKeysConfig) (IndexKeyCache, error) {
	const op = "new index keys"
	if err := cfg.Layout.check(op); err != nil {
		return IndexKeyCache{}, err
	}
	pool, err := newPages(dev, op, cfg.Label, "index keys", cfg.Pages, cfg.Layout.Page, cfg.Layout.Stride)
	if err != nil {
		return IndexKeyCache{}, err
	}
	return IndexKeyCache{Pool: pool, Layout: cfg.Layout}, nil
}

// The compressors of DeepSeek-V4.
var (
	C4Main   = Compression{Dim: D, Ratio: 4, Overlap: true}        // K entries of C4A layers
	C4Index  = Compression{Dim: IndexDim, Ratio: 4, Overlap: true} // indexer keys of C4A layers
	C128Main = Compression{Dim: D, Ratio: 128}                     // K entries of C128A layers
)

// The compressors of DeepSeek-V4.1. Index keys are made of a product of the latents.
//
// Source: classes Compressor and Indexer of DeepSeek-V4.1's inference/model.py.
var (
	C2Main  = Compression{Dim: D, Ratio: 2, Latent: true}                       // entries of two tokens
	C1Main  = Compression{Dim: D, Ratio: 1, Latent: true, Ungated: true}        // entries of one token
	C2Index = Compression{Dim: IndexDim, Ratio: 2, Latent: true, Ungated: true} // index keys of C2Main's entries
	C1Index = Compression{Dim: IndexDim, Ratio: 1, Latent: true, Ungated: true} // index keys of C1Main's entries
)
