package attention

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Names of the builds of the attention kernels. A two-pass decode has the name of the build of
// its second pass after TwoPassPrefix.
//
// f16 has a narrower range than the data. In cm and dot builds bf16 inputs (queries, rows of
// a workspace, rotated dims of a page) beyond +-65504 become +-65504; in cm a page's scale byte
// above 134 counts as 134, and a block with one below 105 as zeros. Normed keys and queries stay
// far inside. cmb takes every bf16 and every scale byte up to 246, base and da take everything.
const (
	VariantCMB  = opkit.CMB  // cooperative matrices of bf16; pools by device address
	VariantCM   = opkit.CM   // cooperative matrices of f16, see above; pools by device address
	VariantBase = opkit.Base // any Vulkan 1.2 device; pools bound as storage buffers
	VariantDA   = opkit.DA   // as base, with pools of any size by device address
	VariantDot  = opkit.Dot  // as da, with dot products of two halves, see above

	TwoPassPrefix = "twopass-"
)

// DecodeVariants is the ladder of NewDecoder, best first. The two-pass variants come last: for
// decode they exist for comparison. Prompts attend gathered rows where that pays, see Gathered.
var DecodeVariants = opkit.Decodes()

// PrefillVariants is the ladder of NewPrefill and NewTwoPass, best first.
var PrefillVariants = opkit.Builds("attn_prefill")

// knownDecoder refuses a name that is not in DecodeVariants, and lists all of them: each of the two
// ladders knows only its own.
func knownDecoder(variant string) error {
	var names []string
	for _, v := range DecodeVariants {
		names = append(names, v.Name)
	}
	if variant == "" || variant == TwoPassPrefix || slices.Contains(names, variant) {
		return nil
	}
	return pkg.Wrong("attn_decode", "variant", fmt.Sprintf("%q", variant), "one of %v", names)
}

// CanDecode reports whether NewDecoder can make the named variant for `heads` heads on an
// adapter: nil, or the error that it would return before it builds anything.
func CanDecode(a *vk.Adapter, variant string, heads int) error {
	if a == nil {
		return pkg.Wrong("decode", "adapter", "nil", "one of vk.Instance.Adapters")
	}
	if err := knownDecoder(variant); err != nil {
		return err
	}
	stem := "attn_decode"
	if rest, ok := strings.CutPrefix(variant, TwoPassPrefix); ok {
		stem, variant = "attn_prefill", rest
	}
	tune, _ := tuning.For(a)
	_, _, err := chooseBuild(tune, a, nil, stem, variant, 0, heads)
	return err
}
