package tuning

import (
	"slices"

	"github.com/vkmla/vkmla/vk"
)

// The profiles of Intel's GPUs were fitted to the code that ANV's compiler makes of the kernels
// (Mesa 26.2.6, docs/design/intel.md), not to measurements: they never ran. A hardware thread has 4
// KiB of registers, and 8 KiB from Xe2 on, whatever the size of its subgroup: an invocation has 128
// in subgroups of the least size, half of them in the next one.

// xe serves Arc A and Meteor Lake. Their kernels without matrices spill with generic's
// numbers; matrices of Arc A run at a thousandth of that speed (llama.cpp#24404).
var xe = like(&generic, "xe", func(p *Profile) {
	p.Device.OtherUnits, p.Device.AvoidMatrices = 8, true
	p.Attention.Plain = []PlainForm{{16, 4, 1, 0.95}, {8, 4, 2, 0.65}, {4, 8, 3, 2.9}}
	p.Compress.ChunkInvocations = 128
	p.Linear.Tokens8to16.MostPass, p.Linear.Tokens8to16.Rows = 8, 2
	p.Linear.Base.Tiles, p.Linear.Base.Unroll = []BaseTile{{64, 64, 1, 0.8}}, 4
	p.Linear.NormSubgroup = 16
	p.Logits.BaseUnroll = 1
	p.TopK.LaneSubgroup, p.TopK.LaneEntries = 16, []int{4096, 8192}
	p.TopK.Short = []TopKShape{{512, 8, 0, 11}, {512, 16, 0, 11}, {512, 24, 0, 11}}
})

// xelp serves Tiger Lake to Raptor Lake and DG1. A core of theirs holds 64 threads of a workgroup,
// so that an invocation of 1024 has half of xe's registers: the selection spills 82 of them. One
// of 512 spills none and takes 0.85 of the compiler's clocks, but 1.24 on Arc A and Meteor Lake.
var xelp = like(&xe, "xelp", func(p *Profile) {
	p.TopK.Few = slices.Concat([]TopKShape{{512, 16, 4096, 10}}, p.TopK.Few[2:])
})

// xe2 serves Lunar Lake, Arc B and Panther Lake. With other registers counted so, kernels with
// matrices get what spills nothing: 8 heads of a workgroup of attention, in 32 subgroups where rows
// are decoded and in 16 of prefill, and 8 heads of a subgroup of the scores.
var xe2 = like(&generic, "xe2", func(p *Profile) {
	p.Device.DiscreteUnits, p.Device.OtherUnits = 20, 8
	a := &p.Attention
	a.OtherNarrow, a.Subgroups, a.DecodeSubgroups = 76, []int{16, 8}, []int{32, 16, 8}
	p.Compress.ChunkInvocations = 128
	p.Linear.Tiles.Pairs = false
	p.Logits.MatrixSubgroups, p.Logits.OtherRegisters = 2, 175 // of 255, where there are 128
})

// isXe and isXe2 tell Intel's GPUs by their subgroups. What these do not tell is listed by id.
func isXe(a *vk.Adapter) bool {
	return a.Type != vk.TypeCPU && a.Caps.MinSubgroupSize == 8 && a.Caps.MaxSubgroupSize == 32
}

func isXeLP(a *vk.Adapter) bool {
	_, generation := intelByID(a.Caps.VendorID, a.Caps.DeviceID)
	return isXe(a) && generation == xeLP
}

func isXe2(a *vk.Adapter) bool {
	return a.Type != vk.TypeCPU && a.Caps.MinSubgroupSize == 16 && a.Caps.MaxSubgroupSize == 32
}
