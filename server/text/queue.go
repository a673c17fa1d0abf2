package text

import (
	"cmp"
	"container/heap"
	"strings"
	"unicode/utf8"
)

// candidate is two neighbours that may be merged, as they were when they were seen.
type candidate struct {
	merge
	left int // where the first begins
	a, b int32
}

// queue gives candidates by rank, then from the left.
type queue []candidate

func (q *queue) push(c candidate) { heap.Push((*sorted)(q), c) }
func (q *queue) pop() candidate   { return heap.Pop((*sorted)(q)).(candidate) }

type sorted []candidate

func (s sorted) Len() int { return len(s) }
func (s sorted) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(s[i].rank, s[j].rank), cmp.Compare(s[i].left, s[j].left)) < 0
}
func (s sorted) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *sorted) Push(x any)   { *s = append(*s, x.(candidate)) }
func (s *sorted) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// unfinished counts the bytes at the end of s that begin a character that more bytes may complete.
func unfinished(s string) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if tail := s[len(s)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRuneInString(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// Valid puts U+FFFD for bytes that belong to no character: one for as many of them as begin one,
// as the Unicode standard recommends.
func Valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		for r == utf8.RuneError && n < len(s) && !utf8.FullRuneInString(s[:n+1]) {
			n++
		}
		b.WriteRune(r)
		s = s[n:]
	}
	return b.String()
}
