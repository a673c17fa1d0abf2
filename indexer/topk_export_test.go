package indexer

import (
	"github.com/vkmla/vkmla/vk"
)

// TopKTunings are choices of shapes to test and to compare: what a GPU takes, the same
// with smaller digits of the radix selection, and with no kernel that holds a row in
// registers.
var TopKTunings = []string{"gpu", "bits10", "stream"}

// NewTunedTopK is NewTopK with the shapes that one of TopKTunings names, and without
// idx_topk_lanes.
func NewTunedTopK(dev *vk.Device, cfg TopKConfig, name string) (*TopK, error) {
	tuning := defaultTuning(vk.TypeDiscrete)
	switch name {
	case "bits10":
		for i := range tuning.short {
			tuning.short[i].bits = 10
		}
	case "stream":
		tuning.short = nil
	}
	o, err := newTopK(dev, cfg, tuning)
	if err == nil {
		o.lanes = nil
	}
	return o, err
}
