package tuning

import (
	"cmp"
	"slices"
)

// Families of kernels, each timed by itself.
const (
	Products = "products"
	Prefill  = "prefill"
	Decode   = "decode"
	Scores   = "scores"
)

// Families are the operations that have builds to choose from, by how they call themselves where
// they choose.
var Families = map[string]string{"linear": Products, "attn_prefill": Prefill, "attn_decode": Decode, "logits": Scores}

// Timed records the findings on a family's builds.
type Timed struct {
	Microseconds map[string]float64 `json:"microseconds"` // of the builds that gave what base does
	Failed       map[string]string  `json:"failed"`       // why a build is never to run
}

// Best lists the builds that may run, the fastest first.
func (t Timed) Best() []string {
	var list []string
	for name := range t.Microseconds {
		list = append(list, name)
	}
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.Microseconds[a], t.Microseconds[b]), cmp.Compare(a, b))
	})
	return list
}

// Ladder returns the order in which builds of a family are tried where the caller names none: by
// the profile's times, without what failed, and without matrices where the profile avoids them.
// Builds that are not judged are as good as base, and always stay. Operations of no family have "".
func (p *Profile) Ladder(family string, ladder []Variant) []Variant {
	t := p.Timed[family]
	best := t.Best()
	rank := func(v Variant) int {
		name := v.Name
		if !Judged(v) {
			name = "base"
		}
		if i := slices.Index(best, name); i >= 0 {
			return i
		}
		return len(best)
	}
	list := slices.DeleteFunc(slices.Clone(ladder), func(v Variant) bool {
		return Judged(v) && t.Failed[v.Name] != "" || p.Device.AvoidMatrices && Matrices(v)
	})
	slices.SortStableFunc(list, func(x, y Variant) int { return rank(x) - rank(y) })
	return list
}

// Variant is one way to run an operation, and the device features it needs.
type Variant struct {
	Name     string
	Requires []string // keys of vk.Caps.Features; empty for a variant that always runs
}

// Matrices reports whether a build multiplies cooperative matrices.
func Matrices(v Variant) bool { return slices.Contains(v.Requires, "cooperativeMatrix") }

// Judged reports whether a build has to be timed: it multiplies matrices, or has dot products of
// halves. A driver may make either slower than none.
func Judged(v Variant) bool {
	return Matrices(v) || slices.Contains(v.Requires, "shaderMixedFloatDotProductFloat16AccFloat32")
}
