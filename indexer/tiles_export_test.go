package indexer

import (
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TilesTopK selects from rows with the tops of their tiles by idx_topk_tiles; false where
// the device cannot.
func TilesTopK(dev *vk.Device, k, tile int) (func(rec *vk.Recorder, logits, tops, lens, out tensor.Tensor) error, bool, error) {
	o, err := NewTopK(dev, TopKConfig{K: k})
	if err != nil {
		return nil, false, err
	}
	kernel, err := o.buildTiles(tile)
	return func(rec *vk.Recorder, logits, tops, lens, out tensor.Tensor) error {
		return o.record(rec, "top-k", topkRound{logits: logits, tops: tops, lens: lens, out: out, limit: logits.Shape[1], tiles: kernel})
	}, kernel != nil, err
}

// OrderKey is order_key of shaders/lib/order_key.glsl.
func OrderKey(bits uint32) uint32 {
	switch {
	case bits&0x7FFFFFFF > 0x7F800000:
		return 0x007FFFFF
	case bits == 0x80000000:
		bits = 0
	}
	if bits&0x80000000 != 0 {
		return ^bits
	}
	return bits | 0x80000000
}
