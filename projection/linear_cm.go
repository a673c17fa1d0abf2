package projection

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// linearTiling is how proj_linear_cm divides its work; the names are those of the
// shader. All sizes are powers of two.
type linearTiling struct {
	m, n, k    int // shape of a matrix product
	bm, bn, bk int // tokens, rows and numbers of a step
	wm, wn     int // of these a subgroup sums
	subgroup   int // invocations of a subgroup

	pairs  bool // numbers come for two steps at a time: proj_linear_whole
	blocks bool // then: a part of K is whole blocks of scales
}

// Kinds of tiles, most tokens first. Those of up to 64 tokens are bound by reading
// weights: long steps, so that 64 bytes of a row come at a time, and little shared
// memory, so that four workgroups share a multiprocessor and always some of them wait
// for memory. 128 x 128 is bound by what brings operands to a multiprocessor: two
// workgroups share one, so that one multiplies while the other waits for its barrier,
// and 64 x 64 sums of a subgroup are as many as registers hold. docs/design/linear.md
// has the measurements. Steps are for products of 16 numbers; of products of 8 they are
// half as long, with as much code.
var linearShapes = []linearTiling{
	{bm: 128, bn: 128, bk: 32, wm: 64, wn: 64},
	{bm: 64, bn: narrowRows, bk: 64, wm: 64, wn: 16},
	{bm: 32, bn: narrowRows, bk: 64, wm: 32, wn: 16},
	{bm: 16, bn: narrowRows, bk: 64, wm: 16, wn: 16},
}

// narrowRows is BN of the tiles of up to 64 tokens.
const narrowRows = 64

// fill is how many workgroups fill the device, of which so many of the usual size do.
func (t linearTiling) fill(workgroups int) int {
	if t.bm > 64 {
		return workgroups
	}
	return 2 * workgroups
}

func (t linearTiling) subgroups() int { return t.bm / t.wm * (t.bn / t.wn) }

func (t linearTiling) threads() int { return t.subgroup * t.subgroups() }

// span is the step of K that parts of it are whole multiples of.
func (t linearTiling) span() int {
	switch {
	case t.blocks:
		return ScaleBlock
	case t.pairs:
		return 2 * t.bk
	}
	return t.bk
}

// sharedBytes is the sum of the shared arrays.
func (t linearTiling) sharedBytes() int {
	return max((t.bm+t.bn)*(2*t.bk+16), t.subgroups()*t.m*(4*t.wn+16)) + 4
}

// registers estimates the 32-bit registers of an invocation: sums, fragments, what is
// on its way from memory, and the rest. copies is how often the device holds an
// element of a product's operands.
func (t linearTiling) registers(copies int) int {
	sums := t.wm * t.wn / t.subgroup
	fragments := copies * (t.wm + t.n) * t.k / 2 / t.subgroup
	each := (t.bm + t.bn) * t.bk / 8 / t.threads() // units of 8 numbers: 16 bytes at most, and where they come from
	const rest = 32
	if t.pairs { // two steps on their way or held, and a fragment more
		return sums + fragments + copies*t.n*t.k/2/t.subgroup + 8*each + rest
	}
	return sums + fragments + 6*each + rest
}

// constants are the specialisation constants after the formats.
func (t linearTiling) constants() []uint32 {
	return opkit.Words(t.threads(), t.subgroup, t.m, t.n, t.k, t.bm, t.bn, t.bk, t.wm, t.wn)
}

// whole tells whether the parts make up the whole: matrices a subgroup's sums,
// subgroups a tile, invocations its units.
func (t linearTiling) whole() bool {
	if t.wm < t.m || t.wn < t.n || t.bk < t.k || t.bm < t.wm || t.bn < t.wn {
		return false
	}
	lines := t.threads() / (t.bk / 8)
	return lines >= 1 && t.bm%lines == 0 && t.bn%lines == 0
}

// fits tells whether a device has the memory, invocations and registers.
func (t linearTiling) fits(caps *vk.Caps, copies int) bool {
	return t.whole() && t.threads() <= int(caps.MaxWorkgroupInvocations) && t.sharedBytes() <= int(caps.SharedMemory) &&
		t.registers(copies) <= opkit.MatrixRegisters(t.subgroup, t.threads())
}

// operandCopies is how often a device holds each element of a product's operands: RDNA3,
// known by subgroups of 64, twice.
func operandCopies(caps *vk.Caps) int {
	if caps.MaxSubgroupSize > 32 {
		return 2
	}
	return 1
}

// linearFit adapts a kind of tiles to a shape of product and a device: a subgroup
// takes less of a tile until it has the registers.
func linearFit(caps *vk.Caps, s vk.CoopMatShape, t linearTiling) (linearTiling, bool) {
	t.m, t.n, t.k, t.subgroup = int(s.M), int(s.N), int(s.K), int(caps.MinSubgroupSize)
	for _, v := range []int{t.m, t.n, t.k, t.subgroup} {
		if v < 8 || bits.OnesCount(uint(v)) != 1 {
			return t, false
		}
	}
	copies := operandCopies(caps)
	for {
		t.bm, t.wm = max(t.bm, t.m), max(t.wm, t.m)
		t.wn, t.bk = max(t.wn, t.n), max(t.bk, t.k)
		if t.fits(caps, copies) {
			return t, true
		}
		switch {
		case t.wm > t.m && t.wm >= t.wn:
			t.wm /= 2
		case t.wn > t.n:
			t.wn /= 2
		case t.wm > t.m:
			t.wm /= 2
		default:
			return t, false
		}
	}
}

// linearTiler finds the tilings of a device for an element type ("f16" or "bf16"),
// most tokens first.
type linearTiler func(caps *vk.Caps, element string) ([]linearTiling, error)

// linearTilings keeps of every kind of tiles what the device can hold.
//
// Errors: vk.ErrMissingFeature when that is nothing.
func linearTilings(caps *vk.Caps, element string) ([]linearTiling, error) {
	return fitTilings(caps, element, linearShapes, func(s vk.CoopMatShape, bk int) int { return bk * min(int(s.K), 16) / 16 })
}

// fitTilings takes kinds whose steps are as long as step says for a shape of product.
func fitTilings(caps *vk.Caps, element string, kinds []linearTiling, step func(s vk.CoopMatShape, bk int) int) ([]linearTiling, error) {
	var list []linearTiling
	var why error
	for _, kind := range kinds {
		t, err := opkit.FitMatrix(caps, element, func(s vk.CoopMatShape) (linearTiling, bool) {
			kind := kind
			kind.bk = step(s, kind.bk)
			return linearFit(caps, s, kind)
		})
		if errors.Is(err, vk.ErrMissingFeature) {
			why = err
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no tiles: %w", why)
	}
	return list, nil
}

// buildTiles makes those of the kernels that multiply tiles which are not left to others,
// and with pairs also those that take steps by pairs, where they can.
func (o *Linear) buildTiles(spec opkit.Spec, formats []uint32, tilings []linearTiling, pairs bool) error {
	most, least := o.cfg.MaxTokens, o.leastForTiles()
	spec.Divisible = true // launches of thousands of tokens
	for i, d := range tilings {
		last := i == len(tilings)-1
		switch {
		case most > 0 && most < least:
			continue // other kernels take them all
		case d.bm < min(least, 64) && i > 0:
			continue // so few tokens are theirs
		case most > 0 && d.bm >= 2*most && !last && tilings[i+1].bm >= min(least, 64):
			continue // too large ever to be used
		}
		spec.Subgroup, spec.Constants = uint32(d.subgroup), slices.Concat(formats, d.constants())
		k, err := pkg.Kernel(o.dev, spec)
		if err != nil {
			return err
		}
		m := matrixKernel{linearTiling: d, k: k}
		if pairs && (most == 0 || most >= d.bm) {
			if m.pair, err = o.buildPair(spec, d); err != nil {
				return err
			}
		}
		o.matrix = append(o.matrix, m)
	}
	return nil
}
