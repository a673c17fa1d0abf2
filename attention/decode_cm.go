package attention

import (
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// cmTiling is how a cooperative-matrix build divides its work; the letters are
// those of shaders/lib/cm_sparse_mla.glsl.
type cmTiling struct {
	m, n, k   int // shape of a matrix product
	heads     int // HG, heads of a workgroup
	tile      int // TILE, rows of cache at a time
	subgroup  int // invocations of a subgroup
	subgroups int
	kSplit    int // KSPLIT, parts of the 512 dims in the score product
}

// cmMaxHeads is the most heads that share a workgroup: dequantising a row is paid
// once per workgroup, and 64 heads are what fits in an H100's registers.
const cmMaxHeads = 64

// cmSubgroups are the subgroup counts to try, first what is best: with more of them
// each holds fewer registers, but reads more from shared memory for each product.
var cmSubgroups = []int{8, 16, 32}

// cmRing is RING of lib/cm_mla_ring.glsl.
const cmRing = 4

func (t cmTiling) threads() int { return t.subgroup * t.subgroups }

// sharedBytes is the sum of the shared arrays of the form of lib/cm_mla_ring.glsl,
// which has the most of them.
func (t cmTiling) sharedBytes() int {
	rows := 2 * t.tile * 1040
	scores := t.kSplit * t.heads * (4*t.tile + 16)
	weights := t.heads * (2*t.tile + 16)
	return rows + scores + weights + 4*t.heads + cmRing*t.tile*20 + 4
}

// fewSharedBytes is the same with one tile of rows in the place of two, as attn_decode_few has it.
func (t cmTiling) fewSharedBytes() int { return t.sharedBytes() - t.tile*1040 }

// cmFewSubgroups are those to try for attn_decode_few: with 16, and so 16 invocations a row, its code is half as long
// as with 8, which counts where instructions come from memory.
var cmFewSubgroups = []int{16, 8, 32}

// fewParts is the most parts of the dims in the score product of attn_decode_few; a test has fewer.
var fewParts = D

// fitFew completes the tiling of a workgroup with few heads for attn_decode_few, whose tile is as large as two of
// the others: subgroups that have no heads left to divide divide its rows, and only then the dims, as far as there is
// shared memory for their sums. The rest has no part in the score product.
func (t cmTiling) fitFew(caps *vk.Caps) (cmTiling, bool) {
	t.tile = 2 * max(t.m, t.n, t.k)
	copies := operandCopies(caps)
	for _, t.subgroups = range cmFewSubgroups {
		heads := min(t.subgroups, t.heads/t.m)
		columns := min(t.subgroups/heads, t.tile/t.n)
		parts := t.threads() / t.tile // invocations of a row, see lib/cm_lanes_row.glsl
		if t.subgroups*t.n > D || parts < 4 || 16%parts != 0 || t.threads()%64 != 0 || t.threads() < cmRing*t.tile || t.threads() > int(caps.MaxWorkgroupInvocations) {
			continue
		}
		for t.kSplit = min(fewParts, t.subgroups/heads/columns); t.kSplit > 0; t.kSplit /= 2 {
			q := t.heads*512/2/(heads*t.kSplit*t.subgroup) - t.heads*512/2/t.threads() // held beside what registers counts
			if t.kSplit*t.k <= D && t.fewSharedBytes() <= int(caps.SharedMemory) && t.registers(copies)+copies*q <= opkit.MatrixRegisters(t.subgroup, t.threads()) {
				return t, true
			}
		}
	}
	return t, false
}

// fewRowCost is what a row costs attn_decode_few beside one of the most heads: bringing it in and waiting for others,
// whatever the number of heads. Measured on an H100 (docs/design/decode.md).
const fewRowCost = 0.75

// What the code of the kernels of the most heads, and of attn_decode_few with fewer than 16 invocations a row, costs more than that with
// 16, which is short. Measured in steps of 1 to 32 tokens on an H100 (docs/design/decode.md).
const wideCode, fewCode = 3.0, 4.0

// fewStem is the kernel for workgroups with fewer heads than fit.
const fewStem = "attn_decode_few"

// withFew makes tilings of attn_decode_few of all tilings but the first, those that fit.
func withFew(caps *vk.Caps, variant string, list []tiling) []tiling {
	list = slices.Clone(list)
	list[0].Code = wideCode
	out := list[:1:1]
	if len(list) == 1 || len(caps.Missing(shaders.Requires(opkit.Stem(fewStem, variant)))) > 0 {
		return out
	}
	for _, x := range list[1:] {
		c := cmTiling{m: int(x.Constants[2]), n: int(x.Constants[3]), k: int(x.Constants[4]), heads: x.HeadsPerGroup, subgroup: int(x.SubgroupSize)}
		if c, ok := c.fitFew(caps); ok {
			few := tiling{HeadsPerGroup: c.heads, Tile: c.tile, Constants: c.constants(), SubgroupSize: uint32(c.subgroup), Turns: true, Norms: c.norms(), RowCost: fewRowCost}
			if c.threads()/c.tile < 16 {
				few.Code = fewCode
			}
			out = append(out, few)
		}
	}
	return out
}

// norms reports whether attn_decode_few norms queries with this tiling: all of them come in at once, an invocation has two
// units of 8 numbers of one head or of two, and there is room for sums where scores will be. See lib/cm_q_norm.glsl.
func (t cmTiling) norms() bool {
	units, threads := t.heads*D/8, t.threads()
	return t.heads <= t.tile && (units == 2*threads || units == 4*threads) && units/2 <= 4*t.kSplit*t.heads*(t.tile/4+1)
}

// registers estimates the 32-bit registers of an invocation: its share of the
// output in f32 and of q, a column of weight fragments, and what is left for
// addresses, rows on their way and the rest. copies is how often the device holds
// an element of a product's operands.
func (t cmTiling) registers(copies int) int {
	out := t.heads * 512 / t.threads()
	q := t.heads * 512 / 2 / t.threads()
	weights := t.heads * t.k / 2 / t.subgroup
	const rest = 44
	return out + copies*(q+weights) + rest
}

// constants are the specialisation constants after HG and TILE.
func (t cmTiling) constants() []uint32 {
	return opkit.Words(t.threads(), t.subgroup, t.m, t.n, t.k, t.kSplit)
}

// operandCopies is how often a device holds an element of a product's operands. RDNA3
// keeps each twice. It is known by subgroups of 64, which others do not have; RDNA4
// needs less than is assumed here.
func operandCopies(caps *vk.Caps) int {
	if caps.MaxSubgroupSize > 32 {
		return 2
	}
	return 1
}

// cmFit returns the tiling with the most heads per workgroup, within heads, that
// a device with these capabilities has registers, shared memory and invocations
// for, given a shape of matrix product.
func cmFit(caps *vk.Caps, s vk.CoopMatShape, heads int) (cmTiling, bool) {
	t := cmTiling{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize)}
	for _, v := range []int{t.m, t.n, t.k, t.subgroup} {
		if v < 8 || bits.OnesCount(uint(v)) != 1 {
			return t, false
		}
	}
	t.tile = max(t.m, t.n, t.k)
	copies := operandCopies(caps)
	t.heads = t.m
	for t.heads < cmMaxHeads && t.heads < heads {
		t.heads *= 2
	}
	for ; t.heads >= t.m; t.heads /= 2 {
		for _, t.subgroups = range cmSubgroups {
			t.kSplit = max(1, t.subgroups/(t.heads/t.m))
			if t.kSplit*t.k <= D && t.subgroups*t.n <= D && t.threads()%t.tile == 0 && t.threads() >= cmRing*t.tile &&
				t.threads() <= int(caps.MaxWorkgroupInvocations) && t.sharedBytes() <= int(caps.SharedMemory) &&
				t.registers(copies) <= opkit.MatrixRegisters(t.subgroup, t.threads()) {
				return t, true
			}
		}
	}
	return t, false
}

// cmChoose picks a tiling for products of an element type ("f16" or "bf16") with
// f32 sums, the largest shape first.
func cmChoose(caps *vk.Caps, element string, heads int) (cmTiling, error) {
	return opkit.FitMatrix(caps, element, func(s vk.CoopMatShape) (cmTiling, bool) { return cmFit(caps, s, heads) })
}

// cmTilings picks the matrix shape and the sizes of the cooperative-matrix builds of
// attn_decode and attn_prefill: cm for "f16", cmb for "bf16". The first tiling has the
// most heads per workgroup, each further one half as many, down to one matrix. The two
// kernels differ only in where a row comes from, and an invocation's share of a row on
// its way is about as large (13 or 16 registers, for 16 invocations a row).
//
// Errors: vk.ErrMissingFeature when no shape of the device fits.
func cmTilings(caps *vk.Caps, element string, heads int) ([]tiling, error) {
	t, err := cmChoose(caps, element, heads)
	if err != nil {
		return nil, err
	}
	shape := vk.CoopMatShape{M: uint32(t.m), N: uint32(t.n), K: uint32(t.k)}
	var list []tiling
	for ok := true; ok; {
		list = append(list, tiling{HeadsPerGroup: t.heads, Tile: t.tile, Constants: t.constants(), SubgroupSize: uint32(t.subgroup)})
		if t.heads == t.m {
			break
		}
		t, ok = cmFit(caps, shape, t.heads/2)
	}
	return list, nil
}
