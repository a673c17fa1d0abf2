package opkit_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// A kernel that is larger than the device allows is refused with what is missing, before a
// driver sees it; one that just fits is not.
func TestLimits(t *testing.T) {
	all := slices.Repeat([]vk.Access{vk.ReadWrite}, 9)
	topk := opkit.Spec{Stem: "idx_topk", Variant: opkit.Base, Bindings: all, Push: [28]uint32{}, Constants: opkit.Constants(128, 16, 1536, 8, 0)}
	lanes := opkit.Spec{Stem: "idx_topk_lanes", Variant: opkit.Base, Bindings: all, Push: [16]uint32{}, Subgroup: 8, Constants: opkit.Constants(128, 1024, 8, 1024, 0, 8)}
	for _, c := range []struct {
		name    string
		spec    opkit.Spec
		change  func(c *vk.Caps)
		missing []string // nil: it fits
	}{
		{"least", topk, func(c *vk.Caps) {}, nil},
		{"buffers", topk, func(c *vk.Caps) { c.MaxStorageBuffers = 8 }, []string{"9 storage buffers"}},
		{"push constants", topk, func(c *vk.Caps) { c.MaxPushConstants = 32 }, []string{"112 bytes of push constants"}},
		{"invocations", topk, func(c *vk.Caps) { c.MaxWorkgroupInvocations = 64 }, []string{"128 invocations of a workgroup"}},
		{"x", topk, func(c *vk.Caps) { c.MaxWorkgroupSize[0] = 64 }, []string{"128 invocations of a workgroup in x"}},
		{"shared memory", topk, func(c *vk.Caps) { c.SharedMemory = 14000 }, []string{"14808 bytes of shared memory"}},
		{"16 subgroups", lanes, func(c *vk.Caps) { c.MaxWorkgroupSubgroups = 16 }, nil},
		{"subgroups", lanes, func(c *vk.Caps) { c.MaxWorkgroupSubgroups = 15 }, []string{"16 subgroups of a workgroup"}},
		{"subgroups of a device that does not tell", lanes, func(c *vk.Caps) { c.MaxWorkgroupSubgroups = 0 }, nil},
	} {
		d := knowncaps.Device{Name: c.name, Type: vk.TypeOther, Caps: knowncaps.Least()}
		d.Caps.MaxStorageBuffers, d.Caps.MinSubgroupSize, d.Caps.MaxSubgroupSize = 9, 8, 8
		for _, f := range []string{"subgroupShuffle", "subgroupSizeControl", "computeFullSubgroups"} {
			d.Caps.Features[f] = true
		}
		c.change(&d.Caps)
		_, err := opkit.Package("pkg").Kernel(testkit.As(t, d), c.spec)
		var missing *vk.MissingError
		assert.False(t, c.missing == nil && err != nil ||
			c.missing != nil && (!errors.As(err, &missing) || !errors.Is(err, vk.ErrLimit) || !slices.Equal(missing.Missing, c.missing)),
			"%s: %v, want missing %q", c.name, err, c.missing)
	}
}
