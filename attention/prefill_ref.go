package attention

import (
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// PrefillRef computes sparse MLA over rows of kv [S, 512], bf16: q [T, H, 512]
// bf16, indices [T, width], lens [T] or nil for width, sink [H] or nil for none.
// For token t and head h over the entries j < lens[t] with 0 <= indices[t][j] < S,
// k_j = kv[indices[t][j]]:
//
//	s_j = scale * dot(q[t][h], k_j),  maxLogits = max_j s_j,  lse = ln sum_j exp(s_j)
//	out = sum_j exp(s_j) k_j / (sum_j exp(s_j) + exp(sink_h))
//
// A row without entries has out = 0, lse = +inf, maxLogits = -inf. Computed in
// float64 and not rounded to bf16.
//
// Source: FlashMLA tests/ref.py.
func PrefillRef(q []uint16, heads int, kv []uint16, indices []int32, width int, lens []int32,
	sink []float32, scale float32) (out, maxLogits, lse []float32) {
	return prefillRef(q, heads, kv, indices, width, lens, sink, scale, asIs)
}

func prefillRef(q []uint16, heads int, kv []uint16, indices []int32, width int, lens []int32,
	sink []float32, scale float32, values valuesOf) (out, maxLogits, lse []float32) {
	tokens := len(q) / (heads * cache.D)
	keys := numfmt.BF16DecodeSlice(nil, kv)
	out, maxLogits, lse = make([]float32, len(q)), make([]float32, tokens*heads), make([]float32, tokens*heads)
	for t := range tokens {
		n := width
		if lens != nil {
			n = min(max(int(lens[t]), 0), width)
		}
		var rows [][]float32
		for _, i := range indices[t*width : t*width+n] {
			if i >= 0 && int(i) < len(kv)/cache.D {
				rows = append(rows, keys[int(i)*cache.D:(int(i)+1)*cache.D])
			}
		}
		for h := range heads {
			at := t*heads + h
			o, x := out[at*cache.D:(at+1)*cache.D], q[at*cache.D:(at+1)*cache.D]
			maxLogits[at], lse[at] = attendRef(o, x, rows, values(rows), sinkOf(sink, h), scale)
		}
	}
	return out, maxLogits, lse
}

// sinkOf is the sink of a head, -inf if there are none.
func sinkOf(sink []float32, h int) float64 {
	if sink == nil {
		return math.Inf(-1)
	}
	return float64(sink[h])
}

// attendRef is the formula of one token and head: q, the keys and the values have D
// numbers; the values differ from the keys by the spread only.
func attendRef(out []float32, q []uint16, keys, values [][]float32, sink float64, scale float32) (maxLogit, lse float32) {
	clear(out)
	if len(keys) == 0 {
		return float32(math.Inf(-1)), float32(math.Inf(1))
	}
	query := numfmt.BF16DecodeSlice(nil, q)
	s := make([]float64, len(keys))
	m := math.Inf(-1)
	for j, k := range keys {
		var dot float64
		for d := range cache.D {
			dot += float64(query[d]) * float64(k[d])
		}
		s[j] = float64(scale) * dot
		m = max(m, s[j])
	}
	var sum float64
	acc := make([]float64, cache.D)
	for j, v := range values {
		p := math.Exp(s[j] - m)
		sum += p
		for d := range cache.D {
			acc[d] += p * float64(v[d])
		}
	}
	for d := range cache.D {
		out[d] = float32(acc[d] / (sum + math.Exp(sink-m)))
	}
	return float32(m), float32(m + math.Log(sum))
}
