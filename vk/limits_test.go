package vk_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

// The subgroup size of a kernel is known where one can be required and where the driver has
// only one. A driver that reports none, or several without a choice, may take any.
func TestSubgroups(t *testing.T) {
	for _, c := range []struct {
		name              string
		size, least, most uint32
		required          bool
		from, to          uint32
		known             bool
	}{
		{"NVIDIA", 32, 32, 32, true, 32, 32, true},
		{"RADV", 64, 32, 64, true, 32, 64, true},
		{"Mesa's NVK, which lets nobody require its only size", 32, 32, 32, false, 32, 32, true},
		{"several and no choice", 32, 8, 32, false, 32, 32, false},
		{"Vulkan 1.2", 32, 0, 0, false, 32, 32, false},
	} {
		got := vk.Subgroups(c.size, c.least, c.most, c.required)
		assert.True(t, got.SubgroupSize == c.size && got.MinSubgroupSize == c.from && got.MaxSubgroupSize == c.to &&
			got.KnowsSubgroups() == c.known,
			"%s: %d (%d to %d), known %v", c.name, got.SubgroupSize, got.MinSubgroupSize, got.MaxSubgroupSize,
			got.KnowsSubgroups())
	}
}

// A buffer beyond the driver's limit is refused before the driver sees it.
func TestMaxBuffer(t *testing.T) {
	a := *open(t, vk.DeviceOptions{}).Adapter()
	a.Caps.MaxBuffer = 1 << 16
	d, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	defer d.Close()
	buffer(t, d, 1<<16, vk.DeviceLocal).Close()
	_, err = d.NewBuffer(vk.BufferSpec{Label: "large", Size: 1<<16 + 1})
	require.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
	assert.Contains(t, err.Error(), "a buffer has at most 65536")
}
