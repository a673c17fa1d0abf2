package indexer

import (
	"slices"

	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// TopKTunings are choices of shapes to test and to compare: what a GPU takes, the same
// with smaller digits of the radix selection, and with no kernel that holds a row in
// registers.
var TopKTunings = []string{"gpu", "bits10", "stream"}

// NewTunedTopK is NewTopK with the shapes that one of TopKTunings names, and without
// idx_topk_lanes.
func NewTunedTopK(dev *vk.Device, cfg TopKConfig, name string) (*TopK, error) {
	tune := hopper().TopK
	switch name {
	case "bits10":
		tune.Short = slices.Clone(tune.Short)
		for i := range tune.Short {
			tune.Short[i].Bits = 10
		}
	case "stream":
		tune.Short = nil
	}
	o, err := newTopK(dev, cfg, &tune)
	if err == nil {
		o.lanes = nil
	}
	return o, err
}

// hopper is the profile whose choices tests state.
func hopper() *tuning.Profile {
	p, err := tuning.Named("hopper")
	if err != nil {
		panic(err)
	}
	return p
}
