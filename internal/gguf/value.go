package gguf

import (
	"iter"
	"math"
)

// Kind is the type of a value in the header, by its number in the format.
type Kind uint32

// The kinds of values.
const (
	U8 Kind = iota
	I8
	U16
	I16
	U32
	I32
	F32
	Bool
	String
	Array
	U64
	I64
	F64
)

// kindBytes are the bytes of a value, 0 where it says them itself.
var kindBytes = [...]int{U8: 1, I8: 1, U16: 2, I16: 2, U32: 4, I32: 4, F32: 4, Bool: 1, String: 0, Array: 0, U64: 8, I64: 8, F64: 8}

var kindNames = [...]string{"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"}

// Value is a value of the header, or an element of one that is an array. It lies in the mapped
// file: it is read within Guard. What its methods return is copied. The zero Value is none.
type Value struct {
	kind Kind
	elem Kind   // of an array
	n    int    // elements of an array
	data []byte // of a string its bytes, of an array its elements
}

// String names the value's type, such as "array of 43 i32"; "absent" for none.
func (v Value) String() string {
	if v.data == nil {
		return "absent"
	}
	if v.kind == Array {
		return "array of " + itoa(v.n) + " " + kindNames[v.elem]
	}
	return kindNames[v.kind]
}

// Int returns a whole number of any width.
func (v Value) Int() (n int64, ok bool) {
	if v.data == nil {
		return 0, false
	}
	switch v.kind {
	case U8:
		return int64(v.data[0]), true
	case I8:
		return int64(int8(v.data[0])), true
	case U16:
		return int64(le.Uint16(v.data)), true
	case I16:
		return int64(int16(le.Uint16(v.data))), true
	case U32:
		return int64(le.Uint32(v.data)), true
	case I32:
		return int64(int32(le.Uint32(v.data))), true
	case U64:
		u := le.Uint64(v.data)
		return int64(u), u <= math.MaxInt64
	case I64:
		return int64(le.Uint64(v.data)), true
	}
	return 0, false
}

// Float returns a floating-point number of either width.
func (v Value) Float() (x float64, ok bool) {
	switch v.kind {
	case F32:
		return float64(math.Float32frombits(le.Uint32(v.data))), true
	case F64:
		return math.Float64frombits(le.Uint64(v.data)), true
	}
	return 0, false
}

// Bool returns a truth value.
func (v Value) Bool() (b, ok bool) { return v.kind == Bool && v.data[0] != 0, v.kind == Bool }

// Text returns a string.
func (v Value) Text() (s string, ok bool) {
	if v.kind != String {
		return "", false
	}
	return string(v.data), true
}

// IsArray reports whether the value is an array.
func (v Value) IsArray() bool { return v.kind == Array }

// Len returns how many elements an array has, 0 for anything else.
func (v Value) Len() int { return v.n }

// All goes through the elements of an array; there are none in anything else.
func (v Value) All() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		c := cursor{data: v.data}
		for i := range v.n {
			e := c.value(v.elem, maxNesting)
			if c.err != nil || !yield(i, e) { // it was read before: an error means that the file has changed
				return
			}
		}
	}
}
