package files

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	for _, text := range []string{"", "abc"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		data, err := Read(path, 3)
		require.NoError(t, err)
		assert.Equal(t, text, string(data))
	}
	_, err := Read(path, 2)
	assert.ErrorIs(t, err, ErrLarge)
	_, err = Read(path+"b", 2)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Read(filepath.Dir(path), 2)
	assert.ErrorIs(t, err, fs.ErrInvalid)
	_, err = Read("/dev/zero", 2)
	assert.ErrorIs(t, err, fs.ErrInvalid)
}

func TestBounds(t *testing.T) {
	b := Bounds{Depth: 3, Values: 9, Unique: true}
	for _, ok := range []string{``, `{}`, `[[[1,2,3,4,5,6]]]`,
		`{"a":{"b":1},"c":{"b":2}}`, `"[[[[[["`, `{"a":"a","b":"a"}`, `["a","a"]`, ` { "a" : "b\"c" } `} {
		assert.NoError(t, b.Check([]byte(ok)), ok)
	}
	for bad, want := range map[string]string{
		`[[[[`: "more than 3 lists", `[1,2,3,4,5,6,7,8,9]`: "more than 9 values", `{"a":1,"a":2}`: "twice", `{"a":1, "A" : 2}`: "twice",
		`{"a":1,"\u0061":2}`: "twice", `{"k":1,"\u212a":2}`: "twice", `{"s":1,"ſ":2}`: "twice", `[{"a":{},"a":{}}]`: "twice",
	} {
		assert.ErrorContains(t, b.Check([]byte(bad)), want, bad)
	}
	assert.NoError(t, Bounds{Depth: 1, Values: 9}.Check([]byte(`{"a":1,"a":2}`)))
}

// Check accepts what encoding/json does within its bounds, and counts as it does.
func FuzzBounds(f *testing.F) {
	f.Add([]byte(`{"a":[1,2.5e3,"x\\\"y",true,null],"b":{"a":{}}}`))
	f.Add([]byte(`{"a":1,"\u0061":2}`))
	f.Add([]byte("[[[[\"]]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		loose, tight := Bounds{Depth: 8, Values: 64, Unique: true}, Bounds{Depth: 2, Values: 8}
		err, terr := loose.Check(data), tight.Check(data)
		if !json.Valid(data) {
			return
		}
		values, depth, most := 0, 0, 0
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		for {
			token, err := dec.Token()
			if err != nil {
				break
			}
			switch d, ok := token.(json.Delim); {
			case !ok:
				values++
			case d == '{' || d == '[':
				values++
				depth++
				most = max(most, depth)
			default:
				depth--
			}
		}
		assert.Equal(t, values > tight.Values || most > tight.Depth, terr != nil, "%q: %v", data, terr)
		if values > loose.Values || most > loose.Depth {
			assert.Error(t, err, "%q", data)
		} else if err != nil {
			assert.True(t, strings.HasSuffix(err.Error(), "twice"), "%q: %v", data, err)
		}
	})
}

// TestScannerErrors holds what errors say: where, what stands there, and what is wanted.
func TestScannerErrors(t *testing.T) {
	skip := func(s *Scanner) error { return s.Skip(1) }
	text := func(s *Scanner) error { _, err := s.String(9); return err }
	for _, c := range []struct {
		data string
		read func(*Scanner) error
		want string
	}{
		{" 5", text, `at 1: got "5", want a string`},
		{"", text, `at 0: got the end, want a string`},
		{`"abc`, text, `at 4: got the end, want the rest of a string`},
		{`"0123456789"`, text, `at 0: got "\"", want a string of at most 9 bytes`},
		{" \"\ufffd\xff\"", text, `at 5: got "\xff", want UTF-8`},
		{"\"a\xe2\x82\"", text, `at 2: got "\xe2", want UTF-8`},
		{"\"a\n\"", text, `at 2: got "\n", want a character of a string, or of an escape`},
		{` "a\qb"`, text, `at 4: got "q", want a character of a string, or of an escape`},
		{`"\u12g4"`, text, `at 5: got "g", want a character of a string, or of an escape`},
		{"[[", skip, `at 1: got "[", want fewer lists inside each other`},
		{"[{", skip, `at 1: got "{", want fewer objects inside each other`},
		{"[1 2", skip, `at 3: got "2", want a comma`},
	} {
		err := c.read(&Scanner{Data: []byte(c.data)})
		assert.EqualError(t, err, c.want+": not JSON as expected", "%q", c.data)
	}
}

// Skip accepts exactly what encoding/json does, of a depth that it may have; what String and Int
// read returns what that reads.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,"x\\\"y",true,null],"b":{"a":{}}}`, `"\ud83d\ude00"`, `-12`,
		`[1,]`, `{"a" 1}`, ` [ ] `, "\"\xff\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		depth, most := 0, 0 // of brackets outside of strings, if data are JSON
		for i, quoted := 0, false; i < len(data); i++ {
			switch c := data[i]; {
			case quoted && c == '\\':
				i++
			case c == '"':
				quoted = !quoted
			case !quoted && (c == '{' || c == '['):
				depth++
				most = max(most, depth)
			case !quoted && (c == '}' || c == ']'):
				depth--
			}
		}
		s := Scanner{Data: data}
		err := s.Skip(8)
		assert.Equal(t, json.Valid(data) && most <= 8, err == nil && s.End(), "%q: %v", data, err)

		s = Scanner{Data: data}
		if text, err := s.String(1000); err == nil && s.End() {
			var want string
			require.NoError(t, json.Unmarshal(data, &want), "%q", data)
			assert.Equal(t, want, text)
		}
		s = Scanner{Data: data}
		if n, err := s.Int(); err == nil && s.End() {
			var want int64
			require.NoError(t, json.Unmarshal(data, &want), "%q", data)
			assert.Equal(t, want, n)
		}
	})
}
