package attention

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// Slots is a SlotSet in host memory, for the references.
type Slots struct {
	Pool    []byte // whole pages
	Layout  cache.Layout
	Indices []int32 // [T, Width]
	Width   int
	Lens    []int32 // [T]
}

// count is the number of slots in the pool.
func (s *Slots) count() int { return len(s.Pool) / s.Layout.Stride * s.Layout.Page }

// rows dequantises the valid entries of token t, in the order of the list.
func (s *Slots) rows(t int) ([][]float32, error) {
	if s == nil {
		return nil, nil
	}
	var valid []int32
	for _, i := range s.Indices[t*s.Width : t*s.Width+min(max(int(s.Lens[t]), 0), s.Width)] {
		if i >= 0 && int(i) < s.count() {
			valid = append(valid, i)
		}
	}
	bits := make([]uint16, len(valid)*cache.D)
	if err := cache.GatherSlotsRef(bits, s.Pool, s.Layout, valid); err != nil {
		return nil, err
	}
	rows := make([][]float32, len(valid))
	for i := range rows {
		rows[i] = numfmt.BF16DecodeSlice(nil, bits[i*cache.D:(i+1)*cache.D])
	}
	return rows, nil
}

// DecodeRef computes sparse MLA over two paged caches: q [T, H, 512] bf16, the
// entries j < Lens[t] of each set's index list that lie in the pool, compressed
// first, nil for none; sink [H] or nil for none. With the rows k_j dequantised as
// cache.GatherSlotsRef does, for token t and head h:
//
//	s_j = scale * dot(q[t][h], k_j),  lse = ln sum_j exp(s_j)
//	out = sum_j exp(s_j) k_j / (sum_j exp(s_j) + exp(sink_h))
//
// A row without valid entries has out = 0 and lse = +inf. Computed in float64 and
// not rounded to bf16.
//
// Errors: vk.ErrArgument for a layout that cannot be.
//
// Source: FlashMLA tests/ref.py.
func DecodeRef(q []uint16, heads int, window, compressed *Slots, sink []float32, scale float32) (out, lse []float32, err error) {
	return decodeRef(q, heads, window, compressed, sink, scale, asIs)
}

func decodeRef(q []uint16, heads int, window, compressed *Slots, sink []float32, scale float32,
	values valuesOf) (out, lse []float32, err error) {
	tokens := len(q) / (heads * cache.D)
	out, lse = make([]float32, len(q)), make([]float32, tokens*heads)
	for t := range tokens {
		rows, err := compressed.rows(t)
		if err != nil {
			return nil, nil, err
		}
		more, err := window.rows(t)
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, more...)
		for h := range heads {
			at := t*heads + h
			_, lse[at] = attendRef(out[at*cache.D:(at+1)*cache.D], q[at*cache.D:(at+1)*cache.D], rows, values(rows), sinkOf(sink, h), scale)
		}
	}
	return out, lse, nil
}
