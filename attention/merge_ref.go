package attention

import (
	"math"

	"github.com/vkmla/vkmla/cache"
)

// mergeRef joins the parts of one row of attention, computed over disjoint sets of
// keys. Part i has the accumulator acc[i] (D numbers) and the sum l[i], both
// relative to 2^m[i]. With M = max m_i and w_i = 2^(m_i - M) over the parts that
// are not empty (l > 0):
//
//	out = sum w_i acc_i / (sum w_i l_i + exp(sink - M ln 2)),  lse = ln 2 (M + log2 sum w_i l_i)
//
// All parts empty: out = 0, lse = +inf. The sink takes part here, once, and not in
// the parts.
//
// Source: FlashMLA csrc/smxx/decode/combine.
func mergeRef(m, l []float64, acc [][]float64, sink float64) (out []float64, lse float64) {
	out = make([]float64, cache.D)
	top := math.Inf(-1)
	for i := range m {
		if l[i] > 0 {
			top = max(top, m[i])
		}
	}
	if math.IsInf(top, -1) {
		return out, math.Inf(1)
	}
	var sum float64
	for i := range m {
		if l[i] <= 0 {
			continue
		}
		w := math.Exp2(m[i] - top)
		sum += w * l[i]
		for d := range out {
			out[d] += w * acc[i][d]
		}
	}
	denominator := sum + math.Exp(sink-top*math.Ln2)
	for d := range out {
		out[d] /= denominator
	}
	return out, math.Ln2 * (top + math.Log2(sum))
}
