package model

import (
	"fmt"
	"math"
)

// ropePairs is the number of pairs of a head that turn, and of cosines in a row of a table.
const ropePairs = ropeDim / 2

// RopeRow is the number of float32 values of a table's row: 32 cosines, then 32 sines.
const RopeRow = ropeDim

// frequencies are the angles f_i in radians by which pair i turns from one position to
// the next, as kernels and checkpoints count them, in float32:
//
//	g_i = 1 / Theta^(2i/64)
//	f_i = g_i                                              without YaRN
//	f_i = g_i/Factor * (1 - keep_i) + g_i * keep_i         with YaRN
//	keep_i = 1 - (i - low) / max(high - low, 0.001), within 0..1
//	low, high = floor(c(BetaFast)), ceil(c(BetaSlow)), within 0..63
//	c(n) = 64 ln(Original / (2 pi n)) / (2 ln Theta)
//
// c(n) is the pair that turns n times in Original positions. Angles are not scaled otherwise.
// For a rotation that Config.Check refuses, such as the zero value, they mean nothing.
//
// Where no pair is between low and high, as with 4 Original positions, sources disagree: vLLM and
// DeepSeek-V4's code divide by a negative high - low. The formula is DeepSeek-V4.1's.
//
// Sources: vLLM vllm/model_executor/layers/rotary_embedding (common.py, yarn_scaling_rope.py),
// DeepSeek's inference/model.py (precompute_freqs_cis).
func (r Rope) frequencies() [ropePairs]float32 {
	var f [ropePairs]float32
	low, high := r.ramp()
	for i := range f {
		power := float32(math.Pow(r.Theta, float64(2*i)/ropeDim))
		f[i] = 1 / power
		if r.Scaled() {
			slow := 1 / float32(float32(r.Factor)*power)
			keep := 1 - min(max((float32(i)-low)/max(high-low, 0.001), 0), 1)
			f[i] = float32(slow*(1-keep)) + float32(f[i]*keep)
		}
	}
	return f
}

// ramp returns the pairs between which YaRN goes from the given frequencies to the divided ones.
func (r Rope) ramp() (low, high float32) {
	if !r.Scaled() {
		return 0, 1
	}
	pair := func(turns float64) float64 {
		return ropeDim * math.Log(float64(r.Original)/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low = float32(max(math.Floor(pair(float64(r.BetaFast))), 0))
	high = float32(min(math.Ceil(pair(float64(r.BetaSlow))), ropeDim-1))
	return low, high
}

// Table makes rows 0 to rows-1 of a table, row k for position k*step: for pair i the cosine of
// k*step * f_i at i and its sine at 32+i. Models are trained and run with angles that are products
// of float32 numbers, rounded to float32: up to 0.03 from the exact one at position 2^20. Cosine
// and sine are rounded from float64. With a layer's ratio as step, it is the table for compressed
// entries, which turn by the position of the first token of their group. A row has 256 bytes.
//
// Errors: vk.ErrArgument for numbers below 1, positions beyond MaxPosition, or a rotation that
// Config.Check refuses.
func (r Rope) Table(rows, step int) ([]float32, error) {
	if err := r.usable("model: rope table"); err != nil {
		return nil, err
	}
	if rows < 1 || step < 1 || rows > MaxPosition/step+1 {
		return nil, badArgument("model: rope table", "rows, step", fmt.Sprintf("%d, %d", rows, step),
			"at least 1 and positions up to %d", MaxPosition)
	}
	f, table := r.frequencies(), make([]float32, rows*RopeRow)
	for k := range rows {
		turnRow(table[k*RopeRow:][:RopeRow], &f, k*step)
	}
	return table, nil
}

func (r Rope) usable(op string) (err error) {
	r.check(func(string, any, string, ...any) {
		err = badArgument(op, "Rope", fmt.Sprintf("%+v", r), "a rotation that Config.Check accepts")
	}, "", "")
	return err
}

// MaxPosition is the last position: float32 does not tell apart all integers beyond it.
const MaxPosition = 1 << 24

func turnRow(row []float32, f *[ropePairs]float32, position int) {
	for i, v := range f {
		sin, cos := math.Sincos(float64(float32(float32(position) * v)))
		row[i], row[ropePairs+i] = float32(cos), float32(sin)
	}
}
