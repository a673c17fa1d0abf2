package projection

import (
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// InverseRopeRef is the definition of InverseRope on host memory, for o [T, heads, 512]
// bf16, which it changes in place, positions [T] and cosSin [rows, 64]. For token t at
// position p, head h and pair i = 0..31, with e, q = o[t][h][448+2i], o[t][h][449+2i] and
// c, s = cosSin[p][i], cosSin[p][32+i]:
//
//	e' = bf16(e*c + q*s),  q' = bf16(q*c - e*s)          each product and sum rounded to binary32
//
// A position outside the table counts as its nearest row. The error is a
// *vk.ArgumentError, and then nothing was written.
func InverseRopeRef(o []uint16, heads int, positions []int32, cosSin []float32) error {
	if err := checkOutput("inverse rope reference", o, heads, positions, cosSin); err != nil {
		return err
	}
	for i := range len(positions) * heads {
		rotated := o[i*cache.D+cache.NopeDim : (i+1)*cache.D]
		x := numfmt.BF16DecodeSlice(nil, rotated)
		turnBack(x, cosSinOf(cosSin, positions[i/heads]))
		numfmt.BF16EncodeSlice(rotated, x)
	}
	return nil
}

// checkOutput checks the attention's output and what turns it.
func checkOutput(op string, o []uint16, heads int, positions []int32, cosSin []float32) error {
	if n := len(positions); heads < 1 || len(o) != n*heads*cache.D {
		return pkg.Wrong(op, "o", fmt.Sprintf("%d values", len(o)), "[%d, %d, 512]", n, heads)
	}
	if len(cosSin) < cache.RopeDim || len(cosSin)%cache.RopeDim != 0 {
		return pkg.Wrong(op, "cosSin", fmt.Sprintf("%d values", len(cosSin)), "rows of %d", cache.RopeDim)
	}
	return nil
}

// turnBack turns 64 numbers back.
func turnBack(x, cosSin []float32) {
	for i := range cache.RopeDim / 2 {
		e, o := x[2*i], x[2*i+1]
		c, s := cosSin[i], cosSin[cache.RopeDim/2+i]
		x[2*i] = float32(e*c) + float32(o*s)
		x[2*i+1] = float32(o*c) - float32(e*s)
	}
}
