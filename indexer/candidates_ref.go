package indexer

import (
	"cmp"
	"math"
	"slices"
)

// CandidatesRef returns the candidate blocks [T, k] of rows of logits [T, n], and how many of a
// block's entries count for each row. Row t sees l = min(max(lens[t], 0), n) entries.
// Block b has the entries block*b .. block*b+block-1, and its score is the largest logit of those
// that are seen:
//
//	the newest block, (l-1)/block, comes first
//	then larger score first, of equal scores the smaller block first
//
// The first k of all ceil(l/block) blocks are the candidates: blocks has them, ascending, then
// -1; columns[t] is how many entries of theirs the row sees. -0 and +0 are equal, NaN is equal to
// -Inf, +Inf is equal to the largest finite number.
//
// Source: DeepSeek-V4.1 inference/model.py (candidate blocks of the decoder's full layer);
// choice among equals is unspecified there.
func CandidatesRef(logits []float32, n int, lens []int32, k, block int) (blocks, columns []int32) {
	blocks, columns = slices.Repeat([]int32{-1}, len(lens)*k), make([]int32, len(lens))
	for t, visible := range lens {
		l := min(max(int(visible), 0), n)
		if l == 0 {
			continue
		}
		newest := (l - 1) / block
		all, score := make([]int32, newest+1), make([]float32, newest+1)
		for b := range all {
			all[b], score[b] = int32(b), float32(math.Inf(-1))
			for _, x := range logits[t*n+b*block : t*n+min((b+1)*block, l)] {
				if x > score[b] { // false for NaN
					score[b] = min(x, math.MaxFloat32)
				}
			}
		}
		score[newest] = float32(math.Inf(1))
		slices.SortFunc(all, func(a, b int32) int {
			return cmp.Or(cmp.Compare(score[b], score[a]), cmp.Compare(a, b))
		})
		chosen := all[:min(k, len(all))]
		slices.Sort(chosen)
		copy(blocks[t*k:], chosen)
		for _, b := range chosen {
			columns[t] += int32(min(block, l-int(b)*block))
		}
	}
	return blocks, columns
}
