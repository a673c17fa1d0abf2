package attention

import "slices"

// packIndicesRef lists the workspace rows that each token of a two-pass decode
// attends: packed [T, width] and lens [T]. The workspace holds the compressed
// entries of all tokens, [T, compressed.Width] rows, then the window entries,
// [T, window.Width] rows. With cl and wl the lengths of the two lists of token t,
// within their widths:
//
//	packed[t][j]      = t*compressed.Width + j                             j < cl
//	packed[t][cl + j] = T*compressed.Width + t*window.Width + j            j < wl
//	rest              = -1;  lens[t] = cl + wl
//
// An entry whose slot is negative or beyond its pool gives -1, unless keepMasked:
// then it counts as the row of zeros that the gathering wrote for it.
//
// Source: vLLM xpu_sparse_decode_fp8.
func packIndicesRef(tokens int, window, compressed *Slots, width int, keepMasked bool) (packed, lens []int32) {
	packed, lens = slices.Repeat([]int32{-1}, tokens*width), make([]int32, tokens)
	base := 0
	for _, s := range []*Slots{compressed, window} {
		if s == nil {
			continue
		}
		for t := range tokens {
			for j := range min(max(int(s.Lens[t]), 0), s.Width) {
				slot := s.Indices[t*s.Width+j]
				if keepMasked || (slot >= 0 && int(slot) < s.count()) {
					packed[t*width+int(lens[t])] = int32(base + t*s.Width + j)
				}
				lens[t]++
			}
		}
		base += tokens * s.Width
	}
	return packed, lens
}
