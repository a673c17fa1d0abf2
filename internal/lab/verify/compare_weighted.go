package verify

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
)

// bf16Roundoff is the unit roundoff of bf16.
const bf16Roundoff = 1.0 / 256

// roundedShare is the share of elements that may need the allowance for rounded
// weights. Recorded kernels and ours need it for up to 0.4 % of a case.
const roundedShare = 0.01

// roundedKey is an entry of what an attention operation's Run gives: present if
// the variant rounds softmax weights to bf16.
const roundedKey = "info_rounded_weights"

// RoundsWeights reports whether a variant of the attention operations rounds softmax
// weights to bf16 before it sums rows. Those with weights in f16 or f32 keep the
// plain bounds.
func RoundsWeights(variant string) bool { return strings.HasSuffix(variant, opkit.CMB) }

// markRounded says in the results of a run whether the variant rounds weights.
func markRounded(_ Case, variant string, got Arrays) (Arrays, error) {
	if RoundsWeights(variant) {
		got[roundedKey] = vectors.New(vectors.U8, 1)
	}
	return got, nil
}

// roundings returns how many of the two sides of a comparison have rounded weights: the
// recorded kernels do, the reference does not.
func roundings(c Case, got Arrays) int {
	n := 0
	if c.Source != "random" {
		n++
	}
	if _, ok := got[roundedKey]; ok {
		n++
	}
	return n
}

// CloseWeighted is Close for outputs of attention, of which some sides (0, 1 or
// 2) were computed with softmax weights rounded to bf16.
//
// FlashMLA's bounds suit the data of its own tests. Where large values of both
// signs cancel, a kernel that rounds the weights, as FlashMLA and the recorded
// kernels do, misses them in a few elements of a thousand against the exact result
// (4 of 98304 and 15 of 32768 in recorded cases), and so an exact kernel misses
// them against the recorded one. By the definition of spread
// (attention.DecodeSpreadRef) rounding the weights moves an element by at most
// 2^-8 * spread. Elements beyond the bounds pass within that much for each such
// side, if at most one in a hundred is of that kind; the bound on the whole array
// stays as it is. With no such side this is Close.
func (c *Comparison) CloseWeighted(name string, got, want Array, tol Tolerance, sides int, spread func() ([]float32, error)) *Comparison {
	if sides == 0 || !slices.Equal(got.Shape, want.Shape) || NewComparison(c.class).Close(name, got, want, tol).Result().Pass {
		return c.Close(name, got, want, tol)
	}
	allowance, err := spread()
	if err != nil {
		return c.Fail("%s: %v", name, err)
	}
	if len(allowance) != want.Len() {
		return c.Fail("%s: %d values of spread for %d elements", name, len(allowance), want.Len())
	}
	beyond, ratio, at, x, y := 0, 0.0, 0, 0.0, 0.0
	d, ok := c.numbers(name, got, want, func(i int, a, b float64) {
		abs := math.Abs(a - b)
		if abs < tol.Abs || abs/(math.Abs(b)+1e-6) < tol.Rel {
			return
		}
		beyond++
		// Either side's rounding of the output itself comes on top.
		allowed := float64(sides)*bf16Roundoff*float64(allowance[i]) + bf16Roundoff*(math.Abs(a)+math.Abs(b))
		if r := abs / allowed; r > ratio {
			ratio, at, x, y = r, i, a, b
		}
	})
	if !ok {
		return c
	}
	limit := math.Ceil(roundedShare * float64(want.Len()))
	c.Criterion(ratio < 1, ratio, 1, fmt.Sprintf("%s: %.3g of the allowance for rounded weights at %s: got %.6g, want %.6g",
		name, ratio, position(at, want.Shape), x, y))
	c.Criterion(float64(beyond) <= limit, float64(beyond), limit,
		fmt.Sprintf("%s: %d of %d elements beyond absolute %.3g and relative %.3g, at most %.0f may be",
			name, beyond, want.Len(), tol.Abs, tol.Rel, limit))
	return c.whole(name, d, tol.Cos)
}
