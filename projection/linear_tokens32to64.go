package projection

import (
	"errors"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// tokens32to64 is proj_linear_tokens32to64: matrices with weights from memory to registers and x
// through shared memory, 128 rows and 16 to 64 tokens a workgroup. It covers up to two passes.
type tokens32to64 struct {
	*linearLayer
	divisions []division32to64 // fewest tokens first
}

// division32to64 is how the shader divides its work; the names are those of the shader.
type division32to64 struct {
	m, n, k  int // shape of a matrix product
	subgroup int // invocations of a subgroup
	teams    int // tiles of m rows of a workgroup
	tokens   int
	ahead    int
	lanes    int
	turns    int // 1: two sets of registers for weights
	whole    int // 1: rows are whole tiles of a workgroup and k is whole rounds
	sums     int // among which rounds are dealt out
	chunk    int // numbers of k in a chunk
	kernel   *opkit.Later
}

func (d division32to64) constants() []uint32 {
	return opkit.Constants(d.teams*d.subgroup, d.subgroup, d.m, d.n, d.k, d.tokens, d.ahead, d.lanes, d.turns, d.whole, d.sums)
}

// round returns the number of numbers of k that a round takes.
func (d division32to64) round() int { return d.ahead * d.chunk }

// stage is the shared memory of two rounds of x.
func (d division32to64) stage() int { return 2 * 2 * d.tokens * d.round() }

// sharedBytes is the size of the shared array: two rounds of x, or two tiles of sums of
// each subgroup.
func (d division32to64) sharedBytes() int {
	return max(d.stage(), min(2, d.tokens/d.n)*d.teams*d.n*(4*d.m+16))
}

// fills tells whether a lane's components of a column fill quads.
func (d division32to64) fills() bool {
	lines := d.subgroup / d.lanes
	if lines < 1 || lines > d.n || lines > d.m || d.tokens%d.n != 0 {
		return false
	}
	words := max(1, d.k/d.lanes/2)
	return words <= 4 && d.n/lines*words%4 == 0
}

// fit makes a division for each pass that MaxTokens needs.
func (k *tokens32to64) fit(l *linearLayer, _ kernelKind) (bool, error) {
	k.linearLayer = l
	if !l.runs("proj_linear_tokens32to64") || l.enough(l.tune.Tokens8to32.LeastPass) {
		return false, nil
	}
	for _, tokens := range l.tune.Tokens32to64.Passes {
		if n := len(k.divisions); n > 0 && l.enough(k.divisions[n-1].tokens) {
			break
		}
		d, err := l.divide32to64(tokens)
		if errors.Is(err, vk.ErrMissingFeature) {
			break
		} else if err != nil {
			return false, err
		}
		k.divisions = append(k.divisions, d)
	}
	return len(k.divisions) > 0, nil
}

// divide32to64 divides a layer for passes of some tokens, or of half of them where products have 8
// columns instead of 16, which is as much code. A round is two chunks where their x is not too much
// to keep. Beyond two products weights come in two sets of registers: twice the code, which loads
// while it multiplies.
//
// Errors: vk.ErrMissingFeature when no shape of matrix product suits; those of a laneFinder.
func (l *linearLayer) divide32to64(tokens int) (division32to64, error) {
	var order division8to32
	if l.cfg.Invariant {
		var err error
		if order, err = l.order(); err != nil {
			return division32to64{}, err
		}
	}
	return fitMatrix(l, func(s vk.CoopMatShape, lanes int) (division32to64, bool) {
		d := division32to64{m: int(s.M), n: int(s.N), k: int(s.K), lanes: lanes,
			subgroup: int(l.caps.MinSubgroupSize), teams: tuning.Teams, ahead: l.tune.Ahead, sums: 1}
		d.tokens, d.chunk = tokens*d.n/16, lanes*l.format.quad
		switch {
		case l.cfg.Invariant && !order.ordered(d.k, lanes):
			return d, false
		case l.cfg.Invariant:
			d.ahead, d.sums = order.ahead, order.parts
		case !l.format.spans(d.round()) || d.stage()/2 > tuning.Stage:
			d.ahead = 1
		}
		if l.format.twoSets || d.tokens > 2*d.n {
			d.turns = 1
		}
		if l.cfg.K%d.round() == 0 && l.cfg.N%(d.teams*d.m) == 0 {
			d.whole = 1
		}
		fits := d.teams*d.subgroup <= int(l.caps.MaxWorkgroupInvocations) && d.sharedBytes() <= int(l.caps.SharedMemory)
		return d, d.fills() && fits && l.format.spans(d.chunk)
	})
}

// fitMatrix finds a shape of matrix product whose sides are 8 or 16, and the lanes that share a row
// of its fragments, for which divide finds a division.
func fitMatrix[T any](l *linearLayer, divide func(s vk.CoopMatShape, lanes int) (T, bool)) (T, error) {
	var failed error
	d, err := opkit.FitMatrix(l.caps, matrixElement[l.variant], func(s vk.CoopMatShape) (d T, ok bool) {
		for _, v := range []uint32{s.M, s.N, s.K} {
			if v != 8 && v != 16 {
				return d, false
			}
		}
		lanes, err := l.lanes(int(s.M), int(s.N), int(s.K), int(l.caps.MinSubgroupSize))
		if err != nil {
			failed = err
		}
		if lanes == 0 {
			return d, false
		}
		return divide(s, lanes)
	})
	if err != nil && failed != nil {
		return d, failed
	}
	return d, err
}

func (k *tokens32to64) reach() int { return min(k.tune.Tokens32to64.MostFull, k.most()) }

func (k *tokens32to64) covers(T int) bool {
	p := &k.tune.Tokens32to64
	if T <= k.tune.Tokens8to32.LeastPass || T > k.most() {
		return false
	}
	return T <= p.MostFull || k.workgroups(k.division(T), T) < k.cfg.Workgroups
}

// most is two passes of the largest division, or one where there is no other.
func (k *tokens32to64) most() int {
	most := k.divisions[len(k.divisions)-1].tokens
	if len(k.divisions) == 1 && !k.enough(most) {
		return most
	}
	return 2 * most
}

// division returns the division of the smallest pass that takes T tokens in no more passes than the
// largest pass does.
func (k *tokens32to64) division(T int) (d division32to64) {
	passes := opkit.CeilDiv(T, k.divisions[len(k.divisions)-1].tokens)
	for _, d = range k.divisions {
		if d.tokens*passes >= T {
			break
		}
	}
	return d
}

// rowGroups returns the number of workgroups for the rows of a group.
func (k *tokens32to64) rowGroups(d division32to64) int {
	return opkit.CeilDiv(k.rowTiles(d.m), d.teams)
}

// workgroups returns the number of workgroups for T tokens.
func (k *tokens32to64) workgroups(d division32to64, T int) int {
	return opkit.CeilDiv(T, d.tokens) * k.rowGroups(d) * k.cfg.Groups
}

// idle tells whether T tokens, in one part of K, would leave much of the device idle.
func (k *tokens32to64) idle(T int) bool {
	return k.workgroups(k.division(T), T)*tuning.EnoughFill < k.cfg.Workgroups
}

func (k *tokens32to64) build(int) {
	for i, d := range k.divisions {
		spec := k.spec("proj_linear_tokens32to64", d.constants()...)
		spec.Subgroup, spec.Divisible = uint32(d.subgroup), k.cfg.Invariant // launches of thousands of tokens
		k.divisions[i].kernel = k.later(spec)
	}
}

func (k *tokens32to64) plan(T, scratch int) linearPlan {
	d := k.division(T)
	p := linearPlan{kernel: d.kernel, step: d.round()}
	p.cut(k.cfg.K, k.partsFor(k.workgroups(d, T), k.cfg.Workgroups, opkit.CeilDiv(k.cfg.K, d.round()), T, scratch))
	p.grid = [3]uint32{uint32(opkit.CeilDiv(T, d.tokens)), uint32(k.rowGroups(d)), uint32(k.cfg.Groups * p.splits)}
	return p
}
