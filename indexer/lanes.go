package indexer

import (
	"math/bits"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// laneTiling describes the division of work in idx_logits_lanes_cm; the names are those of
// shaders/idx_logits_lanes.comp. All sizes but heads are powers of two.
type laneTiling struct {
	m, n, k   int  // shape of a matrix product
	subgroup  int  // invocations of a subgroup
	subgroups int  // of a workgroup
	heads     int  // HG
	parts     int  // P, lanes that share a row of a matrix
	kept      int  // KEPT, head tiles whose queries stay in registers
	raw       bool // the kernel quantises the queries
}

// rawParts is the number of invocations that quantise a head: each has 8 neighbouring numbers of
// either half. They take all heads in rawTurns turns at most.
const rawParts, rawTurns = cache.IndexDim / 2 / 8, 2

func (t laneTiling) threads() int { return t.subgroup * t.subgroups }

// sharedBytes is the sum of the shared arrays: queries and weights, and with raw codes (room for
// FP8, the larger) and scales.
func (t laneTiling) sharedBytes() int {
	each := 2*cache.IndexDim + 16 + 4
	if t.raw {
		each += cache.IndexDim + 4
	}
	return t.heads * each
}

// constants are the specialisation constants after PAGE and FORMAT.
func (t laneTiling) constants(tops bool, block int) []uint32 {
	c := opkit.Constants(t.threads(), t.subgroup, t.m, t.n, t.k, t.heads, t.parts)
	return append(c, opkit.Bit(0, tops), uint32(block), uint32(t.kept))
}

// shares returns the workgroups of a row. workgroups is how many fill the device, counted as
// workgroups of LaneSubgroups subgroups; rows is the number of rows; entries is the length of a
// row.
//
// A row has enough workgroups to fill the device, or more where one would have more than LaneKeys
// entries. Workgroups run in waves, which cost
//
//	waves * (entries of a share + LaneBegin)
//
// Of all numbers of shares up to that one, the result is the largest whose waves cost at most
// 1/LaneSlack more than the cheapest, or 1/LaneSlackMany where rows are as many as workgroups.
func (t laneTiling) shares(tune *tuning.Logits, workgroups, rows, entries int) int {
	beside := t.subgroups
	if t.kept > 0 { // it has a compute unit for itself
		beside = 2 * tune.LaneSubgroups
	}
	workgroups = max(workgroups*tune.LaneSubgroups/beside, 1)
	full := max(workgroups/rows, 1)
	most := min(max(full, opkit.CeilDiv(entries, tune.LaneKeys*t.subgroups/tune.LaneSubgroups)), opkit.CeilDiv(entries, t.m)+1)
	cost := func(n int) int {
		return opkit.CeilDiv(rows*n, workgroups) * (opkit.CeilDiv(entries, n) + tuning.LaneBegin)
	}
	least := cost(most)
	for n := min(full, most); n < most; n++ {
		least = min(least, cost(n))
	}
	best, slack := most, tune.LaneSlack
	if rows >= workgroups {
		slack = tune.LaneSlackMany
	}
	for cost(best)*slack > least*(slack+1) {
		best--
	}
	return best
}

// laneParts returns how many lanes share a row of matrices A and C, or a column of B. It reads that
// from what opkit.MatrixLayout found, and is 0 if they do not lie as idx_logits_lanes.comp wants.
func laneParts(m, n, k, subgroup int, words []uint32) int {
	if len(words) != m*k+k*n+m*n || m*k%subgroup != 0 || k*n%subgroup != 0 || m*n%subgroup != 0 {
		return 0
	}
	a, b, c := words[:m*k], words[m*k:][:k*n], words[m*k+k*n:]
	for p := 4; p <= 8; p *= 2 {
		bases := subgroup / p
		if bases == 0 || m/bases > p || m%bases != 0 || n%bases != 0 || k%p != 0 || n%p != 0 {
			continue
		}
		// fits checks one matrix. Component i of lane l is element at(v) = (row, position). The
		// position has to be the same in all lanes of a part.
		fits := func(v []uint32, length int, at func(v int) (row, position int), note []int) bool {
			each := length / p
			for x, w := range v {
				i, l := x/subgroup, x%subgroup
				row, position := at(int(w))
				if int(w) >= len(v) || row != l/p+i/each*bases {
					return false
				}
				seen := &note[l%p*each+i%each]
				if *seen >= 0 && *seen != position {
					return false
				}
				*seen = position
			}
			return true
		}
		blank := func(length int) []int {
			v := make([]int, length)
			for i := range v {
				v[i] = -1
			}
			return v
		}
		inner := blank(k)
		if fits(a, k, func(v int) (int, int) { return v / k, v % k }, inner) &&
			fits(b, k, func(v int) (int, int) { return v % n, v / n }, inner) &&
			fits(c, n, func(v int) (int, int) { return v / n, v % n }, blank(n)) {
			return p
		}
	}
	return 0
}

// laneFit returns the tiling for a shape of matrices, whose layout in lanes is still to be checked.
// It is false if idx_logits_lanes cannot use the shape on this device or has no room for the heads.
func laneFit(caps *vk.Caps, tune *tuning.Logits, s vk.CoopMatShape, cfg LogitsConfig) (laneTiling, bool) {
	t := laneTiling{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize), raw: cfg.Raw}
	for _, v := range []int{t.m, t.n, t.k, t.subgroup} {
		if v < 8 || v > cache.IndexDim || bits.OnesCount(uint(v)) != 1 {
			return t, false
		}
	}
	t.heads, t.subgroups = opkit.RoundUp(cfg.Heads, t.n), tune.LaneSubgroups
	switch few := cfg.Raw && cfg.Few; {
	case !few && cfg.Format == cache.IndexKeyFP8 && cfg.Blocks == 0 && t.heads == tune.MatrixHeads:
		t.subgroups, t.kept = tune.KeptSubgroups, 1
	case t.raw: // two workgroups of a compute unit would quantise them twice
		t.subgroups *= 2
	}
	t.subgroups = min(t.subgroups, int(caps.MaxWorkgroupInvocations)/t.subgroup)
	switch {
	case t.raw && (rawTurns*t.threads() < rawParts*t.heads || t.k > 64):
	case cfg.Heads > tune.MatrixHeads:
	case cfg.Page%t.m != 0 || t.threads() < t.heads || t.sharedBytes() > int(caps.SharedMemory):
	default:
		return t, true
	}
	return t, false
}

// lanesChoose finds the largest shape of f16 products with f32 sums whose matrices lie in lanes as
// idx_logits_lanes wants them; false if there is none, or if that kernel does not take the heads
// or the page.
func lanesChoose(dev *vk.Device, tune *tuning.Logits, cfg LogitsConfig) (laneTiling, bool, error) {
	caps := dev.Caps()
	if len(caps.Missing(shaders.Requires("idx_logits_lanes_cm"))) > 0 {
		return laneTiling{}, false, nil
	}
	var failed error
	t, err := opkit.FitMatrix(caps, "f16", func(s vk.CoopMatShape) (laneTiling, bool) {
		t, ok := laneFit(caps, tune, s, cfg)
		if !ok || failed != nil {
			return t, false
		}
		words, err := pkg.MatrixLayout(dev, opkit.CM, t.m, t.n, t.k, t.subgroup)
		if failed = err; err != nil {
			return t, false
		}
		t.parts = laneParts(t.m, t.n, t.k, t.subgroup, words)
		return t, t.parts > 0
	})
	return t, err == nil, failed
}
