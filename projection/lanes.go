package projection

import (
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// subgroupFor is the size of subgroups to build for, or 0 where a device's subgroups are too small.
func subgroupFor(caps *vk.Caps, tune *tuning.Linear) int {
	if size := max(tune.NormSubgroup, int(caps.MinSubgroupSize)); size <= int(caps.MaxSubgroupSize) {
		return size
	}
	return 0
}

// withLanes returns the build of a kernel whose invocations pass numbers on inside subgroups of a
// size, which is its last constant, if the device can run it, else the kernel as it is. Size 0
// stands for subgroupFor, a negative one for none.
func withLanes(dev *vk.Device, s opkit.Spec, subgroup int) opkit.Spec {
	stem := s.Stem + "_lanes"
	if subgroup == 0 {
		subgroup = subgroupFor(dev.Caps(), &tuning.Of(dev).Linear)
	}
	if subgroup < 1 || dev.Caps().Missing(shaders.Requires(opkit.Stem(stem, s.Variant))) != nil {
		return s
	}
	s.Stem, s.Subgroup, s.Constants = stem, uint32(subgroup), append(slices.Clone(s.Constants), uint32(subgroup))
	return s
}
