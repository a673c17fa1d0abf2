package opkit

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/vk"
)

// halfModes returns the modes of binary16 numbers that kernels ask for, where a device has them.
// Codes of E4M3 and E2M1 become such numbers by moving bits, subnormals among them, and bf16
// numbers below 2^-14 are rounded to them. Without a mode Vulkan permits zeros in place of
// subnormals, and rounding towards zero, one kernel this way and the next another.
func halfModes(c *vk.Caps) (modes []spirv.Mode) {
	if c.Features["shaderDenormPreserveFloat16"] {
		modes = append(modes, spirv.PreserveDenorms)
	}
	if c.Features["shaderRoundingModeRTEFloat16"] {
		modes = append(modes, spirv.RoundNearest)
	}
	return modes
}

// halves reports why a build that needs some features cannot compute with binary16 numbers: the
// device takes subnormals for zeros. Where it does not promise to keep them, num_subnormals, a
// kernel of one invocation, finds out. A driver that only compiles is believed.
//
// Errors: one that wraps vk.ErrMissingFeature; those of building and running a kernel.
func (p Package) halves(dev *vk.Device, requires []string) error {
	if dev.Caps().Features["shaderDenormPreserveFloat16"] || !slices.Contains(requires, "shaderFloat16") {
		return nil
	}
	const none = 0xFFFFFFFF
	count := false
	if f := factsOf(dev); f != nil {
		count = !f.Flushes
	} else {
		words, err := p.ask(dev, "subnormals", 5, Spec{Stem: "num_subnormals", Variant: CM, Bindings: []vk.Access{vk.ReadWrite}})
		if err != nil {
			return err
		}
		count = slices.Equal(words, []uint32{none, 0x18001800, 0x00200020, 0x00200020, 0x37000000}) ||
			slices.Equal(words, []uint32{none, none, none, none, none})
	}
	if !count {
		return fmt.Errorf("%w: %s takes subnormal numbers of binary16 for zeros", vk.ErrMissingFeature, dev.Adapter().Name)
	}
	return nil
}
