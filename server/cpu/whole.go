package cpu

import "math"

// wholeColumns counts the activations that share a scale.
const wholeColumns = 256

// whole is 256 activations as whole numbers of at most 2^13: column 64j+i is
// scale * (128*x[j][0][i] + x[j][1][i]). C calls it Whole.
type whole struct {
	x     [4][2][64]int8
	sums  [wholeColumns / 16]float32 // of 16 columns each, without the scale
	scale float32
	_     [15]float32
}

// set rounds x, at most 256 numbers, to multiples of 2^-13 of the smallest power of two that none
// of them exceeds, ties to even. So numbers of bf16 stay as they are if they are at least 1/64 of
// that power, which is 2^-113 or more. If one is not finite, the scale is NaN.
func (w *whole) set(x []float32) {
	most := uint32(0)
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	*w = whole{}
	if most >= 0xFF<<23 {
		w.scale = float32(math.NaN())
		return
	}
	power := max((most+1<<23-1)>>23, 14) // with the bias of f32, 127
	w.scale = math.Float32frombits((power - 13) << 23)
	inverse := math.Float32frombits((2*127 + 13 - power) << 23)
	for c, v := range x {
		const round = 3 << 22 // the numbers of f32 beside it are whole
		q := int32(math.Float32bits(v*inverse+round)) - int32(math.Float32bits(round))
		high := (q + 64) >> 7
		to := &w.x[c/64]
		to[0][c%64], to[1][c%64] = int8(high), int8(q-high<<7)
		w.sums[c/16] += float32(q)
	}
}
