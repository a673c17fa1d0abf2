package projection

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// linearMid is how proj_linear_tokens32to64 divides its work; the names are those of the
// shader.
type linearMid struct {
	m, n, k  int // shape of a matrix product
	subgroup int // invocations of a subgroup
	teams    int // tiles of m rows of a workgroup
	tokens   int
	ahead    int
	lanes    int
	turns    int // 1: two sets of registers for weights, by turns
	whole    int // 1: rows are whole tiles of a workgroup and k is whole rounds
	chunk    int // numbers of k in a chunk
}

const (
	// midTokens are the most tokens of a launch of proj_linear_tokens32to64, in two passes.
	midTokens = 128
	// midWhole is the same where its workgroups fill the device twice: tiles of
	// 128 x 128 are faster then.
	midWhole = 96
	// midTeams are the subgroups of a workgroup, of which each has 16 rows: so many
	// that x is read from the second-level cache no more often than the weights are
	// read from memory.
	midTeams = 8
	// midStage bounds the shared memory of a round of x.
	midStage = 8 << 10
)

func (d linearMid) constants() []uint32 {
	return opkit.Words(d.teams*d.subgroup, d.subgroup, d.m, d.n, d.k, d.tokens, d.ahead, d.lanes, d.turns, d.whole)
}

// round is how many numbers of k a round takes.
func (d linearMid) round() int { return d.ahead * d.chunk }

// sharedBytes is the size of the shared array: two rounds of x, or two tiles of sums of
// each subgroup.
func (d linearMid) sharedBytes() int {
	return max(2*2*d.tokens*d.round(), min(2, d.tokens/d.n)*d.teams*d.n*(4*d.m+16))
}

// fills tells whether a lane's components of a column fill quads.
func (d linearMid) fills() bool {
	lines := d.subgroup / d.lanes
	if lines < 1 || lines > d.n || lines > d.m || d.tokens%d.n != 0 {
		return false
	}
	words := max(1, d.k/d.lanes/2)
	return words <= 4 && d.n/lines*words%4 == 0
}

// midder finds the division of a layer for passes of so many tokens, or half of them where
// products have 8 columns instead of 16: as many products, and as much code.
type midder func(caps *vk.Caps, element string, cfg LinearConfig, tokens int, lanes laneFinder) (linearMid, error)

// midDivision takes two chunks a round where their x is not too much to keep. Weights of
// more than 32 tokens, and all of NVFP4, come in two sets of registers by turns: faster
// there on an H100, and with one set it computes wrong sums of NVFP4. Others have half of
// the code without, which counts where it is executed once in a step.
//
// Errors: vk.ErrMissingFeature when no shape of matrix product suits.
func midDivision(caps *vk.Caps, element string, cfg LinearConfig, tokens int, lanes laneFinder) (linearMid, error) {
	return opkit.FitMatrix(caps, element, func(s vk.CoopMatShape) (linearMid, bool) {
		d := linearMid{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize), teams: midTeams, ahead: 2}
		for _, v := range []int{d.m, d.n, d.k} {
			if v != 8 && v != 16 {
				return d, false
			}
		}
		d.tokens = tokens * d.n / 16
		if d.lanes = lanes(d.m, d.n, d.k, d.subgroup); d.lanes == 0 {
			return d, false
		}
		d.chunk = d.lanes * cfg.Weights.perQuad()
		if d.ahead*d.chunk > ScaleBlock || 2*d.tokens*d.round() > midStage {
			d.ahead = 1
		}
		if cfg.Weights == WeightNVFP4 || tokens > midPasses[0] {
			d.turns = 1
		}
		if cfg.K%d.round() == 0 && cfg.N%(d.teams*d.m) == 0 {
			d.whole = 1
		}
		fits := d.teams*d.subgroup <= int(caps.MaxWorkgroupInvocations) && d.sharedBytes() <= int(caps.SharedMemory)
		return d, d.fills() && fits && (!cfg.Weights.fp8() || d.chunk <= ScaleBlock)
	})
}

// midKernel is proj_linear_tokens32to64 built for a division.
type midKernel struct {
	linearMid
	k *vk.Kernel
}

// midPasses are the tokens of a pass of products of 16 columns, fewest first.
var midPasses = []int{32, 48, 64}

// buildMid makes proj_linear_tokens32to64, where the device can run it; elsewhere the tiles of
// proj_linear_cm take its place. A CPU, whose compiler is slow with long kernels, does
// without the largest passes.
func (o *Linear) buildMid(spec opkit.Spec, formats []uint32, find midder) error {
	spec.Stem = "proj_linear_tokens32to64"
	caps := o.dev.Caps()
	if caps.Missing(shaders.Requires(opkit.Stem(spec.Stem, o.variant))) != nil {
		return nil
	}
	lanes, failed := o.laneFinder()
	for i, tokens := range midPasses {
		if most := o.cfg.MaxTokens; most > 0 && i > 0 && most <= o.mid[i-1].tokens || i > 1 && o.dev.Adapter().Type == vk.TypeCPU {
			break
		}
		d, err := find(caps, matrixElement[o.variant], o.cfg, tokens, lanes)
		if err != nil {
			if *failed != nil || i == 0 {
				return *failed
			}
			break
		}
		spec.Subgroup, spec.Constants = uint32(d.subgroup), append(append([]uint32(nil), formats...), d.constants()...)
		k, err := pkg.Kernel(o.dev, spec)
		if err != nil {
			return err
		}
		o.mid = append(o.mid, midKernel{d, k})
	}
	return nil
}

// midFor is the kernel for t tokens, of which each pass takes as few as it can, and how
// many parts of K to make; false where others are better or the only ones.
func (o *Linear) midFor(t, scratch int) (d midKernel, splits int, ok bool) {
	if len(o.mid) == 0 || t <= thinTokens || t > o.midMost() {
		return d, 0, false
	}
	passes := opkit.CeilDiv(t, o.mid[len(o.mid)-1].tokens)
	for _, d = range o.mid {
		if d.tokens*passes >= t {
			break
		}
	}
	tiles := opkit.CeilDiv(t, d.tokens) * o.midTiles(d.linearMid)
	splits = o.splitFor(tiles, o.cfg.Workgroups, opkit.CeilDiv(o.cfg.K, d.round()), t, scratch)
	return d, splits, t <= midWhole || tiles < o.cfg.Workgroups
}

// midMost are the most tokens of proj_linear_tokens32to64: two passes of the most that it was
// built for, or one where that is all.
func (o *Linear) midMost() int {
	most := o.mid[len(o.mid)-1].tokens
	if len(o.mid) == 1 && (o.cfg.MaxTokens == 0 || o.cfg.MaxTokens > most) {
		return most
	}
	return min(2*most, midTokens)
}

// midTiles is how many workgroups have the rows of all groups.
func (o *Linear) midTiles(d linearMid) int {
	return opkit.CeilDiv(o.rowTiles(d.m), d.teams) * o.cfg.Groups
}
