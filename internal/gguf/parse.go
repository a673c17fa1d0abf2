package gguf

import (
	"fmt"
	"math"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Bounds of a header. Real ones have 70 keys and 2,000 tensors with names of 40 bytes.
const (
	version      = 3
	maxKeys      = 1 << 14
	maxTensors   = 1 << 15 // of a model, in all parts
	maxName      = 256     // bytes of a key or of a tensor's name
	maxDims      = 4
	maxNesting   = 4 // of arrays
	maxAlignment = 1 << 16
	minKey       = 8 + 1 + 4 + 1      // bytes of a key
	minTensor    = 8 + 1 + 4 + 8 + 12 // bytes of what the header says of a tensor
)

func itoa(n int) string { return strconv.Itoa(n) }

// cursor reads from the beginning of data on. It remembers the first error: from then on all that
// it reads is zero.
type cursor struct {
	data []byte
	at   int
	err  error
}

// bad notes what is wrong.
func (c *cursor) bad(format string, args ...any) {
	if c.err == nil {
		c.err = malformed(format, args...)
	}
}

// left returns the number of bytes that were not read.
func (c *cursor) left() uint64 { return uint64(len(c.data) - c.at) }

// take returns the next n bytes, nil after an error.
func (c *cursor) take(n uint64) []byte {
	if n > c.left() {
		c.bad("the header ends at %d, within something of %d bytes at %d", len(c.data), n, c.at)
	}
	if c.err != nil {
		return nil
	}
	b := c.data[c.at:][:n:n]
	c.at += int(n)
	return b
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

func (c *cursor) bytes() []byte { return c.take(c.u64()) }

// name reads the name of a key or a tensor.
func (c *cursor) name() string {
	b := c.bytes()
	if len(b) == 0 || len(b) > maxName || !printable(b) {
		c.bad("the name %.200q is empty, too long or unprintable", b[:min(len(b), maxName)])
	}
	if c.err != nil {
		return ""
	}
	return string(b)
}

func printable(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// value goes past a value that is nested in a number of arrays.
func (c *cursor) value(k Kind, nesting int) Value {
	switch {
	case k >= Kind(len(kindBytes)):
		c.bad("a value has the type %d, of 0 to %d", k, len(kindBytes)-1)
		return Value{}
	case k == String:
		return Value{kind: k, data: c.bytes()}
	case k == Array:
		return c.array(nesting)
	}
	b := c.take(uint64(kindBytes[k]))
	if k == Bool && b != nil && b[0] > 1 {
		c.bad("a bool is %d, want 0 or 1", b[0])
	}
	return Value{kind: k, data: b}
}

func (c *cursor) array(nesting int) Value {
	if nesting == 0 {
		c.bad("more than %d arrays inside each other", maxNesting)
		return Value{}
	}
	elem, n := Kind(c.u32()), c.u64()
	if elem >= Kind(len(kindBytes)) {
		c.bad("an array of the type %d, of 0 to %d", elem, len(kindBytes)-1)
		return Value{}
	}
	// Every element has at least a byte, a string eight, an array twelve.
	least := kindBytes[elem]
	switch elem {
	case String:
		least = 8
	case Array:
		least = 12
	}
	if n > c.left()/uint64(least) {
		c.bad("an array of %d %s at %d of %d bytes", n, kindNames[elem], c.at, len(c.data))
		return Value{}
	}
	start := c.at
	if kindBytes[elem] > 0 && elem != Bool {
		c.take(n * uint64(kindBytes[elem]))
	} else {
		for i := uint64(0); i < n && c.err == nil; i++ {
			c.value(elem, nesting-1)
		}
	}
	return Value{kind: Array, elem: elem, n: int(n), data: c.data[start:c.at:c.at]}
}

// header holds what the beginning of a file says.
type header struct {
	keys    map[string]Value
	tensors []entry
	data    int // where the tensors' bytes begin
}

// entry is a tensor as the header describes it.
type entry struct {
	Tensor
	at, size uint64 // in the part of the file that has the tensors' bytes
}

// parse reads the header of a file. most is how many tensors there may be.
func parse(file []byte, name string, most int) (*header, error) {
	c := &cursor{data: file}
	if string(c.take(4)) != "GGUF" {
		return nil, malformed("the file does not begin with GGUF")
	}
	switch v := c.u32(); {
	case v == 1 || v == 2:
		return nil, &ForeignError{File: name, What: "GGUF of version " + itoa(int(v))}
	case v == version<<24:
		return nil, &ForeignError{File: name, What: "GGUF of big-endian numbers"}
	case v != version:
		c.bad("version %d, want %d", v, version)
	}
	tensors, keys := c.u64(), c.u64()
	switch left := c.left(); {
	case keys > maxKeys || keys > left/minKey:
		c.bad("%d keys in %d bytes, at most %d are allowed", keys, len(file), maxKeys)
	case tensors > uint64(most) || tensors > left/minTensor:
		c.bad("%d tensors in %d bytes, at most %d are allowed", tensors, len(file), most)
	}
	h := &header{keys: map[string]Value{}}
	for i := uint64(0); i < keys && c.err == nil; i++ {
		h.key(c)
	}
	if c.err != nil {
		return nil, c.err
	}
	h.tensors = make([]entry, tensors)
	for i := range h.tensors {
		if err := h.tensors[i].parse(c, name); err != nil {
			return nil, err
		}
	}
	return h, h.place(c)
}

func (h *header) key(c *cursor) {
	name := c.name()
	v := c.value(Kind(c.u32()), maxNesting)
	if c.err != nil && name != "" {
		c.err = fmt.Errorf("%s: %w", name, c.err)
	}
	if _, twice := h.keys[name]; twice {
		c.bad("the key %s is there twice", name)
	}
	h.keys[name] = v
}

// parse reads what the header says of a tensor.
func (e *entry) parse(c *cursor, file string) (err error) {
	e.Name, e.File = c.name(), file
	dims := c.u32()
	if dims < 1 || dims > maxDims {
		c.bad("%s: %d dimensions, want 1 to %d", e.Name, dims, maxDims)
	}
	if c.err != nil {
		return c.err
	}
	e.Shape = make([]int, dims)
	for i := range e.Shape {
		d := c.u64()
		if d < 1 || d > math.MaxInt32*16 {
			c.bad("%s: a dimension of %d", e.Name, d)
		}
		e.Shape[len(e.Shape)-1-i] = int(d)
	}
	t := c.u32()
	e.at = c.u64()
	if c.err != nil {
		return c.err
	}
	if e.Format = FormatOf(Type(t)); e.Format == nil {
		return &ForeignError{File: file, Name: e.Name, What: "a tensor of type " + itoa(int(t))}
	}
	e.size, err = e.bytes()
	return err
}

// bytes is the size of a tensor.
func (e *entry) bytes() (uint64, error) {
	if e.Row()%e.Format.Values != 0 {
		return 0, malformed("%s: %v: a row is no whole number of blocks of %d", e.Name, e.Tensor, e.Format.Values)
	}
	n := uint64(e.Row()/e.Format.Values) * uint64(e.Format.Bytes)
	for _, d := range e.Shape[:len(e.Shape)-1] {
		if n > 1<<62/uint64(d) {
			return 0, malformed("%s: %v has no size in bytes", e.Name, e.Tensor)
		}
		n *= uint64(d)
	}
	return n, nil
}

// alignment returns the number that divides all places of tensors.
func (h *header) alignment() (int, error) {
	v, there := h.keys["general.alignment"]
	if !there {
		return 32, nil
	}
	n, ok := v.Int()
	if !ok || n < 1 || n > maxAlignment || n&(n-1) != 0 {
		return 0, malformed("general.alignment: %v %d, want a power of two up to %d", v, n, maxAlignment)
	}
	return int(n), nil
}

// place gives the tensors their bytes. A file without tensors may end without padding.
func (h *header) place(c *cursor) error {
	align, err := h.alignment()
	if err != nil {
		return err
	}
	h.data = (c.at + align - 1) / align * align
	if len(h.tensors) == 0 {
		return nil
	}
	if h.data > len(c.data) {
		return malformed("the file ends at %d, before its tensors", len(c.data))
	}
	data := c.data[h.data:]
	seen := make(map[string]bool, len(h.tensors))
	for i := range h.tensors {
		e := &h.tensors[i]
		switch {
		case seen[e.Name]:
			return malformed("the tensor %s is there twice", e.Name)
		case e.at%uint64(align) != 0:
			return malformed("%s: begins at %d, want a multiple of %d", e.Name, e.at, align)
		case e.at > uint64(len(data)) || e.size > uint64(len(data))-e.at:
			return malformed("%s: %v needs %d bytes at %d of %d", e.Name, e.Tensor, e.size, e.at, len(data))
		}
		seen[e.Name] = true
		e.Data = data[e.at:][:e.size:e.size]
	}
	return h.apart()
}
