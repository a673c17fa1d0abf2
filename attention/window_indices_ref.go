package attention

// WindowIndicesRef lists the slots of the sliding window, oldest first, for the
// decode tokens i < tokens, in place: slots [tokens, window] and lens [>= tokens].
// With r = tokenToReq[i]:
//
//	p = seqLens[r] - (queryStart[r+1] - queryStart[r]) + (i - queryStart[r])
//	a = max(p - window + 1, 0),  len = p - a + 1
//	slots[i][j] = table[r][(a+j) / page] * page + (a+j) % page for j < len, else -1
//
// An invalid token, or one of a request outside the table, gets length 0 and its
// row stays as it was. Lengths beyond the tokens become 0.
//
// Source: vLLM vllm/v1/attention/backends/mla/sparse_swa.py.
func WindowIndicesRef(tokens, window int, queryStart, seqLens, tokenToReq []int32, isValid []byte, table Table, slots, lens []int32) {
	for i := range lens {
		lens[i] = 0
		if i >= tokens || isValid[i] == 0 || tokenToReq[i] < 0 || int(tokenToReq[i]) >= table.R {
			continue
		}
		r := tokenToReq[i]
		p := int(seqLens[r]) - int(queryStart[r+1]-queryStart[r]) + i - int(queryStart[r])
		a := max(p-window+1, 0)
		n := max(p-a+1, 0)
		for j := range window {
			slots[i*window+j] = -1
			if j < n {
				slots[i*window+j] = table.Slot(r, a+j)
			}
		}
		lens[i] = int32(n)
	}
}

// DraftIndicesRef lists what the tokens of draft blocks attend, oldest first, as WindowIndicesRef
// lists windows: slots [tokens, window + drafts]. The n = queryStart[r+1] - queryStart[r] tokens of
// request r are its block, at most drafts of them, and its newest rows. With P the last position
// before the block, each of them attends the same positions:
//
//	P = seqLens[r] - n - 1,  positions max(P - window + 1, 0) .. P, then P+1 .. P+n
//
// There is no causality in a block, and the window does not slide within it. Of a block of more
// than drafts tokens the newest rows are left out.
//
// Source: DeepSeek-V4.1 inference/model.py (DSpark blocks); vLLM sparse_swa.py.
func DraftIndicesRef(tokens, window, drafts int, queryStart, seqLens, tokenToReq []int32, isValid []byte, table Table,
	slots, lens []int32) {
	width := window + drafts
	for i := range lens {
		lens[i] = 0
		if i >= tokens || isValid[i] == 0 || tokenToReq[i] < 0 || int(tokenToReq[i]) >= table.R {
			continue
		}
		r := tokenToReq[i]
		newest := int(seqLens[r]) - int(queryStart[r+1]-queryStart[r]) - 1 // P
		var positions []int
		for p := max(newest-window+1, 0); p < int(seqLens[r]) && len(positions) < width; p++ {
			positions = append(positions, p)
		}
		for j := range width {
			slots[i*width+j] = -1
			if j < len(positions) {
				slots[i*width+j] = table.Slot(r, positions[j])
			}
		}
		lens[i] = int32(len(positions))
	}
}
