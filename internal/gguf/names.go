package gguf

import (
	"cmp"
	"strconv"
	"strings"
)

// Names has a row for each tensor: its name in one kind of file and in another. A name may be a
// beginning that ends with a dot; of several that fit, the first row counts.
type Names [][2]string

// Other returns the other spelling of a name that is spelled as column `from`, 0 or 1, has it. ok
// is false for a name of no row.
func (n Names) Other(name string, from int) (other string, ok bool) {
	for _, row := range n {
		if end, found := strings.CutPrefix(name, row[from]); found && (end == "" || strings.HasSuffix(row[from], ".")) {
			return row[1-from] + end, true
		}
	}
	return name, false
}

// Number is a key and the number that its value has to be if the key is there. Of an array each
// element has to be it. A bool counts as 1 or 0.
type Number struct {
	Key  string
	Want float64
}

// Differs returns the first key of a list that is there and says anything else, and that; "" for
// none. Numbers count as f32.
func (m *Model) Differs(list []Number) (key string, want float64, got string) {
	for _, n := range list {
		v, there := m.Keys[n.Key]
		if !there {
			continue
		}
		if got := v.differs(n.Want); got != "" {
			return n.Key, n.Want, got
		}
	}
	return "", 0, ""
}

// differs returns the value if it is not a number, "" if it is.
func (v Value) differs(want float64) string {
	if v.IsArray() {
		for _, e := range v.All() {
			if got := e.differs(want); e.IsArray() || got != "" {
				return v.String() + " with " + cmp.Or(got, e.String())
			}
		}
		return ""
	}
	x, ok := v.Float()
	if n, whole := v.Int(); whole {
		x, ok = float64(n), true
	}
	if b, is := v.Bool(); is {
		x, ok = 0, true
		if b {
			x = 1
		}
	}
	switch {
	case !ok:
		return v.String()
	case float32(x) != float32(want):
		return strconv.FormatFloat(x, 'g', -1, 32)
	}
	return ""
}
