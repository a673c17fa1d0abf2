package opkit

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/vk"
)

// FitMatrix finds a tiling of type T for products of matrices of an element type
// ("f16" or "bf16") with f32 sums, in subgroups. It offers fit the device's shapes,
// the largest first, until one suits.
//
// Errors: vk.ErrMissingFeature when none does.
func FitMatrix[T any](caps *vk.Caps, element string, fit func(vk.CoopMatShape) (T, bool)) (T, error) {
	var shapes []vk.CoopMatShape
	for _, s := range caps.CoopMat {
		if s.Scope == "subgroup" && s.A == element && s.B == element && s.C == "f32" && s.Result == "f32" {
			shapes = append(shapes, s)
		}
	}
	slices.SortStableFunc(shapes, func(a, b vk.CoopMatShape) int { return int(b.M*b.N*b.K) - int(a.M*a.N*a.K) })
	var offered []string
	for _, s := range shapes {
		if t, ok := fit(s); ok {
			return t, nil
		}
		offered = append(offered, fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K))
	}
	var none T
	return none, fmt.Errorf("%w: no shape of %s matrix product with f32 sums fits %d bytes of shared memory and %d invocations"+
		" (offered %v)",
		vk.ErrMissingFeature, element, caps.SharedMemory, caps.MaxWorkgroupInvocations, offered)
}
