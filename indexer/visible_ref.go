package indexer

// VisibleRef writes to lens [T] how many entries the tokens at positions [T] may see:
//
//	lens[t] = min((p + 1) / 4, limit)    for p = positions[t] >= 0 and isValid[t] != 0, else 0
//
// A nil isValid makes every token valid, a limit of 0 is none.
func VisibleRef(positions []int32, isValid []byte, limit int, lens []int32) {
	for t, p := range positions {
		lens[t] = 0
		if p < 0 || isValid != nil && isValid[t] == 0 {
			continue
		}
		n := (int(p) + 1) / Ratio
		if limit > 0 {
			n = min(n, limit)
		}
		lens[t] = int32(n)
	}
}
