package opkit

import (
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/vk"
)

// halfModes are what kernels ask of binary16 numbers where a device lets them. Codes of E4M3 and
// E2M1 become such numbers by moving bits, subnormals among them, and bf16 numbers below 2^-14 are
// rounded to them. Without a mode Vulkan permits zeros in place of subnormals, and rounding towards
// zero, one kernel this way and the next another.
func halfModes(c *vk.Caps) (modes []spirv.Mode) {
	if c.Features["shaderDenormPreserveFloat16"] {
		modes = append(modes, spirv.PreserveDenorms)
	}
	if c.Features["shaderRoundingModeRTEFloat16"] {
		modes = append(modes, spirv.RoundNearest)
	}
	return modes
}
