package projection

import (
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// QInsertRef is the definition of QInsert on host memory, for queries q [N, heads, 512]
// bf16, which it changes in place, kv [N, 512] bf16, slots [T], positions [N], cosSin
// [rows, 64] and pool, the bytes of pages of layout l. With x a query head of token t at
// position p, or the token's K row, and e, o = x[448+2i], x[449+2i], c, s =
// cosSin[p][i], cosSin[p][32+i], i = 0..31:
//
//	x  = x * (sum_i x_i^2 / 512 + eps)^-0.5              queries only
//	e' = e*c - o*s,  o' = o*c + e*s                      each product and sum rounded to binary32
//	x  = bf16(x)
//
// and the K rows go where cache.InsertRef puts them. A position outside the table
// counts as its nearest row. The error is a *vk.ArgumentError, and then nothing was
// written.
func QInsertRef(q []uint16, heads int, kv []uint16, slots []int64, positions []int32, cosSin []float32,
	eps float32, pool []byte, l cache.Layout) error {
	eps, err := epsilon("q insert reference", eps)
	if err != nil {
		return err
	}
	return qInsertRef(q, heads, kv, slots, positions, cosSin, pool, l, func(head []uint16) float32 { return rmsFactor(head, eps) })
}

// QRotateInsertRef is QInsertRef without the norm of queries.
func QRotateInsertRef(q []uint16, heads int, kv []uint16, slots []int64, positions []int32, cosSin []float32,
	pool []byte, l cache.Layout) error {
	return qInsertRef(q, heads, kv, slots, positions, cosSin, pool, l, func([]uint16) float32 { return 1 })
}

func qInsertRef(q []uint16, heads int, kv []uint16, slots []int64, positions []int32, cosSin []float32,
	pool []byte, l cache.Layout, factor func(head []uint16) float32) error {
	const op = "q insert reference"
	n := len(positions)
	switch {
	case heads < 0 || len(q) != n*heads*cache.D || len(kv) != n*cache.D:
		return pkg.Wrong(op, "q, kv", fmt.Sprintf("%d and %d values", len(q), len(kv)), "[%d, %d, 512] and [%d, 512]", n, heads, n)
	case len(cosSin) < cache.RopeDim || len(cosSin)%cache.RopeDim != 0:
		return pkg.Wrong(op, "cosSin", fmt.Sprintf("%d values", len(cosSin)), "rows of %d", cache.RopeDim)
	}
	turned := make([]uint16, 0, len(kv))
	for t := range n {
		turned = append(turned, cache.RotateRef(kv[t*cache.D:][:cache.D], cosSinOf(cosSin, positions[t]))...)
	}
	if err := cache.InsertRef(pool, l, turned, slots); err != nil {
		return err
	}
	for i := range n * heads {
		head := q[i*cache.D:][:cache.D]
		r := factor(head)
		x := numfmt.BF16DecodeSlice(nil, head)
		for d := range x {
			x[d] *= r
		}
		turn(x[cache.NopeDim:], cosSinOf(cosSin, positions[i/heads]))
		numfmt.BF16EncodeSlice(head, x)
	}
	return nil
}

// cosSinOf is a position's row of the table, or the nearest one.
func cosSinOf(cosSin []float32, p int32) []float32 {
	return cosSin[min(max(int(p), 0), len(cosSin)/cache.RopeDim-1)*cache.RopeDim:][:cache.RopeDim]
}

// turn turns 64 numbers forward.
func turn(x, cosSin []float32) {
	for i := range cache.RopeDim / 2 {
		e, o := x[2*i], x[2*i+1]
		c, s := cosSin[i], cosSin[cache.RopeDim/2+i]
		x[2*i] = float32(e*c) - float32(o*s)
		x[2*i+1] = float32(o*c) + float32(e*s)
	}
}
