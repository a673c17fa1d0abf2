package verify

import (
	"fmt"
	"math"
	"slices"
)

// weightRounding is what two kernels may differ by, relative to the spread of an
// output (attention.DecodeSpreadRef), when both round the softmax weights to bf16:
// twice the unit roundoff 2^-8.
const weightRounding = 2.0 / 256

// roundedShare is the share of elements that may need that allowance.
const roundedShare = 1e-3

// closeWeighted is Close for outputs of attention.
//
// FlashMLA's bounds are made for its own tests' data. Where large values of both
// signs cancel, a kernel that rounds the softmax weights to bf16, as FlashMLA and
// the recorded kernels do, misses them in a few elements of ten thousand against
// the exact result (4 of 98304 and 15 of 32768 in recorded cases), and so an exact
// kernel misses them against the recorded one. Elements beyond the bounds therefore
// pass if they are within weightRounding * spread, but at most one in a thousand
// may be of that kind, so that an error in a single head still shows; and the
// bound on the whole array stays as it is.
func (c *Comparison) closeWeighted(name string, got, want Array, tol Tolerance, spread func() ([]float32, error)) *Comparison {
	plain := NewComparison(c.class).Close(name, got, want, tol)
	if plain.Result().Pass || !slices.Equal(got.Shape, want.Shape) {
		return c.Close(name, got, want, tol)
	}
	allowance, err := spread()
	if err != nil {
		return c.Fail("%s: %v", name, err)
	}
	a, b := got.Float64s(), want.Float64s()
	beyond, ratio, at := 0, 0.0, 0
	var dot, norm float64
	for i := range b {
		if special(a[i]) || special(b[i]) {
			if a[i] != b[i] && !(math.IsNaN(a[i]) && math.IsNaN(b[i])) {
				return c.Fail("%s: at %s got %g, want %g", name, position(i, want.Shape), a[i], b[i])
			}
			continue
		}
		dot += a[i] * b[i]
		norm += a[i]*a[i] + b[i]*b[i]
		abs := math.Abs(a[i] - b[i])
		if abs < tol.Abs || abs/(math.Abs(b[i])+1e-6) < tol.Rel {
			continue
		}
		beyond++
		if r := abs / (weightRounding*float64(allowance[i]) + math.SmallestNonzeroFloat64); r > ratio {
			ratio, at = r, i
		}
	}
	limit := math.Ceil(roundedShare * float64(len(b)))
	c.add(ratio < 1, ratio, 1, fmt.Sprintf("%s: %.3g of the allowance for rounded weights at %s: got %.6g, want %.6g",
		name, ratio, position(at, want.Shape), a[at], b[at]))
	c.add(float64(beyond) <= limit, float64(beyond), limit, fmt.Sprintf("%s: %d of %d elements beyond absolute %.3g and relative %.3g, at most %.0f may be",
		name, beyond, len(b), tol.Abs, tol.Rel, limit))
	d := diff(dot, norm)
	c.add(d < tol.Cos, d, tol.Cos, fmt.Sprintf("%s: 1 - cos %.3g of %.3g", name, d, tol.Cos))
	return c
}
