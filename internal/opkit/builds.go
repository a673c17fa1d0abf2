package opkit

import (
	"slices"
	"sync"

	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
)

// Names of the builds of a kernel: the suffixes of its SPIR-V, but for base,
// which has none.
//
// f16 has a narrower range than the data. In cm and dot builds of attention bf16 inputs (queries,
// rows of a workspace, rotated dims of a page) beyond +-65504 become +-65504; in cm a page's scale
// byte above 134 counts as 134, and a block with one below 105 as zeros. Normed keys and queries
// stay far inside. cmb takes every bf16 and every scale byte up to 246, base and da everything.
const (
	CMB  = "cmb"  // cooperative matrices of bf16, large memory by device address
	CM   = "cm"   // cooperative matrices of f16, large memory by device address
	Base = "base" // any Vulkan 1.2 device, all memory bound as storage buffers
	DA   = "da"   // as base, with large memory of any size by device address
	Dot  = "dot"  // as da, with dot products of two halves where that is faster

	// TwoPass begins the name of a two-pass decode, before the build of its second pass.
	TwoPass = "twopass-"
)

// tries has the order in which the builds of a stem are tried, best first, where there is more than
// base. A descriptor is no slower than an address and is checked by more layers, so that base comes
// first where it can hold the memory; but a small kernel that binds nothing begins sooner, since no
// descriptors have to be fetched.
var tries = map[string][]string{
	"kv_insert":               {Base, DA},
	"kv_gather":               {Base, DA},
	"kv_gather_slots":         {Base, DA},
	"kv_gather_runs":          {Base, DA},
	"kv_compress":             {Base, DA},
	"kv_save_state":           {DA, Base},
	"idx_query_quant":         {DA, Base},
	"idx_logits":              {CM, Dot, Base, DA}, // f16 holds every E4M3 and E2M1 code
	"attn_decode":             {CMB, CM, Dot, Base, DA},
	"attn_prefill":            {CMB, CM, Dot, Base, DA},
	"attn_merge":              {DA, Base},
	"proj_inverse_rope":       {Base, DA},
	"proj_inverse_rope_quant": {DA, Base},
	"proj_q_insert":           {DA, Base},
	"proj_qkv_norm":           {DA, Base},
	"proj_quantise":           {DA, Base},
	"proj_linear":             {CMB, CM, Dot, Base, DA},
}

var ladders = sync.OnceValue(func() map[string][]tuning.Variant {
	all, l := shaders.Names(), map[string][]tuning.Variant{}
	for stem, names := range tries {
		for _, v := range names {
			if name := Stem(stem, v); slices.Contains(all, name) {
				l[stem] = append(l[stem], tuning.Variant{Name: v, Requires: shaders.Requires(name)})
			}
		}
	}
	return l
})

// Builds lists the builds of a stem, best first.
func Builds(stem string) []tuning.Variant {
	if l, ok := ladders()[stem]; ok {
		return slices.Clip(l)
	}
	return []tuning.Variant{{Name: Base, Requires: shaders.Requires(stem)}}
}

// Decodes lists the ways to decode, best first: the builds of attn_decode, then two passes. These
// exist for comparison; not for pairs of halves, which would compare nothing new.
func Decodes() []tuning.Variant {
	all := Builds("attn_decode")
	for _, v := range Builds("attn_prefill") {
		if v.Name != Dot {
			all = append(all, tuning.Variant{Name: TwoPass + v.Name, Requires: v.Requires})
		}
	}
	return all
}

// Stem is the name of a stem's build in package shaders.
func Stem(stem, variant string) string {
	if variant == Base {
		return stem
	}
	return stem + "_" + variant
}

// Built names the build that an operation was made of. Operations with more than one embed it.
type Built string

// Variant returns the name of the build.
func (b Built) Variant() string { return string(b) }
