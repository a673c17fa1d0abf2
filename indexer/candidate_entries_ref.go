package indexer

// CandidateEntriesRef returns the entries of picks [T, k] that were made among candidate blocks
// [T, width] of `block` entries each: pick c of token t, a column of its blocks, is entry
//
//	blocks[t][c/block]*block + c%block
//
// and -1 where c is no column, or its block is negative.
func CandidateEntriesRef(picks []int32, k int, blocks []int32, width, block int) []int32 {
	entries := make([]int32, len(picks))
	for i, c := range picks {
		entries[i] = -1
		if c < 0 || int(c) >= width*block {
			continue
		}
		if b := int64(blocks[i/k*width+int(c)/block]); b >= 0 && b < 1<<31/int64(block) {
			entries[i] = int32(b*int64(block) + int64(c)%int64(block))
		}
	}
	return entries
}
