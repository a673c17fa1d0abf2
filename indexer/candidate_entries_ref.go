package indexer

// CandidateEntriesRef returns the entries of picks [T, k] that were made among candidate blocks
// [T, width]: pick c of token t, a column of its blocks, is entry
//
//	blocks[t][c/8]*8 + c%8
//
// and -1 where c is no column, or its block is negative.
func CandidateEntriesRef(picks []int32, k int, blocks []int32, width int) []int32 {
	entries := make([]int32, len(picks))
	for i, c := range picks {
		entries[i] = -1
		if c < 0 || int(c) >= width*BlockEntries {
			continue
		}
		if b := int64(blocks[i/k*width+int(c)/BlockEntries]); b >= 0 && b < 1<<31/BlockEntries {
			entries[i] = int32(b*BlockEntries + int64(c)%BlockEntries)
		}
	}
	return entries
}
