package attention

// Table is a block table for the references: Blocks [R, W], where entry c of row
// r is the page that holds slots c*Page .. c*Page+Page-1 of request r.
type Table struct {
	Blocks []int32 // [R, W]; negative: not allocated
	R, W   int
	Page   int // slots of a page
}

// Slot is the global slot of entry at of request r:
//
//	Blocks[r][at / Page] * Page + at % Page
//
// and -1 for a request or entry outside the table and on a page that is not
// allocated.
func (b Table) Slot(r int32, at int) int32 {
	if r < 0 || int(r) >= b.R || at < 0 || at/b.Page >= b.W {
		return -1
	}
	block := b.Blocks[int(r)*b.W+at/b.Page]
	if block < 0 {
		return -1
	}
	return block*int32(b.Page) + int32(at%b.Page)
}

// GlobalTopKRef turns request-local entries topk [T, k] into global slots [T, k]
// and lengths [T]. With l = topk[t][c] and r = tokenToReq[t]:
//
//	slots[t][c] = l >= 0 ? table[r][l / page] * page + l % page : -1
//	lens[t]     = isValid[t] ? the number of c with l >= 0 : 0
//
// Entries keep their column and are written for invalid tokens too. What Table
// cannot address becomes -1 and still counts in lens.
//
// Source: vLLM compute_global_topk_indices_and_lens
// (vllm/models/deepseek_v4/common/ops/cache_utils.py).
func GlobalTopKRef(topk []int32, k int, tokenToReq []int32, table Table, isValid []byte) (slots, lens []int32) {
	slots, lens = make([]int32, len(topk)), make([]int32, len(tokenToReq))
	for t, r := range tokenToReq {
		for c := range k {
			slots[t*k+c] = -1
			if l := topk[t*k+c]; l >= 0 {
				slots[t*k+c] = table.Slot(r, int(l))
				lens[t]++
			}
		}
		if isValid[t] == 0 {
			lens[t] = 0
		}
	}
	return slots, lens
}
