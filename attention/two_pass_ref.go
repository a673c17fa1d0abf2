package attention

import "github.com/vkmla/vkmla/cache"

// TwoPassRef computes what TwoPass does, in the same steps: cache.GatherSlotsRef
// on both index lists, PackIndicesRef, PrefillRef. The arguments are those of
// DecodeRef, and without zeroMasked so is the result.
//
// Errors: vk.ErrArgument for a layout that cannot be.
//
// Source: vLLM xpu_sparse_decode_fp8.
func TwoPassRef(q []uint16, heads int, window, compressed *Slots, sink []float32, scale float32,
	zeroMasked bool) (out, lse []float32, err error) {
	return twoPassRef(q, heads, window, compressed, sink, scale, zeroMasked, asIs)
}

func twoPassRef(q []uint16, heads int, window, compressed *Slots, sink []float32, scale float32,
	zeroMasked bool, values valuesOf) (out, lse []float32, err error) {
	tokens := len(q) / (heads * cache.D)
	var rows []uint16
	width := 0
	for _, s := range []*Slots{compressed, window} {
		if s == nil {
			continue
		}
		width += s.Width
		part := make([]uint16, tokens*s.Width*cache.D)
		if err := cache.GatherSlotsRef(part, s.Pool, s.Layout, s.Indices); err != nil {
			return nil, nil, err
		}
		rows = append(rows, part...)
	}
	packed, lens := packIndicesRef(tokens, window, compressed, width, zeroMasked)
	out, _, lse = prefillRef(q, heads, rows, packed, width, lens, sink, scale, values)
	return out, lse, nil
}
