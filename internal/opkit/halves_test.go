package opkit

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/vk"
)

// Kernels ask for what a device offers, and for nothing else.
func TestHalfModes(t *testing.T) {
	preserve, nearest := "shaderDenormPreserveFloat16", "shaderRoundingModeRTEFloat16"
	of := func(features ...string) []spirv.Mode {
		c := vk.Caps{Features: map[string]bool{}}
		for _, f := range features {
			c.Features[f] = true
		}
		return halfModes(&c)
	}
	assert.Empty(t, of())
	assert.Equal(t, []spirv.Mode{spirv.PreserveDenorms}, of(preserve))
	assert.Equal(t, []spirv.Mode{spirv.PreserveDenorms, spirv.RoundNearest}, of(nearest, preserve))
}
