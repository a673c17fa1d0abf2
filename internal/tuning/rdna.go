package tuning

import "github.com/vkmla/vkmla/vk"

// The profiles of AMD's RDNA were fitted to the code that RADV's compiler makes of the kernels
// (Mesa 26.2.6, docs/design/amd.md), not to measurements: they never ran. What they do not name is
// generic's. Norms are in subgroups of 64, which keep twice as many lanes busy. What has matrices
// stays in subgroups of 32.

// rdna2 has no matrices.
var rdna2 = like(&generic, "rdna2", func(p *Profile) {
	p.Linear.NormSubgroup = 64
})

// rdna3 holds each element of a product's operands in two lanes. 8 subgroups of a workgroup issue a
// fifth fewer vector instructions for a tile than 16 of half the registers, and a seventh fewer of
// shared memory, which has room for one workgroup on a compute unit either way.
var rdna3 = like(&generic, "rdna3", func(p *Profile) {
	p.Linear.NormSubgroup = 64
	p.Device.MatrixRows = 1
	p.Attention.DecodeSubgroups = []int{8, 16, 32}
})

// rdna4 holds each element once, in spite of its subgroups. So a workgroup has room for 64 heads,
// where rows are decoded 16 at a time: a sixth fewer clocks than 32 heads and 32 rows take. By the
// model an R9700 takes 3.3 us for 64 heads and 32 rows; three tenths of this time do not depend on
// the number of heads. Its memory takes five times an H100's time for as much, half of that for
// half as many workgroups. What has room by the same rule and spills is kept out: 64 heads of a
// subgroup of the scores with elements of f16 (149 registers), not of codes; and pairs of steps of
// products (14 with f16 and bf16 weights, 6 with bf16 and FP8).
var rdna4 = like(&rdna3, "rdna4", func(p *Profile) {
	p.Device.OnceSubgroup = 64
	a := &p.Attention
	a.DecodeTiles, a.DecodeTile, a.DecodeShare, a.TrafficTime = []int{2, 1}, 3.3, 0.3, 12
	p.Logits.MatrixHeads, p.Logits.MatrixCodes = 32, true
	p.Attention.Float8 = true
	p.Linear.Tiles.Pairs, p.Linear.Tiles.Codes = false, []LinearTile{{128, 128, 128, 32, 64}}
})

// isRDNA tells RDNA from others by its subgroups: of 32 and of 64, which GCN and CDNA have not.
func isRDNA(a *vk.Adapter) bool {
	return a.Type != vk.TypeCPU && a.Caps.MinSubgroupSize == 32 && a.Caps.MaxSubgroupSize == 64
}

func isRDNA3(a *vk.Adapter) bool { return isRDNA(a) && a.Caps.Features["coopmat.f16.f32"] }

func isRDNA4(a *vk.Adapter) bool { return isRDNA3(a) && a.Caps.Features["coopmat.bf16.f32"] }
