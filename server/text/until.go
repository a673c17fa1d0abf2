package text

import "strings"

// Until takes what comes before the first of some markers, and that marker. Without one it leaves
// what one may begin with.
func Until(s *string, markers []string) (before string, marker int) {
	at, end, marker := len(*s), len(*s), -1
	for i, m := range markers {
		if k := strings.Index(*s, m); k >= 0 && k < at {
			at, end, marker = k, k+len(m), i
		}
	}
	if marker < 0 {
		at -= held(*s, markers)
		end = at
	}
	before, *s = (*s)[:at], (*s)[end:]
	return before, marker
}

// held counts the bytes at the end of s that one of some markers may begin with.
func held(s string, markers []string) (most int) {
	for _, m := range markers {
		for n := min(len(m)-1, len(s)); n > most; n-- {
			if strings.HasSuffix(s, m[:n]) {
				most = n
			}
		}
	}
	return most
}
