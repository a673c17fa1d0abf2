package verify

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// Kernels upstream are compiled so that a product and a sum may become one fused
// operation; ours are not, and round each. After rounding to bf16 the two differ in
// about one turned number of 10^5. Random cases, whose reference rounds as ours do, have
// to be equal; recorded ones may differ in that.

// turnTolerance is the relative error, of the magnitudes of the two terms of a turned number, that
// f32 arithmetic may make before the number is rounded.
const turnTolerance = 1e-6

// turned returns an entry of bf16 values with the last cache.RopeDim turned forward by
// a row of a rotary table, or back with sign -1, and how far f32 may be from each: not at all from
// those that do not turn, and flushed more from others.
func turned(x []uint16, row []float32, sign, flushed float64) cache.CompressedEntry {
	e := cache.CompressedEntry{Value: make([]float64, len(x)), Tol: make([]float64, len(x))}
	for d, v := range x {
		e.Value[d] = float64(numfmt.BF16Decode(v))
	}
	first, half := len(x)-cache.RopeDim, cache.RopeDim/2
	for i := range half {
		even, odd := e.Value[first+2*i], e.Value[first+2*i+1]
		c, s := float64(row[i]), sign*float64(row[half+i])
		e.Value[first+2*i], e.Value[first+2*i+1] = even*c-odd*s, odd*c+even*s
		e.Tol[first+2*i] = turnTolerance*(math.Abs(even*c)+math.Abs(odd*s)) + flushed
		e.Tol[first+2*i+1] = turnTolerance*(math.Abs(odd*c)+math.Abs(even*s)) + flushed
	}
	return e
}

// turnedRow returns the row of a table that a token turns by.
func turnedRow(table []float32, row int32) []float32 {
	return table[min(max(int(row), 0), len(table)/cache.RopeDim-1)*cache.RopeDim:]
}

// insertedRows compares the pages that a case of fused_qnorm_rope_kv_insert gives.
func (c *Comparison) insertedRows(name string, x qInsertInput, recorded bool, got, want Array) *Comparison {
	if !recorded || !c.Same(name, got, want) || string(got.Data) == string(want.Data) {
		return c.Exact(name, got, want)
	}
	var entries []cache.CompressedEntry
	kv, positions, table := x.KV.U16(), x.Positions.I32(), x.Table.F32()
	for i, slot := range x.Slots.I64() {
		if slot >= 0 {
			e := turned(kv[i*cache.D:(i+1)*cache.D], turnedRow(table, positions[i]), 1, 0)
			e.Token, e.Slot = i, slot
			entries = append(entries, e)
		}
	}
	return c.BoundaryKV(name, got, want, entries, x.layout())
}

// queryCodes compares the codes that a case of fused_indexer_q_rope_quant gives; scales,
// and weights with them, have to be equal.
func (c *Comparison) queryCodes(name string, x queryInput, recorded bool, got, want Array) *Comparison {
	if !recorded || x.cfg.Hadamard || !c.Same(name, got, want) || string(got.Data) == string(want.Data) {
		return c.Exact(name, got, want)
	}
	c.class = ClassBoundary
	var entries []cache.CompressedEntry
	q, positions, table := x.Q.U16(), x.Positions.I32(), floats(x.Table)
	for i := range x.T * x.H {
		e := turned(q[i*cache.IndexDim:(i+1)*cache.IndexDim], turnedRow(table, positions[i/x.H]), 1, 0)
		e.Token, e.Slot = i/x.H, int64(i)
		entries = append(entries, e)
	}
	size := int64(x.cfg.Format.RowBytes())
	row := func(e cache.CompressedEntry) [][2]int64 { return [][2]int64{{e.Slot * size, size}} }
	return c.Boundary(name, got, want, entries, row, func(codes []byte, e cache.CompressedEntry) string {
		codes = codes[e.Slot*size:][:size]
		if x.cfg.Format == cache.IndexKeyFP8 {
			return blockE4M3.checkCodes(e, 0, cache.IndexDim, func(d int) byte { return codes[d] })
		}
		for b := range indexer.Blocks {
			n := cache.IndexDim / indexer.Blocks
			if why := blockE2M1.checkCodes(e, b*n, n, func(d int) byte { return codes[d/2] >> (4 * (d % 2)) & 15 }); why != "" {
				return fmt.Sprintf("block %d: %s", b, why)
			}
		}
		return ""
	})
}

// checkCodes is check under the scale that the values give, where that is decided.
func (f blockFormat) checkCodes(e cache.CompressedEntry, first, n int, code func(d int) byte) string {
	why := ""
	for _, upper := range []bool{false, true} {
		var amax float32
		for d := first; d < first+n; d++ {
			lo, hi := f.between(e, d)
			if upper {
				amax = max(amax, -lo, hi)
			} else {
				amax = max(amax, min(max(lo, -lo), max(hi, -hi)))
			}
		}
		if why = f.check(e, first, n, numfmt.UE8M0Encode(amax, f.eps, f.inverseMax), code); why == "" {
			return ""
		}
	}
	return why
}
