// Package knowncaps has capabilities as drivers report them, for plans and tests of how kernels
// are sized on devices that are not there.
package knowncaps

import "github.com/vkmla/vkmla/vk"

// Matrix are the capabilities that decide how products of matrices are divided, by device: of
// kinds that differ in them.
var Matrix = map[string]vk.Caps{}

func init() {
	for _, d := range Devices() {
		switch d.Name {
		case "H100", "RDNA3", "RDNA4", "CDNA with matrices", "Arc A", "Arc B":
			Matrix[d.Name] = d.Caps
		case "newer lavapipe":
			Matrix["lavapipe"] = d.Caps
		}
	}
}

// shape returns a shape for subgroups, of products with f32 sums.
func shape(m, n, k uint32, element string) vk.CoopMatShape {
	return vk.CoopMatShape{M: m, N: n, K: k, A: element, B: element, C: "f32", Result: "f32", Scope: "subgroup"}
}
