package attention

// placedIndicesRef lists workspace rows for the tokens of a piece of a RowPlan: indices [T, width]
// and lens [T], in place. topk is [T, k], or nil where tokens attend all entries; places are those
// of the plan. For token i at position p, with tl = min((p+1) / ratio, k), sl = min(p+1, window):
//
//	indices[i][j]    = places[i].entries + (whole: topk[i][j]; listed: j)   for j < tl
//	indices[i][tl+j] = places[i].window + p-sl+1 + j                        for j < sl
//	lens[i]          = tl + sl; 0 for padding, -1 for a token of another piece
//
// Nothing else is written. A negative topk gives -1.
//
// Source: vLLM combine_topk_swa_indices (vllm/models/deepseek_v4/common/ops/cache_utils.py), with
// the places of a request in data in place of M*b and N.
func placedIndicesRef(piece int, c RowConfig, topk, positions []int32, places [][4]int32, width int, indices, lens []int32) {
	for i, place := range places {
		if int(place[0]) != piece {
			lens[i] = -1
			continue
		}
		tl, sl, end := 0, 0, max(int(positions[i]), -1)+1
		if place[3] != placePadding {
			if c.Ratio > 0 {
				tl = min(end/c.Ratio, c.Width)
			}
			sl = min(end, c.Window)
		}
		row := indices[i*width : (i+1)*width]
		for j := range tl {
			e := int32(j)
			if topk != nil && place[3] == placeWhole {
				e = topk[i*c.Width+j]
			}
			if row[j] = -1; e >= 0 {
				row[j] = place[1] + e
			}
		}
		for j := range sl {
			row[tl+j] = place[2] + int32(end-sl+j)
		}
		lens[i] = int32(tl + sl)
	}
}
