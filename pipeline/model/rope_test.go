package model_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

var (
	plain = model.Rope{Theta: 10000, Factor: 1}
	yarn  = model.Rope{Theta: 160000, Factor: 16, BetaFast: 32, BetaSlow: 1, Original: 65536}
)

func TestRopeFrequencies(t *testing.T) {
	f := yarn.Frequencies()
	for i, want := range map[int]float64{
		0: 1, 8: 0.05, 15: 0.00363553858, 16: 0.002265625, 20: 0.000296977778, 24: 1.953125e-05, 25: 5.37231267e-06, 31: 5.68052904e-07,
	} {
		assert.False(t, math.Abs(float64(f[i])/want-1) > 2e-7, "frequency %d is %.9g, want %.9g", i, f[i], want)
	}
	g := plain.Frequencies()
	for i, v := range g {
		assert.False(t, math.Abs(float64(v)/math.Pow(10000, -float64(i)/32)-1) > 2e-7,
			"frequency %d is %.9g, want %.9g", i, v, math.Pow(10000, -float64(i)/32))
	}
	// A ramp of no width is a step.
	narrow := yarn
	narrow.BetaFast, narrow.BetaSlow = 1, 1e9
	for i, v := range narrow.Frequencies() {
		assert.True(t, v > 0 && v <= 1, "frequency %d of a ramp without width is %g", i, v)
	}
}

// Rows are those of the rounded angle, and as far from those of the exact one as its
// rounding, and that of the frequency, explain.
func TestRopeRows(t *testing.T) {
	positions := []int{0, 1, 2, 127, 128, 4095, 65535, 65536, 999999, 1<<20 - 1, 1 << 24}
	for _, r := range []model.Rope{plain, yarn} {
		f := r.Frequencies()
		for _, p := range positions {
			row := must[[]float32](t)(r.Table(2, max(p, 1)))[min(p, 1)*model.RopeRow:]
			for i := range model.RopeRow / 2 {
				cos, sin := row[i], row[model.RopeRow/2+i]
				angle := float64(float32(p) * f[i])
				assert.Equal(t, float32(math.Cos(angle)), cos,
					"position %d, pair %d: (%g, %g), want the cosine and sine of %g", p, i, cos, sin, angle)
				assert.Equal(t, float32(math.Sin(angle)), sin,
					"position %d, pair %d: (%g, %g), want the cosine and sine of %g", p, i, cos, sin, angle)
				exact := float64(p) * exactFrequency(r, i)
				assert.False(t, math.Hypot(float64(cos)-math.Cos(exact), float64(sin)-math.Sin(exact)) > 1e-7+exact*0x1p-21,
					"position %d, pair %d: %g from the exact angle", p, i,
					math.Hypot(float64(cos)-math.Cos(exact), float64(sin)-math.Sin(exact)))
			}
		}
	}
}

// exactFrequency is the frequency of the models' two rotations in float64.
func exactFrequency(r model.Rope, i int) float64 {
	f := math.Pow(r.Theta, -float64(i)/32)
	if r.Scaled() {
		ramp := min(max(float64(i-15)/10, 0), 1)
		f *= ramp/16 + 1 - ramp
	}
	return f
}

func TestRopeTable(t *testing.T) {
	table := must[[]float32](t)(yarn.Table(5, 128))
	last := must[[]float32](t)(yarn.Table(2, 4*128))
	assert.Equal(t, last[model.RopeRow:], table[4*model.RopeRow:])
	for i, v := range table[:model.RopeRow] {
		if want := float32(1 - i/(model.RopeRow/2)); v != want {
			t.Errorf("position 0, value %d: %g", i, v)
		}
	}
	for what, err := range map[string]error{
		"no rows": second(yarn.Table(0, 1)), "no step": second(yarn.Table(1, 0)), "too far": second(yarn.Table(1<<24+2, 1)), "steps too far": second(yarn.Table(3, 1<<24)),
		"overflow":  second(yarn.Table(math.MaxInt, math.MaxInt)),
		"no angles": second(model.Rope{}.Table(1, 1)), "no positions before YaRN": second(model.Rope{Theta: 9, Factor: 2, BetaFast: 2, BetaSlow: 1}.Table(1, 1)),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument, what)
	}
}

// Where even the fastest pair turns less often than BetaSlow says, or the second one does, YaRN
// slows all but the first. So says DeepSeek-V4.1's code, by the ramp's least width.
func TestFrequenciesSlow(t *testing.T) {
	for original := 1; original <= 7; original++ {
		r := yarn
		r.Original = original
		plain := r
		plain.Factor = 1
		want := plain.Frequencies()
		for i := range want[1:] {
			want[1+i] /= 16
		}
		assert.Equal(t, want, r.Frequencies(), "%d positions", original)
	}
}

func second[T any](_ T, err error) error { return err }

// Where even the slowest pair turns more often than BetaFast says, YaRN leaves all as they are.
func TestFrequenciesFast(t *testing.T) {
	r := model.Rope{Theta: 12, Factor: 4, BetaFast: 32, BetaSlow: 1, Original: 65536}
	plain := r
	plain.Factor = 1
	assert.Equal(t, plain.Frequencies(), r.Frequencies())
}
