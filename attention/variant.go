package attention

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/opkit"
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
	VariantCMB  = opkit.CMB  // cooperative matrices of bf16; pools by device address
	VariantCM   = opkit.CM   // cooperative matrices of f16, see below; pools by device address
	VariantBase = opkit.Base // any Vulkan 1.2 device; pools bound as storage buffers
	VariantDA   = opkit.DA   // as base, with pools of any size by device address

	TwoPassPrefix = "twopass-"
)

// DecodeVariants is the ladder of NewDecoder, best first. The two-pass variants
// come last: they exist for comparison, and as the strategy that shares the
// prefill kernels.
var DecodeVariants = append(ladder("attn_decode"), twoPass(PrefillVariants)...)

// PrefillVariants is the ladder of NewPrefill and NewTwoPass, best first.
var PrefillVariants = ladder("attn_prefill")

// ladder lists the builds of a stem, best first.
func ladder(stem string) []vk.Variant {
	return opkit.Ladder(stem, VariantCMB, VariantCM, VariantBase, VariantDA)
}

// twoPass names builds as those of the second of two passes.
func twoPass(ladder []vk.Variant) []vk.Variant {
	ladder = slices.Clone(ladder)
	for i := range ladder {
		ladder[i].Name = TwoPassPrefix + ladder[i].Name
	}
	return ladder
}

// tiling is what a build of an attention kernel is specialised for and how its
// grid is laid out.
type tiling struct {
	Stem          string   // of the kernel, where it is not the operation's own
	HeadsPerGroup int      // heads of one workgroup
	Tile          int      // rows of cache per step
	Constants     []uint32 // specialisation constants after HeadsPerGroup and Tile
	SubgroupSize  uint32   // to ask for; 0: any
	PerUnit       int      // workgroups that share a compute unit; 0: one
	RowCost       float64  // time of a row of cache, in that of the build with the most heads; 0: see cost
	Code          float64  // time that its instructions take to come from memory, as they do in a step, in tiles of that build
	Turns         bool     // its kernel is attn_decode_few, which can turn whole rows
	Norms         bool     // and norm queries
}

// cost is the time of a tile, in tiles of the build with the most heads: of one row as RowCost says, else
// half of it for dequantising and half in proportion to the heads.
func (t tiling) cost(most tiling) float64 {
	row := t.RowCost
	if row == 0 {
		row = (1 + float64(t.HeadsPerGroup)/float64(most.HeadsPerGroup)) / 2
	}
	return row * float64(t.Tile) / float64(most.Tile)
}

// tilingsFor returns the tilings of a build of attn_decode or attn_prefill, the one
// with the most heads per workgroup first.
func tilingsFor(caps *vk.Caps, variant string, heads int) ([]tiling, error) {
	switch variant {
	case VariantCM:
		return cmTilings(caps, "f16", heads)
	case VariantCMB:
		return cmTilings(caps, "bf16", heads)
	}
	return []tiling{baseTiling(caps, heads)}, nil
}

// chooseBuild picks a build of a stem: the one that want names, else the best that
// the device has the features and a matrix shape for, base giving way to da where
// maxBytes exceeds what a descriptor holds.
func chooseBuild(a *vk.Adapter, stem, want string, maxBytes uint64, heads int) (variant string, t []tiling, err error) {
	variant, err = pkg.ChooseFit(a, stem, ladder(stem), want, maxBytes, func(v string) (err error) {
		t, err = tilingsFor(&a.Caps, v, heads)
		return err
	})
	return variant, t, err
}

// knownDecoder refuses a name that is not of DecodeVariants, all of which it says: each of
// the two ladders that they come from knows only its own.
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

// CanDecode reports whether NewDecoder can make the named variant for that many
// heads on an adapter: nil, or the error that it would return before building
// anything.
func CanDecode(a *vk.Adapter, variant string, heads int) error {
	if err := knownDecoder(variant); err != nil {
		return err
	}
	stem := "attn_decode"
	if rest, ok := strings.CutPrefix(variant, TwoPassPrefix); ok {
		stem, variant = "attn_prefill", rest
	}
	_, _, err := chooseBuild(a, stem, variant, 0, heads)
	return err
}
