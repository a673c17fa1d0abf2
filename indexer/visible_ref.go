package indexer

import "math"

// VisibleRef writes to lens [T] how many entries of ratio tokens the tokens at positions [T] may
// see:
//
//	lens[t] = min((p + 1) / ratio, limit)    for p = positions[t] >= 0 and isValid[t] != 0, else 0
//
// With a nil isValid every token is valid. A limit of 0 means none but that of an int32.
func VisibleRef(positions []int32, isValid []byte, ratio, limit int, lens []int32) {
	if limit == 0 {
		limit = math.MaxInt32
	}
	for t, p := range positions {
		lens[t] = 0
		if p < 0 || isValid != nil && isValid[t] == 0 {
			continue
		}
		lens[t] = int32(min((int(p)+1)/ratio, limit))
	}
}
