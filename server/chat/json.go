package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"

	"github.com/vkmla/vkmla/internal/files"
)

// bounds are those of messages, and of tools: values take a hundred times their size in memory.
var bounds = files.Bounds{Depth: 64, Values: 1 << 17, Unique: true}

// parse makes values of JSON. Objects keep the order of their members, as in Python, and numbers
// tell 1 from 1.0.
func parse(data []byte) (v jinja.Value, err error) {
	if err := bounds.Check(data); err != nil {
		return v, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return next(d)
}

func next(d *json.Decoder) (jinja.Value, error) {
	t, err := d.Token()
	switch t {
	case json.Delim('['):
		list := []jinja.Value{}
		for d.More() {
			v, err := next(d)
			if err != nil {
				return v, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return jinja.NewList(list), err
	case json.Delim('{'):
		object := jinja.NewDict()
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return object, err
			}
			v, err := next(d)
			if err != nil {
				return v, err
			}
			object.AsDict().Set(name.(string), v)
		}
		_, err = d.Token()
		return object, err
	}
	return jinja.FromGoValue(t), err
}

// toJSON is the filter tojson as transformers has it: Python's json.dumps, all characters as
// themselves. Of its arguments indent is honoured.
func toJSON(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Undefined(), fmt.Errorf("tojson: got nothing")
	}
	w := writer{item: ", ", colon: ": "}
	if n, ok := named["indent"]; ok && n.IsInt() {
		w.item, w.indent, w.pretty = ",", int(min(max(n.AsInt(), 0), 16)), true
	}
	err := w.value(args[0], 0)
	return jinja.NewString(w.String()), err
}

// writer writes JSON.
type writer struct {
	strings.Builder
	item, colon string
	indent      int
	pretty      bool
}

func (w *writer) value(v jinja.Value, depth int) error {
	switch {
	case v.IsNone():
		w.WriteString("null")
	case v.IsBool():
		w.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		w.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		w.WriteString(float(v.AsFloat()))
	case v.IsString():
		w.WriteString(quoted(v.AsString()))
	case v.IsList():
		l := v.AsList().Items
		return w.all('[', ']', len(l), depth, func(i int) error { return w.value(l[i], depth+1) })
	case v.IsDict():
		d := v.AsDict()
		return w.all('{', '}', len(d.Keys), depth, func(i int) error {
			w.WriteString(quoted(d.Keys[i]) + w.colon)
			return w.value(d.Data[d.Keys[i]], depth+1)
		})
	default:
		return fmt.Errorf("tojson: got %s, want a value that JSON has", v)
	}
	return nil
}

// all writes what a list or an object has.
func (w *writer) all(open, closed byte, n, depth int, one func(i int) error) error {
	line := func(depth int) {
		if w.pretty && n > 0 {
			w.WriteString("\n" + strings.Repeat(" ", w.indent*depth))
		}
	}
	w.WriteByte(open)
	for i := range n {
		if i > 0 {
			w.WriteString(w.item)
		}
		line(depth + 1)
		if err := one(i); err != nil {
			return err
		}
	}
	line(depth)
	w.WriteByte(closed)
	return nil
}

// float writes a number as Python does: its shortest digits, by exponent from 1e16 on and below
// 1e-4, and never like a whole number.
func float(f float64) string {
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quoted writes a string. Python escapes fewer characters than Go.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch short := strings.IndexRune("\"\\\b\f\n\r\t", r); {
		case short >= 0:
			b.WriteString(`\` + `"\bfnrt`[short:short+1])
		case r < ' ':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
