package verify

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// settle draws heads of a case's raw queries again until every number, normed and turned, is so
// far from the middle between two bf16 numbers that a norm with other last bits rounds it alike.
// Then a kernel that norms queries attends with what projection.QInsertRef gives, although its sums
// have another order, and results need no bound for numbers that round apart.
func settle(rng *rand.Rand, c Case, eps, deviation float64) {
	q, at, table := c.In["q"].U16(), c.In["positions"].I64(), c.In["cos_sin_rows"].F32()
	heads, last := len(q)/cache.D/len(at), int64(len(table)/cache.RopeDim-1)
	for i := range len(at) * heads {
		head, row := q[i*cache.D:][:cache.D], min(max(at[i/heads], 0), last)
		for !settled(head, table[row*cache.RopeDim:][:cache.RopeDim], eps) {
			copy(head, normalBF16(rng, deviation, cache.D).U16())
		}
	}
	c.In["q"] = vectors.FromU16(q, c.In["q"].Shape...)
}

// settled reports whether a head's numbers are what they are with factors a little off.
func settled(head []uint16, cosSin []float32, eps float64) bool {
	const off = 1. / (1 << 20) // some 8 units in the last place, more than sums of 512 numbers miss by
	sum := 0.0
	for _, b := range head {
		sum += math.Pow(float64(numfmt.BF16Decode(b)), 2)
	}
	of := func(by float64) []uint16 {
		r, x := float32(by/math.Sqrt(sum/float64(len(head))+eps)), numfmt.BF16DecodeSlice(nil, head)
		for i := range x {
			x[i] *= r
		}
		const half = cache.RopeDim / 2
		for i, last := 0, x[len(x)-cache.RopeDim:]; i < half; i++ {
			e, o, cos, sin := last[2*i], last[2*i+1], cosSin[i], cosSin[half+i]
			last[2*i], last[2*i+1] = float32(e*cos)-float32(o*sin), float32(o*cos)+float32(e*sin)
		}
		return numfmt.BF16EncodeSlice(nil, x)
	}
	return slices.Equal(of(1-off), of(1+off)) && slices.Equal(of(1), of(1+off))
}
