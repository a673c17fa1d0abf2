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
