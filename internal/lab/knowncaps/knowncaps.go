// Package knowncaps has capabilities as drivers report them, for tests of how kernels
// are sized on devices that are not there.
package knowncaps

import "github.com/vkmla/vkmla/vk"

// Matrix are the capabilities that decide how products of matrices are divided, by
// device.
var Matrix = map[string]vk.Caps{
	"H100": {SharedMemory: 49152, MaxWorkgroupInvocations: 1024, MinSubgroupSize: 32, MaxSubgroupSize: 32,
		CoopMat: []vk.CoopMatShape{shape(16, 8, 8, "f16"), shape(16, 16, 16, "f16"), shape(16, 8, 16, "f16"), shape(16, 16, 16, "bf16")}},
	"RDNA3": {SharedMemory: 65536, MaxWorkgroupInvocations: 1024, MinSubgroupSize: 32, MaxSubgroupSize: 64,
		CoopMat: []vk.CoopMatShape{shape(16, 16, 16, "f16"), shape(16, 16, 16, "bf16")}},
	"Intel": {SharedMemory: 65536, MaxWorkgroupInvocations: 1024, MinSubgroupSize: 8, MaxSubgroupSize: 32,
		CoopMat: []vk.CoopMatShape{shape(8, 8, 16, "f16"), shape(8, 16, 16, "bf16")}},
	"lavapipe": {SharedMemory: 32768, MaxWorkgroupInvocations: 1024, MinSubgroupSize: 8, MaxSubgroupSize: 8,
		CoopMat: []vk.CoopMatShape{shape(8, 8, 8, "f16")}},
}

// Of devices of other kinds, those with matrices that none above has.
func init() {
	for _, d := range Devices() {
		switch d.Name {
		case "RDNA4", "CDNA with matrices", "Arc A", "Arc B":
			Matrix[d.Name] = d.Caps
		}
	}
}

// shape is a shape for subgroups, of products with f32 sums.
func shape(m, n, k uint32, element string) vk.CoopMatShape {
	return vk.CoopMatShape{M: m, N: n, K: k, A: element, B: element, C: "f32", Result: "f32", Scope: "subgroup"}
}
