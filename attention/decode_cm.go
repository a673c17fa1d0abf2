package attention

import "github.com/vkmla/vkmla/vk"

// cmDecodeTiling picks the matrix shape and the sizes of the cooperative-matrix
// builds of attn_decode.
func cmDecodeTiling(caps *vk.Caps, element string, heads int) (tiling, error) {
	return tiling{}, wrong("decode", "element", element, "an element type that a matrix build exists for")
}

// cmPrefillTiling is cmDecodeTiling for attn_prefill.
func cmPrefillTiling(caps *vk.Caps, element string, heads int) (tiling, error) {
	return tiling{}, wrong("prefill", "element", element, "an element type that a matrix build exists for")
}
