package verify

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

var inf, nan = float32(math.Inf(1)), float32(math.NaN())

func f32(v ...float32) Array { return vectors.FromF32(v, len(v)) }

func TestExact(t *testing.T) {
	want := vectors.FromI32([]int32{1, 2, 3, 4}, 2, 2)
	got := want.Clone()
	r := NewComparison(ClassExact).Exact("x", got, want).Result()
	assert.True(t, r.Pass && r.Error == 0 && r.Bound == 0 && r.Class == "E", "equal: %+v", r)
	got.Data[12] = 9
	r = NewComparison(ClassExact).Exact("x", got, want).Result()
	assert.False(t, r.Pass || r.Error != 1 || !strings.Contains(r.Detail, "[1, 1]: got 9, want 4"), "one differs: %+v", r)
	for name, got := range map[string]Array{"absent": {}, "other shape": vectors.FromI32([]int32{1, 2, 3, 4}, 4), "other type": f32(1, 2, 3, 4)} {
		r := NewComparison(ClassExact).Exact("x", got, want).Result()
		assert.False(t, r.Pass || !math.IsInf(r.Error, 1), "%s: %+v", name, r)
	}
	assert.False(t, NewComparison(ClassExact).Exact("x", Array{}, Array{}).Result().Pass,
		"a case that wants nothing must not pass")
	assert.False(t, NewComparison(ClassExact).Result().Pass, "a comparison of nothing must not pass")
}

// What a case lacks is said in one way by all, and once.
func TestNotSaid(t *testing.T) {
	none, tol := Array{}, Tolerance{Abs: 1, Rel: 1}
	for name, compare := range map[string]func(c *Comparison) *Comparison{
		"exact":     func(c *Comparison) *Comparison { return c.Exact("x", f32(1), none) },
		"close":     func(c *Comparison) *Comparison { return c.Close("x", f32(1), none, tol) },
		"calc diff": func(c *Comparison) *Comparison { return c.CalcDiff("x", f32(1), none, 1) },
		"steps":     func(c *Comparison) *Comparison { return c.BF16Steps("x", f32(1), none, 1) },
		"weighted":  func(c *Comparison) *Comparison { return c.CloseWeighted("x", f32(1), none, tol, 1, nil) },
	} {
		r := compare(compare(NewComparison(ClassExact))).Result()
		assert.False(t, r.Pass || r.Detail != "x: the case does not say what is wanted", "%s: %+v", name, r)
	}
}

func TestClose(t *testing.T) {
	tol := Tolerance{1e-3, 0.01, 5e-6}
	for _, c := range []struct {
		name      string
		got, want Array
		pass      bool
		err       float64
	}{
		{"equal", f32(1, 2, 3), f32(1, 2, 3), true, 0},
		{"absolute saves", f32(0.0009, 1), f32(0, 1), true, 0.0009},
		{"relative saves", f32(100.1), f32(100), true, 0.001},
		{"neither", f32(1.02, 100), f32(1, 100), false, 0.02},
		{"cosine", f32(1.004, 1.004, -1.004, 1.004), f32(1, 1, -1, 1), false, 8e-6},
		{"infinities", f32(inf, -inf, nan), f32(inf, -inf, nan), true, 0},
		{"sign of infinity", f32(inf, 1), f32(-inf, 1), false, math.Inf(1)},
		{"infinity for a number", f32(inf, 1), f32(1, 1), false, math.Inf(1)},
		{"NaN for a number", f32(1, nan), f32(1, 1), false, math.Inf(1)},
		{"number for NaN", f32(1, 1), f32(1, nan), false, math.Inf(1)},
		{"shape", f32(1, 1), f32(1), false, math.Inf(1)},
		{"absent", Array{}, f32(1), false, math.Inf(1)},
		{"zeros", f32(0, 0), f32(0, 0), true, 0},
		{"poison", vectors.Filled(poisonFloat, vectors.F32, 1), f32(0), false, math.Inf(1)},
		{"empty", f32(), f32(), true, 0},
	} {
		r := NewComparison(ClassTolerance).Close("x", c.got, c.want, tol).Result()
		assert.False(t, r.Pass != c.pass || math.Abs(r.Error-c.err) > 1e-4*(1+c.err) && r.Error != c.err,
			"%s: %+v", c.name, r)
		assert.False(t, r.Pass && r.Error > r.Bound || !r.Pass && r.Error < r.Bound,
			"%s: error and bound contradict the verdict: %+v", c.name, r)
	}
}

// TestWorst shows that the criterion nearest to its bound is the one reported,
// and that a failure is never hidden by another array's larger number.
func TestWorst(t *testing.T) {
	tol := Tolerance{Abs: 1, Rel: 1e-9}
	r := NewComparison(ClassTolerance).
		Close("far", f32(0.9), f32(0), tol).
		Close("near", f32(0.1), f32(0), tol).Result()
	assert.False(t, !r.Pass || !strings.HasPrefix(r.Detail, "far") || math.Abs(r.Error-0.9) > 1e-6 || r.Bound != 1,
		"%+v", r)
	r = NewComparison(ClassTolerance).
		Close("a", f32(0.9), f32(0), tol).
		Exact("b", vectors.FromI32([]int32{1}, 1), vectors.FromI32([]int32{2}, 1)).Result()
	assert.False(t, r.Pass || !strings.HasPrefix(r.Detail, "b"), "%+v", r)
	r = NewComparison(ClassTolerance).Close("a", f32(3), f32(0), tol).Close("b", f32(2), f32(0), tol).Result()
	assert.False(t, r.Pass || r.Error != 3 || !strings.Contains(r.Detail, "; b"), "%+v", r)
}

// Integers are printed as such, whatever their size.
func TestElement(t *testing.T) {
	for want, a := range map[string]Array{
		"-1515870811": vectors.FromI32([]int32{-1515870811}, 1), "-6510615555426900571": vectors.FromI64([]int64{-6510615555426900571}, 1),
		"0x3f80 (1)": vectors.FromU16([]uint16{0x3F80}, 1), "0.5": f32(0.5),
	} {
		assert.Equal(t, want, element(a, 0))
	}
}

func TestCalcDiffAndSteps(t *testing.T) {
	r := NewComparison(ClassTolerance).CalcDiff("x", f32(1, 1.1), f32(1, 1), 1e-2).Result()
	assert.False(t, !r.Pass || r.Error <= 0, "%+v", r)
	r = NewComparison(ClassTolerance).CalcDiff("x", f32(1, 1.1), f32(1, 1), 1e-4).Result()
	assert.False(t, r.Pass, "%+v", r)
	r = NewComparison(ClassTolerance).CalcDiff("x", f32(1, -inf), f32(1, 1), 1).Result()
	assert.False(t, r.Pass, "%+v", r)
	bits := func(v ...uint16) Array { return vectors.FromU16(v, len(v)) }
	for _, c := range []struct {
		got, want Array
		steps     float64
	}{
		{bits(0x3F80), bits(0x3F81), 1}, {bits(0x8001), bits(0x0001), 2}, {bits(0x8000), bits(0), 0}, {bits(1, 7), bits(1, 4), 3},
	} {
		r := NewComparison(ClassTolerance).BF16Steps("x", c.got, c.want, 1).Result()
		require.Equal(t, c.steps, r.Error, "%+v", r)
		assert.Equal(t, c.steps <= 1, r.Pass, "%+v", r)
	}
}
