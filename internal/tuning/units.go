package tuning

import "slices"

// Vendors' numbers on the PCI bus.
const (
	vendorIntel  = 0x8086
	vendorNVIDIA = 0x10de
)

// xeLP is the generation of profile xelp.
const xeLP = "Xe-LP"

// intelGPUs are the Xe cores of Intel's GPUs, before Arc their dual subslices, and their generation
// by the ids of devices: no Vulkan extension tells them. From Intel's published specifications;
// Mesa's list of ids says which is which (include/pci_ids/iris_pci_ids.h). Where models with fewer
// working cores share an id, the number is the largest model's.
var intelGPUs = []struct {
	units      int
	generation string
	of         string
	devices    []uint32
}{
	{1, xeLP, "16 execution units", []uint32{0x4c8c, 0x468b, 0x46d2}},
	{2, xeLP, "32 execution units", []uint32{0x9a60, 0x9a68, 0x9a70, 0x4c8a, 0x4c8b, 0x4c90, 0x4c9a, 0x4680, 0x4682, 0x4688, 0x468a,
		0x4690, 0x4692, 0x4693, 0x46d0, 0x46d1, 0x46d3, 0x46d4, 0xa780, 0xa781, 0xa782, 0xa783, 0xa788, 0xa789, 0xa78a, 0xa78b}},
	{6, xeLP, "96 execution units", []uint32{0x9a40, 0x9a49, 0x9a59, 0x9a78, 0x9ac0, 0x9ac9, 0x9ad9, 0x9af8, 0x4626, 0x4628, 0x462a,
		0x46a0, 0x46a1, 0x46a2, 0x46a3, 0x46a6, 0x46a8, 0x46aa, 0x46b0, 0x46b1, 0x46b2, 0x46b3, 0x46c0, 0x46c1, 0x46c2, 0x46c3,
		0xa720, 0xa721, 0xa7a0, 0xa7a1, 0xa7a8, 0xa7a9, 0xa7aa, 0xa7ab, 0xa7ac, 0xa7ad, 0x4905, 0x4906, 0x4907, 0x4908, 0x4909}},
	{4, "Xe-LPG", "Meteor and Arrow Lake U and S", []uint32{0x7d40, 0x7d45, 0x7d60, 0x7d41, 0x7d67, 0xb640}},
	{8, "Xe-LPG", "Meteor and Arrow Lake H", []uint32{0x7d55, 0x7dd5, 0x7d51, 0x7dd1}},
	{6, "Xe-HPG", "Arc A310, A350M", []uint32{0x5694, 0x56a6, 0x56bb, 0x56bd}},
	{8, "Xe-HPG", "Arc A370M, A380, Pro A30M to A50, Flex 140", []uint32{0x5693, 0x56a5, 0x56b0, 0x56b1, 0x56ba, 0x56bc, 0x56c1}},
	{12, "Xe-HPG", "Arc A530M", []uint32{0x5697}},
	{16, "Xe-HPG", "Arc A550M, A570M, Pro A60", []uint32{0x5692, 0x5696, 0x56b2, 0x56b3}},
	{24, "Xe-HPG", "Arc A580, A730M", []uint32{0x5691, 0x56a2, 0x56bf}},
	{28, "Xe-HPG", "Arc A750", []uint32{0x56a1, 0x56be}},
	{32, "Xe-HPG", "Arc A770, A770M, Flex 170", []uint32{0x5690, 0x56a0, 0x56c0}},
	{8, "Xe2", "Lunar Lake", []uint32{0x6420, 0x64a0, 0x64b0}},
	{16, "Xe2", "Arc Pro B50", []uint32{0xe212}},
	{18, "Xe2", "Arc B570", []uint32{0xe20c}},
	{20, "Xe2", "Arc B580, Pro B60", []uint32{0xe20b, 0xe211}},
	{12, "Xe3", "Panther Lake, the larger", []uint32{0xb080}},
}

// intelByID is 0 and empty for a device that is not listed.
func intelByID(vendor, device uint32) (units int, generation string) {
	if vendor != vendorIntel {
		return 0, ""
	}
	for _, r := range intelGPUs {
		if slices.Contains(r.devices, device) {
			return r.units, r.generation
		}
	}
	return 0, ""
}
