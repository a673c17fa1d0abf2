package gguf

import (
	"encoding/binary"
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

// cursor reads from the beginning of data on.
type cursor struct {
	data []byte
	at   int
}

// take returns the next n bytes.
func (c *cursor) take(n uint64) ([]byte, error) {
	if n > uint64(len(c.data)-c.at) {
		return nil, malformed("the header ends at %d, within something of %d bytes at %d", len(c.data), n, c.at)
	}
	b := c.data[c.at:][:n:n]
	c.at += int(n)
	return b, nil
}

func (c *cursor) u32() (uint32, error) {
	b, err := c.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) u64() (uint64, error) {
	b, err := c.take(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (c *cursor) bytes() ([]byte, error) {
	n, err := c.u64()
	if err != nil {
		return nil, err
	}
	return c.take(n)
}

// name reads the name of a key or a tensor.
func (c *cursor) name() (string, error) {
	b, err := c.bytes()
	if err != nil {
		return "", err
	}
	if len(b) == 0 || len(b) > maxName || !printable(b) {
		return "", malformed("the name %.200q is empty, too long or unprintable", b[:min(len(b), maxName)])
	}
	return string(b), nil
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
func (c *cursor) value(k Kind, nesting int) (Value, error) {
	switch {
	case k >= Kind(len(kindBytes)):
		return Value{}, malformed("a value has the type %d, of 0 to %d", k, len(kindBytes)-1)
	case k == String:
		b, err := c.bytes()
		return Value{kind: k, data: b}, err
	case k == Array:
		return c.array(nesting)
	}
	b, err := c.take(uint64(kindBytes[k]))
	if err == nil && k == Bool && b[0] > 1 {
		err = malformed("a bool is %d, want 0 or 1", b[0])
	}
	return Value{kind: k, data: b}, err
}

func (c *cursor) array(nesting int) (Value, error) {
	if nesting == 0 {
		return Value{}, malformed("more than %d arrays inside each other", maxNesting)
	}
	e, err := c.u32()
	if err != nil {
		return Value{}, err
	}
	n, err := c.u64()
	if err != nil {
		return Value{}, err
	}
	elem := Kind(e)
	if elem >= Kind(len(kindBytes)) {
		return Value{}, malformed("an array of the type %d, of 0 to %d", e, len(kindBytes)-1)
	}
	// Every element has at least a byte, a string eight, an array twelve.
	least := kindBytes[elem]
	switch elem {
	case String:
		least = 8
	case Array:
		least = 12
	}
	if n > uint64(len(c.data)-c.at)/uint64(least) {
		return Value{}, malformed("an array of %d %s at %d of %d bytes", n, kindNames[elem], c.at, len(c.data))
	}
	start := c.at
	if kindBytes[elem] > 0 && elem != Bool {
		_, err = c.take(n * uint64(kindBytes[elem]))
	} else {
		for i := uint64(0); i < n && err == nil; i++ {
			_, err = c.value(elem, nesting-1)
		}
	}
	return Value{kind: Array, elem: elem, n: int(n), data: c.data[start:c.at:c.at]}, err
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
	magic, err := c.take(4)
	if err != nil || string(magic) != "GGUF" {
		return nil, malformed("the file does not begin with GGUF")
	}
	v, err := c.u32()
	switch {
	case err != nil:
		return nil, err
	case v == 1 || v == 2:
		return nil, &ForeignError{File: name, What: "GGUF of version " + itoa(int(v))}
	case v == version<<24:
		return nil, &ForeignError{File: name, What: "GGUF of big-endian numbers"}
	case v != version:
		return nil, malformed("version %d, want %d", v, version)
	}
	tensors, err := c.u64()
	if err != nil {
		return nil, err
	}
	keys, err := c.u64()
	switch left := uint64(len(file) - c.at); {
	case err != nil:
		return nil, err
	case keys > maxKeys || keys > left/minKey:
		return nil, malformed("%d keys in %d bytes, at most %d are allowed", keys, len(file), maxKeys)
	case tensors > uint64(most) || tensors > left/minTensor:
		return nil, malformed("%d tensors in %d bytes, at most %d are allowed", tensors, len(file), most)
	}
	h := &header{keys: map[string]Value{}}
	for range keys {
		if err := h.key(c); err != nil {
			return nil, err
		}
	}
	h.tensors = make([]entry, tensors)
	for i := range h.tensors {
		if err := h.tensors[i].parse(c, name); err != nil {
			return nil, err
		}
	}
	return h, h.place(c, name)
}

func (h *header) key(c *cursor) error {
	name, err := c.name()
	if err != nil {
		return err
	}
	kind, err := c.u32()
	if err != nil {
		return err
	}
	v, err := c.value(Kind(kind), maxNesting)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, twice := h.keys[name]; twice {
		return malformed("the key %s is there twice", name)
	}
	h.keys[name] = v
	return nil
}

// parse reads what the header says of a tensor.
func (e *entry) parse(c *cursor, file string) (err error) {
	if e.Name, err = c.name(); err != nil {
		return err
	}
	e.File = file
	dims, err := c.u32()
	if err != nil {
		return err
	}
	if dims < 1 || dims > maxDims {
		return malformed("%s: %d dimensions, want 1 to %d", e.Name, dims, maxDims)
	}
	e.Shape = make([]int, dims)
	for i := range e.Shape {
		d, err := c.u64()
		if err != nil {
			return err
		}
		if d < 1 || d > math.MaxInt32*16 {
			return malformed("%s: a dimension of %d", e.Name, d)
		}
		e.Shape[len(e.Shape)-1-i] = int(d)
	}
	t, err := c.u32()
	if err != nil {
		return err
	}
	if e.at, err = c.u64(); err != nil {
		return err
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
func (h *header) place(c *cursor, file string) error {
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
