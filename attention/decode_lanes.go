package attention

import (
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// lanesStem is the kernel for workgroups with as many heads as fit, on devices whose
// matrices lie in lanes in a way that it knows.
const lanesStem = "attn_decode_lanes"

// lanesOff keeps attn_decode_lanes out, for the tests of what other devices do.
var lanesOff = false

// withLanes puts attn_decode_lanes in front of the tilings of a build, in the place of those
// with as many heads or more, if the device's matrices suit it.
//
// Errors: those of building and running a kernel.
func withLanes(dev *vk.Device, variant string, list []tiling) ([]tiling, error) {
	if lanesOff || variant != VariantCM && variant != VariantCMB || len(dev.Caps().Missing(shaders.Requires(opkit.Stem(lanesStem, variant)))) > 0 {
		return list, nil
	}
	t := list[0]
	c := cmTiling{m: int(t.Constants[2]), n: int(t.Constants[3]), k: int(t.Constants[4]), heads: t.HeadsPerGroup, tile: t.Tile,
		subgroup: int(t.SubgroupSize), subgroups: cmSubgroups[0]}
	if dev.Adapter().Type == vk.TypeCPU { // one has no registers to run out of, but a compiler that is slow with long kernels
		c.heads = max(c.heads, c.m*c.subgroups/2)
	}
	if !c.fitLanes(dev.Caps()) {
		return list, nil
	}
	words, err := pkg.MatrixLayout(dev, variant, c.m, c.n, c.k, c.subgroup)
	if err != nil {
		return list, err
	}
	lanes := rowLanes(c.m, c.subgroup, words)
	if lanes == 0 || !c.shares(lanes) {
		return list, nil
	}
	first := tiling{HeadsPerGroup: c.heads, Tile: c.tile, Constants: append(c.constants(), uint32(lanes)), SubgroupSize: uint32(c.subgroup), Lanes: lanes}
	return append([]tiling{first}, slices.DeleteFunc(list, func(x tiling) bool { return x.HeadsPerGroup >= c.heads })...), nil
}

// fitLanes completes a tiling for attn_decode_lanes and checks it against what that assumes.
func (t *cmTiling) fitLanes(caps *vk.Caps) bool {
	if t.m != t.n || t.n != t.k || t.tile != t.m || t.heads%t.m != 0 || t.threads()%t.tile != 0 {
		return false
	}
	t.kSplit = max(1, t.subgroups/(t.heads/t.m))
	parts := t.threads() / t.tile // invocations of a row, which has 112 words of codes and 16 of two bf16 pairs
	return parts >= 4 && 16%parts == 0 && t.threads() >= t.heads && t.threads() <= int(caps.MaxWorkgroupInvocations) &&
		t.kSplit*t.k <= D && t.subgroups*t.n <= D && t.subgroups%t.kSplit == 0 && (t.heads/t.m)%(t.subgroups/t.kSplit) == 0 &&
		t.lanesSharedBytes() <= int(caps.SharedMemory)
}

// shares tells whether an invocation's share of the scores is made of whole rows, in fours.
func (t cmTiling) shares(lanes int) bool {
	each, scores := t.k/lanes, t.heads*t.tile/t.subgroups/t.subgroup
	return (each == 4 || each == 1) && scores%4 == 0 && scores%each == 0
}

// lanesSharedBytes is the sum of the shared arrays of lib/cm_mla_lanes.glsl.
func (t cmTiling) lanesSharedBytes() int {
	passed := max(16, (t.kSplit-1)*t.heads*t.tile*4) // of KSPLIT sums all but one's own
	return 2*t.tile*1040 + 16*t.threads() + passed + t.heads*(2*t.tile+24) + 8*t.tile + 4
}

// rowLanes reads from what opkit.MatrixLayout finds of square matrices A, B and C of n rows how
// many lanes L share a row (of B: a column): component i of lane l lies in row
// l/L + i/E*(subgroup/L), E = n/L, and there at lanesColumn(l%L, i%E). 0 if there is no
// such L.
func rowLanes(n, subgroup int, words []uint32) int {
	if len(words) != 3*n*n || n*n%subgroup != 0 {
		return 0
	}
next:
	for lanes := 1; lanes <= n && lanes <= subgroup; lanes *= 2 {
		each, lines := n/lanes, subgroup/lanes
		if lines > n {
			continue
		}
		for at, w := range words {
			matrix, i, l := at/(n*n), at%(n*n)/subgroup, at%subgroup
			row, column := l/lanes+i/each*lines, lanesColumn(n, each, l%lanes, i%each)
			if matrix == 1 {
				row, column = column, row
			}
			if int(w) != row*n+column {
				continue next
			}
		}
		return lanes
	}
	return 0
}

// lanesColumn is the column of element v of the each that a lane has of a row of n: with
// four, two neighbouring ones in either half of the row.
func lanesColumn(n, each, lane, v int) int {
	if each == 4 {
		return v/2*(n/2) + lane*2 + v%2
	}
	return lane*each + v
}
