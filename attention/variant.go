package attention

import (
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// Names of the builds of the attention kernels. A two-pass decode has the name of
// the build of its second pass after TwoPassPrefix.
//
// f16 has a narrower range than the data. In cm builds bf16 inputs (queries, rows of
// a workspace, rotated dims of a page) beyond +-65504 become +-65504, a page's scale
// byte above 134 counts as 134, and a block with one below 105 as zeros. Normed
// keys and queries stay far inside. cmb takes every bf16 and every scale byte up to
// 246, base and da take everything.
const (
	VariantCMB  = "cmb"  // cooperative matrices of bf16; pools by device address
	VariantCM   = "cm"   // cooperative matrices of f16, see below; pools by device address
	VariantBase = "base" // any Vulkan 1.2 device; pools bound as storage buffers
	VariantDA   = "da"   // as base, with pools of any size by device address

	TwoPassPrefix = "twopass-"
)

// DecodeVariants is the ladder of NewDecoder, best first. The two-pass variants
// come last: they exist for comparison, and as the strategy that shares the
// prefill kernels.
var DecodeVariants = append(ladder("attn_decode", ""), ladder("attn_prefill", TwoPassPrefix)...)

// PrefillVariants is the ladder of NewPrefill and NewTwoPass, best first.
var PrefillVariants = ladder("attn_prefill", "")

// buildStem is the name of a stem's build in package shaders.
func buildStem(stem, variant string) string {
	if variant == VariantBase {
		return stem
	}
	return stem + "_" + variant
}

// ladder lists the builds of a stem, best first, as far as they are in package
// shaders.
func ladder(stem, prefix string) []vk.Variant {
	var l []vk.Variant
	for _, v := range []string{VariantCMB, VariantCM, VariantBase, VariantDA} {
		name := buildStem(stem, v)
		if _, err := shaders.Get(name); err == nil {
			l = append(l, vk.Variant{Name: prefix + v, Requires: shaders.Requires(name)})
		}
	}
	return l
}

// tiling is what a build of an attention kernel is specialised for and how its
// grid is laid out.
type tiling struct {
	HeadsPerGroup int      // heads of one workgroup
	Tile          int      // rows of cache per step
	Constants     []uint32 // specialisation constants after HeadsPerGroup and Tile
	SubgroupSize  uint32   // to ask for; 0: any
	PerUnit       int      // workgroups that share a compute unit; 0: one
}

// baseTiling is the tiling of the builds without matrix units. A workgroup of 8
// heads needs 21664 bytes of shared memory, one of 4 heads 15248, within the 16 KiB
// that every device has; two fit a compute unit with 48 KiB.
func baseTiling(caps *vk.Caps, heads int) tiling {
	limit := 4
	if caps.SharedMemory >= 21664 {
		limit = 8
	}
	hg := 1
	for hg < heads && hg < limit {
		hg *= 2
	}
	return tiling{HeadsPerGroup: hg, Tile: 8, PerUnit: 2}
}

// tilingFor returns the tiling of a build of attn_decode or attn_prefill.
func tilingFor(caps *vk.Caps, stem, variant string, heads int) (tiling, error) {
	pick := cmDecodeTiling
	if stem == "attn_prefill" {
		pick = cmPrefillTiling
	}
	switch variant {
	case VariantCM:
		return pick(caps, "f16", heads)
	case VariantCMB:
		return pick(caps, "bf16", heads)
	}
	return baseTiling(caps, heads), nil
}

// chooseBuild picks a build of a stem: the one that want names, else the best that
// the device has the features and a matrix shape for, base giving way to da where
// maxBytes exceeds what a descriptor holds.
func chooseBuild(a *vk.Adapter, stem, want string, maxBytes uint64, heads int) (string, tiling, error) {
	ladder := ladder(stem, "")
	limit := a.Caps.MaxStorageBufferRange
	if want == "" {
		for _, v := range ladder {
			if len(a.Caps.Missing(v.Requires)) > 0 || (v.Name == VariantBase && maxBytes > limit) {
				continue
			}
			if t, err := tilingFor(&a.Caps, stem, v.Name, heads); err == nil {
				return v.Name, t, nil
			}
		}
		want = VariantDA // reached with huge pools only: the error names what is missing
	}
	v, err := vk.ChooseVariant(stem, a, ladder, want)
	if err != nil {
		return "", tiling{}, fmt.Errorf("attention: %w", err)
	}
	if v.Name == VariantBase && maxBytes > limit {
		return "", tiling{}, wrong(stem, "Variant", fmt.Sprintf("base for %d bytes", maxBytes),
			"another one: a descriptor of %s holds %d bytes", a.Name, limit)
	}
	t, err := tilingFor(&a.Caps, stem, v.Name, heads)
	if err != nil {
		return "", tiling{}, fmt.Errorf("attention: %s: variant %s: %w", stem, v.Name, err)
	}
	return v.Name, t, nil
}

// CanDecode reports whether NewDecoder can make the named variant for that many
// heads on an adapter: nil, or the error that it would return before building
// anything.
func CanDecode(a *vk.Adapter, variant string, heads int) error {
	stem := "attn_decode"
	if rest, ok := strings.CutPrefix(variant, TwoPassPrefix); ok {
		stem, variant = "attn_prefill", rest
	}
	_, _, err := chooseBuild(a, stem, variant, 0, heads)
	return err
}
