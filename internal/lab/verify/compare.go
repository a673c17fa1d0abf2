package verify

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// Result is the judgement of one case on one variant.
//
// Error and Bound belong together: of all the criteria that a comparison looks
// at, they are the measured value and the limit of the one that came closest to
// its limit, or exceeded it most. Detail says which one that is. For exact
// comparisons Error counts the elements that differ and Bound is 0. If infinite
// or NaN values do not coincide, or a shape is wrong, Error is +Inf.
type Result struct {
	Class  string
	Error  float64
	Bound  float64
	Pass   bool
	Detail string
}

// Tolerance bounds the difference of two arrays in the way of FlashMLA's tests:
// infinities and NaNs must be at the same places; everywhere else the absolute
// difference must be below Abs, or the relative one, |a-b| / (|b| + 1e-6),
// below Rel; and over the whole array 1 - 2*sum(ab)/sum(a^2+b^2) must be below
// Cos. A Cos of 0 leaves the last one out.
//
// Source: FlashMLA tests/lib.py and the test files that use it.
type Tolerance struct{ Abs, Rel, Cos float64 }

// The tolerances that FlashMLA's own tests demand.
var (
	DecodeOut  = Tolerance{1e-3, 2.01 / 128, 5e-6}
	DecodeLSE  = Tolerance{1e-6, 8.01 / 65536, 0}
	PrefillOut = Tolerance{8e-4, 3.01 / 128, 7e-6}
	PrefillLSE = Tolerance{1e-6, 2.01 / 65536, 0} // max_logits as well
)

// Comparison collects the criteria of one case. Each method adds one array and
// returns the comparison, so that calls can be chained up to Result.
type Comparison struct {
	class string
	worst *Result
	ratio float64
	fails []string
}

// NewComparison starts a comparison of the given class.
func NewComparison(class string) *Comparison { return &Comparison{class: class} }

// exactly returns the comparison of an operation whose outputs, of these names, are equal.
func exactly(names ...string) func(c Case, got, want Arrays) Result {
	return func(_ Case, got, want Arrays) Result {
		r := NewComparison(ClassExact)
		for _, n := range names {
			r.Exact(n, got[n], want[n])
		}
		return r.Result()
	}
}

// Criterion records a criterion; its value passes if it is below the bound, or equal
// to a bound of 0.
func (c *Comparison) Criterion(pass bool, value, bound float64, detail string) {
	ratio := value / bound
	switch {
	case value == 0:
		ratio = 0
	case bound == 0 || math.IsNaN(ratio):
		ratio = math.Inf(1)
	}
	if !pass {
		ratio = max(ratio, 1)
		c.fails = append(c.fails, detail)
	}
	if c.worst == nil || ratio > c.ratio || !pass && c.worst.Pass {
		c.worst, c.ratio = &Result{Error: value, Bound: bound, Pass: pass, Detail: detail}, ratio
	}
}

// Result returns the verdict over everything that was added. A comparison without
// any criterion fails.
func (c *Comparison) Result() Result {
	if c.worst == nil {
		return Result{Class: c.class, Error: math.Inf(1), Detail: "nothing was compared"}
	}
	r := *c.worst
	r.Class, r.Pass = c.class, len(c.fails) == 0
	if fails := slices.Compact(slices.Clone(c.fails)); len(fails) > 1 { // two criteria may miss the same array
		r.Detail = strings.Join(fails, "; ")
	}
	return r
}

// Fail adds a criterion that is not met, for a reason the caller knows.
func (c *Comparison) Fail(format string, args ...any) *Comparison {
	c.Criterion(false, math.Inf(1), 0, fmt.Sprintf(format, args...))
	return c
}

// Same checks that two arrays have one type and shape, and records a failure if
// they do not.
func (c *Comparison) Same(name string, got, want Array) bool {
	switch {
	case !c.said(name, want):
	case got.Type != want.Type || !slices.Equal(got.Shape, want.Shape) || len(got.Data) != len(want.Data):
		c.Fail("%s: got %v, want %v", name, got, want)
	default:
		return true
	}
	return false
}

// said records a failure if a case does not have what is wanted.
func (c *Comparison) said(name string, want Array) bool {
	if want.IsZero() {
		c.Fail("%s: the case does not say what is wanted", name)
		return false
	}
	return true
}

// Exact demands equal bytes.
func (c *Comparison) Exact(name string, got, want Array) *Comparison {
	if !c.Same(name, got, want) {
		return c
	}
	if bytes.Equal(got.Data, want.Data) {
		c.Criterion(true, 0, 0, name+": equal")
		return c
	}
	size, count, first := want.Type.Size(), 0, -1
	for i := 0; i < len(want.Data); i += size {
		if !bytes.Equal(got.Data[i:i+size], want.Data[i:i+size]) {
			if count++; first < 0 {
				first = i / size
			}
		}
	}
	c.Criterion(false, float64(count), 0, fmt.Sprintf("%s: %d of %d elements differ, first at %s: got %s, want %s",
		name, count, len(want.Data)/size, position(first, want.Shape), element(got, first), element(want, first)))
	return c
}

// numbers calls f for all elements that are numbers in both arrays and returns their calc_diff.
// It records a failure where shapes differ, or infinities and NaNs do not coincide.
func (c *Comparison) numbers(name string, got, want Array, f func(i int, a, b float64)) (calcDiff float64, ok bool) {
	if !c.said(name, want) {
		return 0, false
	}
	a, b := got.Float64s(), want.Float64s()
	if got.IsZero() || !slices.Equal(got.Shape, want.Shape) || len(a) != len(b) {
		c.Fail("%s: got %v, want %v", name, got, want)
		return 0, false
	}
	var dot, norm float64
	for i := range b {
		if special(a[i]) || special(b[i]) {
			if a[i] != b[i] && !(math.IsNaN(a[i]) && math.IsNaN(b[i])) {
				c.Fail("%s: at %s got %g, want %g", name, position(i, want.Shape), a[i], b[i])
				return 0, false
			}
			continue
		}
		dot += a[i] * b[i]
		norm += a[i]*a[i] + b[i]*b[i]
		f(i, a[i], b[i])
	}
	return diff(dot, norm), true
}

// Close demands agreement within a tolerance. U16 arrays are read as bf16.
func (c *Comparison) Close(name string, got, want Array, tol Tolerance) *Comparison {
	ratio, value, bound := -1.0, 0.0, tol.Abs
	at, x, y := 0, 0.0, 0.0
	d, ok := c.numbers(name, got, want, func(i int, a, b float64) {
		abs := math.Abs(a - b)
		rel := abs / (math.Abs(b) + 1e-6)
		v, lim := abs, tol.Abs
		if rel/tol.Rel < abs/tol.Abs {
			v, lim = rel, tol.Rel
		}
		if v/lim > ratio {
			ratio, value, bound, at, x, y = v/lim, v, lim, i, a, b
		}
	})
	if !ok {
		return c
	}
	kind := "absolute"
	if bound == tol.Rel {
		kind = "relative"
	}
	detail := fmt.Sprintf("%s: %s error %.3g of %.3g at %s: got %.6g, want %.6g", name, kind, value, bound, position(at, want.Shape), x, y)
	if ratio < 0 {
		detail = name + ": no finite elements"
	}
	c.Criterion(ratio < 1, value, bound, detail)
	return c.whole(name, d, tol.Cos)
}

// whole demands a calc_diff of all numbers below a bound; 0: there is none.
func (c *Comparison) whole(name string, d, bound float64) *Comparison {
	if bound > 0 {
		c.Criterion(d < bound, d, bound, fmt.Sprintf("%s: 1 - cos %.3g of %.3g", name, d, bound))
	}
	return c
}

// CalcDiff demands 1 - 2*sum(xy)/sum(x^2+y^2) below bound, in float64, as
// DeepGEMM's tests do; elements that are infinite or NaN in both arrays are
// left out, and must coincide.
func (c *Comparison) CalcDiff(name string, got, want Array, bound float64) *Comparison {
	if d, ok := c.numbers(name, got, want, func(int, float64, float64) {}); ok {
		c.Criterion(d < bound, d, bound, fmt.Sprintf("%s: calc_diff %.3g of %.3g", name, d, bound))
	}
	return c
}

// BF16Steps demands that every bf16 element is at most n codes away from the
// wanted one, where the codes of all finite values are counted in the order of
// the values and the two zeros are one.
func (c *Comparison) BF16Steps(name string, got, want Array, n int) *Comparison {
	if !c.Same(name, got, want) {
		return c
	}
	if got.Type != vectors.U16 {
		return c.Fail("%s: got %v, want bf16", name, got)
	}
	a, b := got.U16(), want.U16()
	worst, at := -1, 0
	for i := range b {
		d := bf16Order(a[i]) - bf16Order(b[i])
		if d = max(d, -d); d > worst {
			worst, at = d, i
		}
	}
	if worst < 0 {
		c.Criterion(true, 0, float64(n), name+": empty")
		return c
	}
	c.Criterion(worst <= n, float64(worst), float64(n), fmt.Sprintf("%s: %d bf16 steps at %s: got %s, want %s",
		name, worst, position(at, want.Shape), element(got, at), element(want, at)))
	return c
}

func bf16Order(b uint16) int {
	if b&0x8000 != 0 {
		return -int(b & 0x7FFF)
	}
	return int(b)
}

// diff is 1 - 2*dot/norm, 0 if both arrays are all zeros. Rounding may push the
// difference of equal arrays a little below 0; the result is never negative.
func diff(dot, norm float64) float64 {
	if norm == 0 {
		return 0
	}
	return max(1-2*dot/norm, 0)
}

func special(x float64) bool { return math.IsInf(x, 0) || math.IsNaN(x) }

// position spells a flat index as the indices of a shape, such as "[2, 17]".
func position(i int, shape []int) string {
	idx := make([]string, len(shape))
	for k := len(shape) - 1; k >= 0; k-- {
		d := max(shape[k], 1)
		idx[k] = fmt.Sprint(i % d)
		i /= d
	}
	return "[" + strings.Join(idx, ", ") + "]"
}

// element prints one element: integers as such, bytes and bf16 as bits.
func element(a Array, i int) string {
	size := a.Type.Size()
	one := Array{Type: a.Type, Shape: []int{1}, Data: a.Data[i*size : (i+1)*size]}
	switch a.Type {
	case vectors.U8:
		return fmt.Sprintf("0x%02x", one.Data[0])
	case vectors.U16:
		return fmt.Sprintf("0x%04x (%g)", one.U16()[0], one.Float64s()[0])
	case vectors.I32:
		return fmt.Sprintf("%d", one.I32()[0])
	case vectors.I64:
		return fmt.Sprintf("%d", one.I64()[0])
	default:
		return fmt.Sprint(one.Float64s()[0])
	}
}
