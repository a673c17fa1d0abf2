package attention

import (
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// prefillLanes is the stem of the one kernel in lanes that norms queries.
const prefillLanes = "attn_prefill_lanes"

// lanesOff keeps the kernels in lanes out, for tests of devices with unknown layouts.
var lanesOff = false

// laneTiling describes the division of work in attn_decode_lanes and attn_prefill_lanes; the names
// are those of shaders/lib/cm_lanes.glsl. M, N, K and TILE are one number, and all sizes are powers
// of two.
type laneTiling struct {
	matrixTiling
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

func (t laneTiling) constants() []uint32 { return append(t.matrixTiling.constants(), uint32(t.parts)) }

// valid reports whether the shaders' assumptions hold.
func (t laneTiling) valid() bool {
	headTiles, headParts := t.heads/t.m, t.subgroups/t.kSplit
	each := t.n / t.parts      // components of one row
	return headTiles%4 == 0 && // the products with V come in four equal parts
		headParts >= 1 && headTiles >= headParts && // a head tile or more for each subgroup's scores
		headParts <= 4 && // Q comes in through 2*TILE rows, in two turns
		t.kSplit*t.k <= cache.D && t.n <= 16 && t.subgroups*t.n <= cache.D && // 16 columns as in attn_decode_cm
		t.own() >= 1 && t.m*t.n/t.subgroup >= 4 && (each%4 == 0 || 4%each == 0) && // fours of scores
		t.threads()/t.tile <= t.subgroup && // a subgroup brings in whole rows
		t.threads()/t.tile >= 4 && 16%(t.threads()/t.tile) == 0 // of 56 words of codes and 16 of bf16, in decode
}

// norms reports whether attn_prefill_lanes norms queries with this tiling: an invocation adds up
// the sums of a head at most, 64 sums of each head find room in two tiles of rows, a part of the
// dims has all units that turn, and Q comes in at one turn for each head tile.
func (t laneTiling) norms() bool {
	return t.heads <= t.threads() && 16*t.heads <= 130*t.tile && cache.D/t.kSplit >= 64 && t.subgroups/t.kSplit <= 2
}

// lanes returns the tiling with the most heads per workgroup for a shape of matrix product whose
// accumulators lie in lanes as laneParts found. It is false if nothing fits, or if half of a
// workgroup's heads would be padding.
func (f matrixFit) lanes(s vk.CoopMatShape, heads, parts int) (laneTiling, bool) {
	size, subgroup, tune := int(s.M), int(f.caps.MinSubgroupSize), &f.tune.Attention
	if s.M != s.N || s.N != s.K || size < 8 || bits.OnesCount(uint(size)) != 1 ||
		subgroup < 8 || bits.OnesCount(uint(subgroup)) != 1 || parts == 0 {
		return laneTiling{}, false
	}
	for n := tune.LaneHeads; n >= 4*size; n /= 2 {
		if n >= 2*heads {
			continue
		}
		for _, subgroups := range tune.Subgroups {
			t := laneTiling{matrixTiling{m: size, n: size, k: size, heads: n, tile: size, subgroup: subgroup,
				subgroups: subgroups, kSplit: tune.LaneSplit}, parts}
			registers := f.registers(t.matrixTiling, t.heads*cache.D/2/t.threads())
			if tune.LanesAlways {
				registers = 0
			}
			if t.valid() && f.within(t.matrixTiling, t.sharedBytes(), registers) {
				return t, true
			}
		}
	}
	return laneTiling{}, false
}

// laneParts reads from what opkit.MatrixLayout finds whether accumulators lie in lanes as the
// kernels want them. PARTS neighbouring lanes share a row; component i of lane l is in row
// l/PARTS + i/each*subgroup/PARTS, each = n/PARTS; columns go round the lanes in pairs, or one
// by one if each is 1. It returns PARTS, or 0 for any other layout.
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

// layoutOf finds out which lanes hold which elements of a shape's matrices, as
// opkit.Package.MatrixLayout does.
type layoutOf func(m, n, k, subgroup int) ([]uint32, error)

// layout is that of a device's matrices, for a build.
func layout(dev *vk.Device, variant string) layoutOf {
	return func(m, n, k, subgroup int) ([]uint32, error) {
		return pkg.MatrixLayout(dev, variant, m, n, k, subgroup)
	}
}

// withLanes puts the tiling of a kernel in lanes first, in the place of those with as many heads
// or more, where the layout of a device's matrices allows it.
//
// Errors: those of layout.
func (f matrixFit) withLanes(layout layoutOf, stem, variant string, heads int, list []tiling) ([]tiling, error) {
	element := elements[variant]
	if lanesOff || element == "" || len(f.caps.Missing(shaders.Requires(opkit.Stem(stem, variant)))) > 0 {
		return list, nil
	}
	var failed error
	t, err := opkit.FitMatrix(f.caps, element, func(s vk.CoopMatShape) (laneTiling, bool) {
		if _, ok := f.lanes(s, heads, int(s.N)); !ok || failed != nil {
			return laneTiling{}, false
		}
		m, n, k, subgroup := int(s.M), int(s.N), int(s.K), int(f.caps.MinSubgroupSize)
		words, err := layout(m, n, k, subgroup)
		if failed = err; err != nil {
			return laneTiling{}, false
		}
		return f.lanes(s, heads, laneParts(m, n, k, subgroup, words))
	})
	if err != nil || t.heads < list[0].heads {
		return list, failed
	}
	first := t.tiling(1)
	first.stem, first.constants = stem, t.constants()
	first.norms = stem == prefillLanes && t.norms()
	return append([]tiling{first}, slices.DeleteFunc(list, func(x tiling) bool { return x.heads >= t.heads })...), nil
}

// withDecodeLanes is withLanes for attn_decode_lanes.
func (f matrixFit) withDecodeLanes(layout layoutOf, variant string, heads int, list []tiling) ([]tiling, error) {
	const stem = "attn_decode_lanes"
	if f.tune.Attention.LanesAlways {
		heads = f.tune.Attention.LaneHeads
	}
	list, err := f.withLanes(layout, stem, variant, heads, list)
	if err == nil && list[0].stem == stem {
		list[0].code = tuning.LanesCode
	}
	return list, err
}
