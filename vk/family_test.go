package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// The first family that computes is taken, on AMD's devices rather one that draws nothing.
func TestPickFamily(t *testing.T) {
	const transfer = 0x4
	both, alone := queueFamily{queueGraphics | queueCompute | transfer, 64}, queueFamily{queueCompute | transfer, 64}
	untimed, copies := queueFamily{queueCompute, 0}, queueFamily{transfer, 64}
	for _, c := range []struct {
		name     string
		families []queueFamily
		vendor   uint32
		want     int
	}{
		{"RADV", []queueFamily{both, alone, copies}, vendorAMD, 1},
		{"AMD with graphics alone", []queueFamily{both, copies}, vendorAMD, 0},
		{"AMD without a clock", []queueFamily{both, untimed}, vendorAMD, 0},
		{"AMD without graphics", []queueFamily{copies, alone, both}, vendorAMD, 1},
		{"NVIDIA", []queueFamily{both, copies, alone}, 0x10de, 0},
		{"copies", []queueFamily{copies}, 0x10de, -1},
		{"none", nil, vendorAMD, -1},
	} {
		assert.Equal(t, c.want, pickFamily(c.families, c.vendor), c.name)
	}
}
