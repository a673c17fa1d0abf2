// Package vectors holds test cases for the operations of vkmla and reads them
// from folders of recorded arrays.
//
// A folder has a manifest.json that lists operations, their cases, and for
// every case its parameters and arrays, and one .npz file per operation with
// the arrays' bytes. Open reads the manifest, Set.Case one case.
//
// A folder may come from anybody: everything in it is checked before it is
// believed, nothing is allocated on the word of a header alone, and whatever is
// wrong is reported as an error that wraps ErrFormat.
package vectors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// ErrFormat is wrapped by every error about a folder, or a case in it, that is
// incomplete or contradicts itself.
var ErrFormat = errors.New("malformed vectors")

// Type is the element type of an Array as it is stored. bf16 has no type of
// its own: its bit patterns are stored as U16.
type Type uint8

// Element types, and the names NumPy gives them.
const (
	U8  Type = iota + 1 // uint8: bytes, booleans, E4M3 codes
	I8                  // int8
	U16                 // uint16: usually bf16 bit patterns
	I16                 // int16
	U32                 // uint32
	I32                 // int32
	U64                 // uint64
	I64                 // int64
	F16                 // float16
	F32                 // float32
	F64                 // float64
)

var types = map[Type]struct {
	name  string
	descr string // the spelling in an .npy header, without the byte order
	size  int
}{
	U8: {"uint8", "u1", 1}, I8: {"int8", "i1", 1}, U16: {"uint16", "u2", 2}, I16: {"int16", "i2", 2},
	U32: {"uint32", "u4", 4}, I32: {"int32", "i4", 4}, U64: {"uint64", "u8", 8}, I64: {"int64", "i8", 8},
	F16: {"float16", "f2", 2}, F32: {"float32", "f4", 4}, F64: {"float64", "f8", 8},
}

// Size returns the number of bytes of one element, 0 for a type that does not exist.
func (t Type) Size() int { return types[t].size }

// String returns the name NumPy uses, such as "int32".
func (t Type) String() string {
	if d, ok := types[t]; ok {
		return d.name
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// Array is a row-major array of little-endian elements.
type Array struct {
	Type  Type
	Shape []int
	Data  []byte // Len() * Type.Size() bytes
}

// Arrays are the arrays of a case by name.
type Arrays map[string]Array

// New returns an array of zeros. It panics on a negative dimension, like make.
func New(t Type, shape ...int) Array {
	a := Array{Type: t, Shape: append([]int(nil), shape...)}
	a.Data = make([]byte, a.Len()*t.Size())
	return a
}

// Filled returns an array whose every byte is b.
func Filled(b byte, t Type, shape ...int) Array {
	a := Array{Type: t, Shape: append([]int(nil), shape...)}
	a.Data = bytes.Repeat([]byte{b}, a.Len()*t.Size())
	return a
}

// Clone returns a copy that shares no memory.
func (a Array) Clone() Array {
	return Array{a.Type, append([]int(nil), a.Shape...), append([]byte(nil), a.Data...)}
}

// Len returns the number of elements: the product of Shape, 1 for a scalar.
func (a Array) Len() int {
	n := 1
	for _, d := range a.Shape {
		n *= d
	}
	return n
}

// Dim returns the size of dimension i, 0 if there is no such dimension.
func (a Array) Dim(i int) int {
	if i < 0 || i >= len(a.Shape) {
		return 0
	}
	return a.Shape[i]
}

// First returns the first n rows of an array that has more, else the array.
func (a Array) First(n int) Array {
	if n < 0 || a.Dim(0) <= n {
		return a
	}
	size := len(a.Data) / a.Dim(0)
	return Array{a.Type, append([]int{n}, a.Shape[1:]...), a.Data[:n*size]}
}

// Part returns the elements from one number to before another, as an array of one dimension.
func (a Array) Part(from, to int) Array {
	size := a.Type.Size()
	return Array{a.Type, []int{to - from}, a.Data[from*size : to*size]}
}

// IsZero reports whether a is the zero Array, which stands for an array that a
// case does not have.
func (a Array) IsZero() bool { return a.Type == 0 }

// String gives type and shape, such as "int32 [3, 128]".
func (a Array) String() string { return a.Type.String() + " " + shapeString(a.Shape) }

func shapeString(shape []int) string {
	s := "["
	for i, d := range shape {
		if i > 0 {
			s += ", "
		}
		if d < 0 {
			s += "any"
		} else {
			s += fmt.Sprint(d)
		}
	}
	return s + "]"
}

// FromU8 makes an array of bytes. The bytes are not copied.
func FromU8(v []byte, shape ...int) Array { return Array{U8, shape, v} }

// FromU16 makes a U16 array.
func FromU16(v []uint16, shape ...int) Array { return encode(U16, v, shape) }

// FromI32 makes an I32 array.
func FromI32(v []int32, shape ...int) Array { return encode(I32, v, shape) }

// FromU32 makes a U32 array.
func FromU32(v []uint32, shape ...int) Array { return encode(U32, v, shape) }

// FromI64 makes an I64 array.
func FromI64(v []int64, shape ...int) Array { return encode(I64, v, shape) }

// FromF32 makes an F32 array.
func FromF32(v []float32, shape ...int) Array { return encode(F32, v, shape) }

// FromBF16 makes a U16 array of the bf16 bit patterns nearest to v.
func FromBF16(v []float32, shape ...int) Array {
	return FromU16(numfmt.BF16EncodeSlice(nil, v), shape...)
}

func encode[T any](t Type, v []T, shape []int) Array {
	return Array{Type: t, Shape: shape, Data: append(make([]byte, 0, len(v)*t.Size()), numfmt.Bytes(v)...)}
}

func decode[T any](a Array, t Type) []T {
	if a.Type != t {
		return nil
	}
	v := make([]T, len(a.Data)/t.Size())
	copy(numfmt.Bytes(v), a.Data)
	return v
}

// U16 returns a copy of the elements of a U16 array, nil for another type.
func (a Array) U16() []uint16 { return decode[uint16](a, U16) }

// I32 returns a copy of the elements of an I32 array, nil for another type.
func (a Array) I32() []int32 { return decode[int32](a, I32) }

// U32 returns a copy of the elements of a U32 array, nil for another type.
func (a Array) U32() []uint32 { return decode[uint32](a, U32) }

// I64 returns a copy of the elements of an I64 array, nil for another type.
func (a Array) I64() []int64 { return decode[int64](a, I64) }

// F32 returns a copy of the elements of an F32 array, nil for another type.
func (a Array) F32() []float32 { return decode[float32](a, F32) }

// BF16 returns the values of a U16 array of bf16 bit patterns, nil for another
// type.
func (a Array) BF16() []float32 {
	if a.Type != U16 {
		return nil
	}
	return numfmt.BF16DecodeSlice(nil, a.U16())
}

// Float64s returns every element as a float64, U16 elements taken as bf16 and
// F16 as IEEE half. 64-bit integers beyond 2^53 lose their low bits.
func (a Array) Float64s() []float64 {
	n := 0
	if s := a.Type.Size(); s > 0 {
		n = len(a.Data) / s
	}
	out := make([]float64, n)
	le := binary.LittleEndian
	for i := range out {
		switch d := a.Data; a.Type {
		case U8:
			out[i] = float64(d[i])
		case I8:
			out[i] = float64(int8(d[i]))
		case U16:
			out[i] = float64(numfmt.BF16Decode(le.Uint16(d[2*i:])))
		case I16:
			out[i] = float64(int16(le.Uint16(d[2*i:])))
		case F16:
			out[i] = float64(numfmt.F16Decode(le.Uint16(d[2*i:])))
		case U32:
			out[i] = float64(le.Uint32(d[4*i:]))
		case I32:
			out[i] = float64(int32(le.Uint32(d[4*i:])))
		case F32:
			out[i] = float64(math.Float32frombits(le.Uint32(d[4*i:])))
		case U64:
			out[i] = float64(le.Uint64(d[8*i:]))
		case I64:
			out[i] = float64(int64(le.Uint64(d[8*i:])))
		case F64:
			out[i] = math.Float64frombits(le.Uint64(d[8*i:]))
		}
	}
	return out
}
