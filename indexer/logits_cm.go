package indexer

import (
	"math/bits"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// cmTiling describes the division of work in a cooperative-matrix build of idx_logits; the names
// are those of shaders/idx_logits_cm.comp. All sizes are powers of two.
type cmTiling struct {
	m, n, k   int  // shape of a matrix product
	heads     int  // HG, heads that a subgroup holds
	headParts int  // HEAD_PARTS, subgroups that share the heads of a token
	tokens    int  // TOKENS of a workgroup
	keyParts  int  // KEY_PARTS, subgroups that share a tile's keys
	tile      int  // TILE, keys that are decoded at a time
	subgroup  int  // invocations of a subgroup
	held      bool // HELD, a subgroup keeps its weights in registers too
	rows      int  // ROWS, how keys lie in shared memory
	codes     bool // elements are the codes of E4M3 themselves
	block     int  // BLOCKS, entries of a candidate block; 0: columns are entries
}

func (t cmTiling) subgroups() int { return t.headParts * t.tokens * t.keyParts }

func (t cmTiling) threads() int { return t.subgroup * t.subgroups() }

// grid returns the workgroups that take `width` columns of the tokens, from entry first on, and the
// fewest tiles of each.
func (t cmTiling) grid(tune *tuning.Logits, workgroups, tokens, first, width int) (x, y, chunk int) {
	y = opkit.CeilDiv(tokens, t.tokens)
	tiles := opkit.CeilDiv(first%t.tile+width, t.tile)
	x = min(max(opkit.CeilDiv(workgroups, y), opkit.CeilDiv(tiles, tune.MatrixChunk)), tiles)
	// The fuller the device is with one workgroup for each token, the less a short row is worth
	// spreading.
	return x, y, max(1, min(tune.MatrixSpread, y*tune.MatrixSpread/workgroups))
}

// alone tells whether every subgroup can decode exactly the keys that it multiplies.
func (t cmTiling) alone() bool { return t.headParts == 1 && t.tokens == 1 }

// sharedBytes is the sum of the shared arrays.
func (t cmTiling) sharedBytes() int {
	sums, parts := t.subgroups()*t.n*(4*t.m+16), 1
	if t.headParts > 1 {
		parts = t.tokens * t.headParts * t.tile
	}
	row := 2*cache.IndexDim + 16
	if t.codes {
		row = cache.IndexDim + 16
	}
	return t.tile*row + sums + 4*t.tokens*t.headParts*t.heads + 4*parts + 8*t.tile
}

// registers estimates the 32-bit registers of an invocation: queries, sums and
// weights of its heads, fragments of keys, rows on their way, and the rest. copies
// is how often the device holds an element of a product's operands; rest are the
// other registers.
func (t cmTiling) registers(copies, rest int) int {
	queries := t.heads * cache.IndexDim / 2 / t.subgroup
	sums := t.heads * t.n / t.subgroup
	if t.held {
		sums *= 2
	}
	keys := t.k * t.n / t.subgroup // two fragments
	if copies > 1 {
		keys = cache.IndexDim * t.n / 2 / t.subgroup // RADV loads those of all steps before it multiplies
	}
	if t.codes {
		queries, keys = queries/2, keys/2
	}
	row := 5
	if t.block > 0 {
		row += 2 // page and slot of the next one
	}
	return copies*(queries+keys) + sums + row*t.tile*8/t.threads() + rest
}

// fits tells whether a device has the registers.
func (t cmTiling) fits(caps *vk.Caps, tune *tuning.Profile) bool {
	return t.registers(tune.Device.OperandCopies(caps), tune.Logits.OtherRegisters) <= tune.Device.Registers(t.threads())
}

// ofBlocks makes it a tiling for entries of candidate blocks of a size, with fewer keys at a time
// where that many have no registers.
func (t *cmTiling) ofBlocks(caps *vk.Caps, tune *tuning.Profile, block int) {
	for t.block = block; t.tile > t.leastTile() && !t.fits(caps, tune); {
		t.tile /= 2
	}
}

// constants are the specialisation constants after PAGE and FORMAT.
func (t cmTiling) constants() []uint32 {
	words := append(opkit.Constants(t.threads(), t.subgroup, t.m, t.n, t.k, t.heads, t.headParts, t.tokens, t.tile),
		opkit.Bit(0, t.alone()), opkit.Bit(0, t.held))
	return opkit.AppendNonzero(words, t.block, t.rows)
}

// powerOfTwo is the smallest power of two that is not below n.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// fill sets what follows from the shape, a subgroup's heads and tokens, and the number of heads.
func (t *cmTiling) fill(tune *tuning.Logits, heads int) {
	t.headParts = powerOfTwo(opkit.CeilDiv(heads, t.heads))
	t.keyParts = max(1, tune.MatrixSubgroups/(t.headParts*t.tokens))
	t.tile = max(t.n*tune.MatrixSubgroups, t.leastTile())
}

// leastTile is enough keys for one matrix and whole rows for each subgroup, and enough memory that
// a subgroup's queries can come in through it.
func (t *cmTiling) leastTile() int {
	return max(t.n*t.keyParts, t.subgroups()*max(t.subgroup/8, 1), t.heads)
}

// cmFit returns the tiling with the most tokens, and with these the most heads per
// subgroup, that a device with these capabilities has registers, shared memory and
// invocations for, given a shape of matrix product.
func cmFit(caps *vk.Caps, tune *tuning.Profile, s vk.CoopMatShape, heads, tokens int) (cmTiling, bool) {
	t := cmTiling{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize), rows: tune.Device.MatrixRows}
	most := tune.Logits.MatrixHeads
	if s.A == "e4m3" {
		if t.k < 16 { // codes are loaded 16 at a time
			return t, false
		}
		t.codes = true
		most *= 2 // they take half the registers
	}
	for _, v := range []int{t.m, t.n, t.k, t.subgroup} {
		if v < 8 || bits.OnesCount(uint(v)) != 1 || v > cache.IndexDim {
			return t, false
		}
	}
	for t.tokens = min(powerOfTwo(tokens), tune.Logits.MatrixTokens); t.tokens >= 1; t.tokens /= 2 {
		for t.heads = max(t.m, min(most, powerOfTwo(heads))); t.heads >= t.m; t.heads /= 2 {
			t.fill(&tune.Logits, heads)
			t.held = true
			t.held = t.fits(caps, tune)
			if t.threads() <= int(caps.MaxWorkgroupInvocations) && t.sharedBytes() <= int(caps.SharedMemory) && t.fits(caps, tune) {
				return t, true
			}
		}
	}
	return t, false
}

// cmChoose picks a tiling for products of an element type ("f16" or "bf16") with
// f32 sums, the largest shape first.
//
// Errors: vk.ErrMissingFeature when no shape of the device fits.
func cmChoose(caps *vk.Caps, tune *tuning.Profile, element string, heads, tokens int) (cmTiling, error) {
	return opkit.FitMatrix(caps, element, func(s vk.CoopMatShape) (cmTiling, bool) { return cmFit(caps, tune, s, heads, tokens) })
}
