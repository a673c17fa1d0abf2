package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds limit what a JSON value may have.
type Bounds struct {
	Depth  int  // lists and objects inside each other
	Values int  // of all kinds, names of members among them
	Unique bool // no object has two members of one name, in any case of its letters
}

// Check reports the first thing in data that is beyond the bounds. It makes nothing of it but the
// names that Unique compares. Whether data are JSON at all is for the decoder to say.
func (b Bounds) Check(data []byte) error {
	var open []map[string]bool // names of the objects around; nil for a list
	values := 0
	for i := 0; i < len(data); {
		c := data[i]
		switch {
		case c == '{' || c == '[':
			if len(open) == b.Depth {
				return fmt.Errorf("more than %d lists and objects inside each other", b.Depth)
			}
			var names map[string]bool
			if c == '{' && b.Unique {
				names = map[string]bool{}
			}
			open = append(open, names)
		case c == '}' || c == ']':
			open = open[:max(len(open)-1, 0)]
		}
		if c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ',' || c == ':' || c == '}' || c == ']' {
			i++
			continue
		}
		if values++; values > b.Values {
			return fmt.Errorf("more than %d values", b.Values)
		}
		end := valueEnd(data, i)
		if c == '"' && len(open) > 0 && open[len(open)-1] != nil && isName(data, end) {
			name := folded(data[i:end])
			if open[len(open)-1][name] {
				return fmt.Errorf("%.60q is there twice", name)
			}
			open[len(open)-1][name] = true
		}
		i = end
	}
	return nil
}

// valueEnd returns the end of the string, number, word or bracket that begins at i.
func valueEnd(data []byte, i int) int {
	switch data[i] {
	case '{', '[':
		return i + 1
	case '"':
		for i++; i < len(data) && data[i] != '"'; i++ {
			if data[i] == '\\' {
				i++
			}
		}
		return min(i+1, len(data))
	}
	for i++; i < len(data) && strings.IndexByte(" \n\t\r,:{}[]\"", data[i]) < 0; i++ {
	}
	return i
}

// isName reports whether the string that ends at i is the name of a member.
func isName(data []byte, i int) bool {
	for ; i < len(data); i++ {
		if c := data[i]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c == ':'
		}
	}
	return false
}

// folded is a name as encoding/json compares it with those of fields.
func folded(quoted []byte) string {
	var name string
	if json.Unmarshal(quoted, &name) != nil {
		return string(quoted)
	}
	return strings.Map(func(r rune) rune {
		least := r
		for x := unicode.SimpleFold(r); x != r; x = unicode.SimpleFold(x) {
			least = min(least, x)
		}
		return least
	}, name)
}

// errJSON is wrapped by the errors of a Scanner.
var errJSON = errors.New("not JSON as expected")

// Scanner reads JSON of a known form in place, where decoding it into values of Go would take many
// times its size. The zero position is the beginning.
type Scanner struct {
	Data []byte
	at   int
}

func (s *Scanner) next() byte {
	for s.at < len(s.Data) {
		if c := s.Data[s.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.at++
	}
	return 0
}

// Take goes past a character and the spaces in front of it, if it comes next.
func (s *Scanner) Take(c byte) bool {
	if s.next() != c || s.at == len(s.Data) {
		return false
	}
	s.at++
	return true
}

// Is reports whether a character comes next, after spaces.
func (s *Scanner) Is(c byte) bool { return s.next() == c && s.at < len(s.Data) }

// At returns where the next value begins.
func (s *Scanner) At() int { s.next(); return s.at }

// End reports whether only spaces are left.
func (s *Scanner) End() bool { s.next(); return s.at == len(s.Data) }

// fail says what stands at the position, and what is wanted there.
func (s *Scanner) fail(want string) error {
	got := "the end"
	if s.at < len(s.Data) {
		got = fmt.Sprintf("%q", s.Data[s.at:s.at+1])
	}
	return fmt.Errorf("at %d: got %s, want %s: %w", s.at, got, want, errJSON)
}

// String reads a string of at most `most` bytes as they stand there.
func (s *Scanner) String(most int) (string, error) {
	if s.next() != '"' || s.at == len(s.Data) {
		return "", s.fail("a string")
	}
	end := valueEnd(s.Data, s.at)
	raw := s.Data[s.at:end]
	if len(raw) < 2 || raw[len(raw)-1] != '"' {
		s.at = end
		return "", s.fail("the rest of a string")
	}
	if len(raw)-2 > most {
		return "", s.fail(fmt.Sprintf("a string of at most %d bytes", most))
	}
	text, plain := string(raw[1:len(raw)-1]), true
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], string(r)) {
			s.at += 1 + i
			return "", s.fail("UTF-8")
		}
		plain = plain && r >= ' ' && r != '\\'
	}
	var wrong *json.SyntaxError
	if !plain && errors.As(json.Unmarshal(raw, &text), &wrong) {
		s.at += int(wrong.Offset) - 1
		return "", s.fail("a character of a string, or of an escape")
	}
	s.at = end
	return text, nil
}

// Int reads a whole number.
func (s *Scanner) Int() (int64, error) {
	s.next()
	end := s.at
	for end < len(s.Data) && (s.Data[end] == '-' || s.Data[end] >= '0' && s.Data[end] <= '9') {
		end++
	}
	digits := s.Data[s.at:end]
	n, err := strconv.ParseInt(string(digits[:min(len(digits), 32)]), 10, 64)
	if err != nil || len(digits) > 1 && digits[0] == '0' || len(digits) > 32 || bytes.HasPrefix(digits, []byte("-0")) {
		return 0, s.fail("a whole number")
	}
	s.at = end
	return n, nil
}

// Member reads the name of an object's next member, of at most `most` bytes, and the colon, after
// a comma unless it is the first. more is false at the object's end, which it goes past.
func (s *Scanner) Member(first bool, most int) (name string, more bool, err error) {
	if s.Take('}') {
		return "", false, nil
	}
	if !first && !s.Take(',') {
		return "", false, s.fail("a comma")
	}
	if name, err = s.String(most); err == nil && !s.Take(':') {
		err = s.fail("a colon")
	}
	return name, err == nil, err
}

// Skip goes past one value, whatever it is, of at most `depth` lists and objects inside each other.
func (s *Scanner) Skip(depth int) error {
	switch s.next() {
	case '{':
		if depth == 0 {
			return s.fail("fewer objects inside each other")
		}
		s.at++
		for first := true; ; first = false {
			more, err := s.skipName(first)
			if err != nil || !more {
				return err
			}
			if err := s.Skip(depth - 1); err != nil {
				return err
			}
		}
	case '[':
		if depth == 0 {
			return s.fail("fewer lists inside each other")
		}
		s.at++
		for first := true; !s.Take(']'); first = false {
			if !first && !s.Take(',') {
				return s.fail("a comma")
			}
			if err := s.Skip(depth - 1); err != nil {
				return err
			}
		}
		return nil
	}
	return s.skipScalar()
}

// skipName is Member without the name.
func (s *Scanner) skipName(first bool) (more bool, err error) {
	if s.Take('}') {
		return false, nil
	}
	if !first && !s.Take(',') {
		return false, s.fail("a comma")
	}
	if s.next() != '"' {
		return false, s.fail("a name")
	}
	if err = s.skipScalar(); err == nil && !s.Take(':') {
		err = s.fail("a colon")
	}
	return err == nil, err
}

// skipScalar goes past a string, number or word.
func (s *Scanner) skipScalar() error {
	if s.next(); s.at == len(s.Data) {
		return s.fail("a value")
	}
	end := valueEnd(s.Data, s.at)
	if !json.Valid(s.Data[s.at:end]) {
		return s.fail("a value")
	}
	s.at = end
	return nil
}
