package projection

import (
	"errors"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// Where activations and weights are E4M3, proj_linear_codes_cm multiplies codes as they are stored:
// what shares a scale of either is summed up first, and the sum multiplied by both. RDNA4 has such
// matrices; tests execute it on the emulated one.

// codesStem is that kernel's.
const codesStem = "proj_linear_codes"

// codesTile is t, or the profile's tile for codes in its place: where the layer's numbers are codes
// and the device's matrices of such elements fit and are exact. Tiles that all numbers of tokens
// are to agree with stay as they are.
//
// Errors: those of running a kernel.
func (l *linearLayer) codesTile(t linearTiling) (linearTiling, bool, error) {
	if x := l.cfg.Activations.row(); x.block == 0 || x.staged || l.cfg.Invariant {
		return t, false, nil
	}
	kernel := opkit.Stem(codesStem, opkit.CM)
	for _, x := range l.tune.Tiles.Codes {
		if x.Tokens != t.bm || x.Rows != t.bn || l.caps.Missing(shaders.Requires(kernel)) != nil {
			continue
		}
		codes, err := opkit.FitMatrix(l.caps, "e4m3", func(s vk.CoopMatShape) (linearTiling, bool) { return l.fitCodes(s, x) })
		switch {
		case errors.Is(err, vk.ErrMissingFeature):
			continue
		case err == nil:
			exact, rows, err := pkg.MatrixCodes(l.dev, codes.m, codes.n, codes.k, codes.subgroup, l.device.MatrixRows)
			if exact {
				t = codes
				t.rows = rows
			}
			return t, exact, err
		}
		return t, false, err
	}
	return t, false, nil
}

// fitCodes is a tile of codes for a shape of product.
func (l *linearLayer) fitCodes(s vk.CoopMatShape, x tuning.LinearTile) (linearTiling, bool) {
	t := linearTiling{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(l.caps.MinSubgroupSize),
		bm: x.Tokens, bn: x.Rows, bk: x.Step, wm: x.SubgroupTokens, wn: x.SubgroupRows,
		codes: true, summed: min(x.Step, l.format.scaleCut)}
	return t, t.m == t.n && t.fits(l.caps, l.device)
}

// elementBytes are those of an element in shared memory.
func (t linearTiling) elementBytes() int {
	if t.codes {
		return 1
	}
	return 2
}

// each returns the number of numbers of a row that an invocation loads at a time.
func (t linearTiling) each() int {
	if t.codes {
		return 16
	}
	return 8
}

// codeRegisters is registers for codes, without the rest: sums, one more with its scales, fragments
// of all rows and of a matrix's tokens, a step's codes and where they come from.
func (t linearTiling) codeRegisters(copies int) int {
	each := (t.bm + t.bn) * t.bk / t.each() / t.threads()
	return (t.wm*t.wn+2*t.m*t.n)/t.subgroup + copies*t.elementBytes()*(t.wn+t.m)*t.summed/4/t.subgroup + 5*each
}
