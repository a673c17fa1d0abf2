package attention

import "github.com/vkmla/vkmla/vk"

// cmPrefillTiling picks the sizes of the cooperative-matrix builds of attn_prefill.
// They are those of attn_decode: the two kernels differ only in where a row comes
// from, and an invocation's share of a row on its way is about as large (8 or 16
// registers, for 16 invocations a row).
//
// Errors: vk.ErrMissingFeature when no shape of the device fits.
func cmPrefillTiling(caps *vk.Caps, element string, heads int) (tiling, error) {
	return cmDecodeTiling(caps, element, heads)
}
