package attention

// C128IndicesRef lists the visible compressed entries of tokens at the given
// positions: indices [T, width] and lens [T]. With n = clamp((p+1) / ratio, 0,
// width) and r = tokenToReq[i]:
//
//	indices[i][j] = table[r][j / page] * page + j % page for j < n, else -1
//	lens[i]       = slotMapping[i] >= 0 ? n : 0
//
// A nil table gives the local form, indices[i][j] = j for j < n. A nil slotMapping
// takes every token as valid.
//
// Source: vLLM vllm/v1/attention/backends/mla/flashmla_sparse.py.
func C128IndicesRef(positions []int32, ratio, width int, slotMapping []int64, tokenToReq []int32, table *Table) (indices, lens []int32) {
	indices, lens = make([]int32, len(positions)*width), make([]int32, len(positions))
	for i, p := range positions {
		n := min(max(int(p)+1, 0)/ratio, width)
		for j := range width {
			v := int32(-1)
			switch {
			case j >= n:
			case table == nil:
				v = int32(j)
			default:
				v = table.Slot(tokenToReq[i], j)
			}
			indices[i*width+j] = v
		}
		if slotMapping == nil || slotMapping[i] >= 0 {
			lens[i] = int32(n)
		}
	}
	return indices, lens
}
