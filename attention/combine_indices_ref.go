package attention

import "slices"

// CombineIndicesRef lists workspace rows for the tokens of a prefill chunk:
// indices [T, CombinedWidth(k, window)] and lens [T]. topk is [T, topkWidth]. For
// token i of request b, at position p, with
//
//	gatherStart = seqLens[b] - gatherLens[b],  tl = min((p+1) / ratio, k),  sl = min(p+1, window)
//
// row i holds topk[i][j] + m*b for j < tl, then m*b + n + (p-sl+1-gatherStart) + j
// for j < sl, then -1, and lens[i] = tl + sl. tl comes from the position: an entry
// -1 inside it is not masked.
//
// Source: vLLM combine_topk_swa_indices
// (vllm/models/deepseek_v4/common/ops/cache_utils.py).
func CombineIndicesRef(tokens int, topk []int32, topkWidth int, queryStart, seqLens, gatherLens []int32,
	k, window, ratio, m, n int) (indices, lens []int32) {
	width := CombinedWidth(k, window)
	indices, lens = slices.Repeat([]int32{-1}, tokens*width), make([]int32, tokens)
	for b := range seqLens {
		start, end := int(queryStart[b]-queryStart[0]), int(queryStart[b+1]-queryStart[0])
		gatherStart := int(seqLens[b] - gatherLens[b])
		for i := start; i < min(end, tokens); i++ {
			p := int(seqLens[b]) - (end - start) + (i - start)
			tl, sl := min((p+1)/ratio, k), min(p+1, window)
			row := indices[i*width : (i+1)*width]
			for j := range tl {
				row[j] = topk[i*topkWidth+j] + int32(m*b)
			}
			for j := range sl {
				row[tl+j] = int32(m*b + n + p - sl + 1 - gatherStart + j)
			}
			lens[i] = int32(tl + sl)
		}
	}
	return indices, lens
}
