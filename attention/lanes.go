package attention

import (
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// lanesOff keeps the kernels in lanes out, for the tests of what other devices do.
var lanesOff = false

// laneTiling is how attn_decode_lanes and attn_prefill_lanes divide their work; the names
// are those of shaders/lib/cm_lanes.glsl. M, N, K and TILE are one number, and all sizes
// are powers of two.
type laneTiling struct {
	cmTiling
	parts int // PARTS, lanes that share a row of an accumulator
}

// own is OWN, how many fours of a tile's scores an invocation turns into weights.
func (t laneTiling) own() int { return t.heads * t.tile / (4 * t.threads()) }

// sharedBytes is the sum of the shared arrays.
func (t laneTiling) sharedBytes() int {
	rows := 2 * t.tile * 1040
	scores := 16 * t.threads() * (t.kSplit - 1) * t.own()
	weights := t.m * (2*t.tile*t.heads/t.m + 16)
	return rows + scores + weights + 4*t.heads + 8*t.tile + 4
}

func (t laneTiling) constants() []uint32 { return append(t.cmTiling.constants(), uint32(t.parts)) }

// fits tells whether the shader's assumptions hold on a device with so many bytes of
// shared memory.
func (t laneTiling) fits(shared int) bool {
	headTiles, headParts := t.heads/t.m, t.subgroups/t.kSplit
	each := t.n / t.parts      // components of one row
	return headTiles%4 == 0 && // the products with V come in four equal parts
		headParts >= 1 && headTiles >= headParts && // a head tile or more for each subgroup's scores
		headParts <= 4 && // Q comes in through 2*TILE rows, in two turns
		t.kSplit*t.k <= D && t.subgroups*t.n <= D &&
		t.own() >= 1 && t.m*t.n/t.subgroup >= 4 && (each%4 == 0 || 4%each == 0) && // fours of scores
		t.threads()/t.tile <= t.subgroup && // a subgroup brings in whole rows
		t.threads()/t.tile >= 4 && 16%(t.threads()/t.tile) == 0 && // of 56 words of codes and 16 of bf16, in decode
		t.sharedBytes() <= shared
}

// laneFit returns the tiling with the most heads per workgroup for a shape of matrix
// product whose accumulators lie in lanes as laneParts found; false if nothing fits, or
// half of a workgroup's heads would be padding. With anyRegisters it does not matter how
// many registers the device has.
func laneFit(caps *vk.Caps, s vk.CoopMatShape, heads, parts int, anyRegisters bool) (laneTiling, bool) {
	size, subgroup := int(s.M), int(caps.MinSubgroupSize)
	if s.M != s.N || s.N != s.K || size < 8 || bits.OnesCount(uint(size)) != 1 || subgroup < 8 || bits.OnesCount(uint(subgroup)) != 1 || parts == 0 {
		return laneTiling{}, false
	}
	for hg := cmMaxHeads; hg >= 4*size; hg /= 2 {
		if hg >= 2*heads {
			continue
		}
		for _, subgroups := range cmSubgroups {
			for _, split := range []int{4, 2} { // with 4 the rows are read half as often for scores
				t := laneTiling{cmTiling{m: size, n: size, k: size, heads: hg, tile: size, subgroup: subgroup, subgroups: subgroups, kSplit: split}, parts}
				if t.threads() <= int(caps.MaxWorkgroupInvocations) && t.fits(int(caps.SharedMemory)) &&
					(anyRegisters || t.registers(operandCopies(caps)) <= opkit.MatrixRegisters(subgroup, t.threads())) {
					return t, true
				}
			}
		}
	}
	return laneTiling{}, false
}

// laneParts reads from what opkit.MatrixLayout finds whether accumulators lie in lanes as
// the kernels want them: PARTS neighbouring lanes share a row, component i of lane l
// is in row l/PARTS + i/each*subgroup/PARTS, each = n/PARTS, and columns go round the
// lanes in pairs, or one by one if each is 1. It returns PARTS, 0 if they do not.
func laneParts(m, n, k, subgroup int, words []uint32) int {
	if len(words) != m*k+k*n+m*n || m*n%subgroup != 0 {
		return 0
	}
	words = words[m*k+k*n:]
next:
	for parts := 4; parts <= min(n, subgroup); parts *= 2 {
		each := n / parts
		pair := min(each, 2)
		for x, w := range words {
			i, l := x/subgroup, x%subgroup
			row := l/parts + i/each*(subgroup/parts)
			column := i%each/pair*pair*parts + l%parts*pair + i%pair
			if int(w) != row*n+column {
				continue next
			}
		}
		return parts
	}
	return 0
}

// cpuHeads are the most heads of a workgroup of a kernel in lanes on a CPU.
const cpuHeads = 32

// withLanes puts the tiling of a kernel in lanes before those of the operation, in the place
// of those with as many heads or more, where a device's matrices lie so that the kernel can
// use it. A subgroup's registers are no limit on a CPU, which runs it for the tests; its
// compiler is slow with long kernels, so that it gets that of cpuHeads for more of them.
//
// Errors: those of building and running a kernel.
func withLanes(dev *vk.Device, stem, variant string, heads int, tilings []tiling) ([]tiling, error) {
	element := map[string]string{VariantCM: "f16", VariantCMB: "bf16"}[variant]
	caps := dev.Caps()
	if lanesOff || element == "" || len(caps.Missing(shaders.Requires(opkit.Stem(stem, variant)))) > 0 {
		return tilings, nil
	}
	var failed error
	cpu := dev.Adapter().Type == vk.TypeCPU
	if cpu {
		heads = min(heads, cpuHeads)
	}
	t, err := opkit.FitMatrix(caps, element, func(s vk.CoopMatShape) (laneTiling, bool) {
		if _, ok := laneFit(caps, s, heads, int(s.N), cpu); !ok || failed != nil {
			return laneTiling{}, false
		}
		m, n, k, subgroup := int(s.M), int(s.N), int(s.K), int(caps.MinSubgroupSize)
		words, err := pkg.MatrixLayout(dev, variant, m, n, k, subgroup)
		if failed = err; err != nil {
			return laneTiling{}, false
		}
		return laneFit(caps, s, heads, laneParts(m, n, k, subgroup, words), cpu)
	})
	if err != nil || t.heads < tilings[0].HeadsPerGroup {
		return tilings, failed
	}
	first := tiling{Stem: stem, HeadsPerGroup: t.heads, Tile: t.tile, Constants: t.constants(), SubgroupSize: uint32(t.subgroup)}
	return append([]tiling{first}, slices.DeleteFunc(tilings, func(x tiling) bool { return x.HeadsPerGroup >= t.heads })...), nil
}

// withDecodeLanes is withLanes for attn_decode_lanes, which a CPU gets for any number of
// heads: most tests have fewer than it is for.
func withDecodeLanes(dev *vk.Device, variant string, heads int, tilings []tiling) ([]tiling, error) {
	if dev.Adapter().Type == vk.TypeCPU {
		heads = cpuHeads
	}
	return withLanes(dev, "attn_decode_lanes", variant, heads, tilings)
}
