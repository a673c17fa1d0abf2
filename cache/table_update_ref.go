package cache

import "fmt"

// TableUpdateRef is the definition of TableUpdate on host memory: tables are the words of
// all block tables, one after the other, and list, [1 + 2*capacity], is a count and then
// pairs of a word's index and its new value; pairs beyond the count, and indices beyond
// the tables, do nothing. Its error is a *vk.ArgumentError; then nothing was written.
func TableUpdateRef(tables []int32, list []uint32) error {
	if len(list)%2 != 1 {
		return pkg.Wrong("table update reference", "list", fmt.Sprintf("%d words", len(list)), "a count and pairs of words")
	}
	for i := range min(int(list[0]), len(list)/2) {
		if word := list[1+2*i]; uint64(word) < uint64(len(tables)) {
			tables[word] = int32(list[2+2*i])
		}
	}
	return nil
}
