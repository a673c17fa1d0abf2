package verify

import (
	"fmt"
	"math"
	"slices"
)

// topKTolerance is the distance, absolute or relative to the larger, below which two values count
// as tied: results of differently ordered float32 sums.
const topKTolerance = 1e-5

// TopK demands that every row of got selects the largest values of its row of
// logits. logits is [R, N] float32; the first lengths[r] of a row count; got is
// [R, k] int32 with -1 after the valid entries, in any order.
//
// A row passes if it has min(lengths[r], k) different indices within the length
// and the values they select, sorted, agree with the largest ones within 1e-5,
// absolute or relative. Where the gap after the k-th value is wider than that
// this leaves one set only. NaN counts as -Inf. Error is the number of rows that do not
// pass.
func (c *Comparison) TopK(name string, logits Array, lengths []int32, got Array) *Comparison {
	rows, n, k := logits.Dim(0), logits.Dim(1), got.Dim(1)
	x, idx := logits.F32(), got.I32()
	for i, v := range x {
		if v != v {
			x[i] = float32(math.Inf(-1))
		}
	}
	if len(lengths) != rows || got.Dim(0) != rows || len(x) != rows*n || len(idx) != rows*k {
		return c.Fail("%s: got %v for logits %v and %d lengths", name, got, logits, len(lengths))
	}
	bad, first := 0, ""
	for r := range rows {
		valid := min(max(int(lengths[r]), 0), n)
		if why := topKRow(x[r*n:r*n+valid], idx[r*k:(r+1)*k]); why != "" {
			if bad++; first == "" {
				first = fmt.Sprintf(", row %d: %s", r, why)
			}
		}
	}
	c.Criterion(bad == 0, float64(bad), 0, fmt.Sprintf("%s: %d of %d rows differ%s", name, bad, rows, first))
	return c
}

// topKRow says what is wrong with the selection from one row, or nothing.
func topKRow(x []float32, idx []int32) string {
	want := min(len(x), len(idx))
	picked := slices.DeleteFunc(slices.Clone(idx), func(i int32) bool { return i == -1 })
	if len(picked) != want {
		return fmt.Sprintf("%d indices, want %d", len(picked), want)
	}
	slices.Sort(picked)
	var got []float32
	for j, i := range picked {
		if i < 0 || int(i) >= len(x) {
			return fmt.Sprintf("index %d outside the %d values", i, len(x))
		}
		if j > 0 && picked[j-1] == i {
			return fmt.Sprintf("index %d twice", i)
		}
		got = append(got, x[i])
	}
	best := slices.Clone(x)
	slices.Sort(best)
	slices.Sort(got)
	for j, b := range best[len(best)-want:] {
		d := math.Abs(float64(got[j]) - float64(b))
		if got[j] != b && (math.IsInf(float64(b), 0) || !(d <= topKTolerance*max(1, math.Abs(float64(b))))) {
			return fmt.Sprintf("selects %g where %g is larger", got[j], b)
		}
	}
	return ""
}
