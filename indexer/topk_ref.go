package indexer

import (
	"cmp"
	"math"
	"slices"
)

// TopKRef returns the selection [T, k] from rows of logits [T, n]: of the first
// l = min(max(lens[t], 0), n) columns of row t, the min(l, k) that come first in the
// order
//
//	larger logit first, of equal logits the smaller column first
//
// in ascending order of the column, then -1. -0 and +0 are equal, NaN is equal to
// -Inf.
func TopKRef(logits []float32, n int, lens []int32, k int) []int32 {
	out := slices.Repeat([]int32{-1}, len(lens)*k)
	for t, l := range lens {
		row := logits[t*n : (t+1)*n]
		columns := make([]int32, min(max(int(l), 0), n))
		for i := range columns {
			columns[i] = int32(i)
		}
		value := func(i int32) float32 {
			if v := row[i]; v == v {
				return v
			}
			return float32(math.Inf(-1))
		}
		slices.SortFunc(columns, func(a, b int32) int {
			return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a, b))
		})
		columns = columns[:min(len(columns), k)]
		slices.Sort(columns)
		copy(out[t*k:], columns)
	}
	return out
}
