// Package fakegguf writes GGUF files for tests.
package fakegguf

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/gguf"
)

// Key is a value of the header: a bool, a string, a number of a fixed width, or a slice of such.
type Key struct {
	Name  string
	Value any
}

// Tensor is a tensor to be written.
type Tensor struct {
	Name   string
	Format string
	Shape  []int // row-major
	Data   []byte
}

// Alignment divides tensors' places unless a key says otherwise.
const Alignment = 32

var le = binary.LittleEndian

// Encode returns a file of version 3 with tensors in their order. Its end is not padded.
func Encode(keys []Key, tensors []Tensor) []byte {
	b := le.AppendUint32([]byte("GGUF"), 3)
	b = le.AppendUint64(b, uint64(len(tensors)))
	b = le.AppendUint64(b, uint64(len(keys)))
	align := Alignment
	for _, k := range keys {
		if k.Name == "general.alignment" {
			align = int(k.Value.(uint32))
		}
		b = appendValue(appendText(b, k.Name), k.Value)
	}
	at := 0
	for _, t := range tensors {
		b = le.AppendUint32(appendText(b, t.Name), uint32(len(t.Shape)))
		for _, d := range slices.Backward(t.Shape) {
			b = le.AppendUint64(b, uint64(d))
		}
		b = le.AppendUint32(b, uint32(gguf.FormatNamed(t.Format).Type))
		b = le.AppendUint64(b, uint64(at))
		at = (at + len(t.Data) + align - 1) / align * align
	}
	for _, t := range tensors {
		b = append(append(b, make([]byte, (align-len(b)%align)%align)...), t.Data...)
	}
	return b
}

func appendText(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }

// appendValue appends a value after its type.
func appendValue(b []byte, v any) []byte {
	kind, elem, n := kindOf(v)
	b = le.AppendUint32(b, uint32(kind))
	if kind == gguf.Array {
		b = le.AppendUint64(le.AppendUint32(b, uint32(elem)), uint64(n))
	}
	switch v := v.(type) {
	case string:
		return appendText(b, v)
	case []string:
		for _, s := range v {
			b = appendText(b, s)
		}
		return b
	}
	b, err := binary.Append(b, le, v)
	if err != nil {
		panic(fmt.Sprintf("fakegguf: a value of %T: %v", v, err))
	}
	return b
}

// kindOf returns the type of a value, and of the elements of an array.
func kindOf(v any) (kind, elem gguf.Kind, n int) {
	switch v := v.(type) {
	case uint8:
		return gguf.U8, 0, 0
	case uint16:
		return gguf.U16, 0, 0
	case uint32:
		return gguf.U32, 0, 0
	case int32:
		return gguf.I32, 0, 0
	case float32:
		return gguf.F32, 0, 0
	case bool:
		return gguf.Bool, 0, 0
	case string:
		return gguf.String, 0, 0
	case uint64:
		return gguf.U64, 0, 0
	case []int32:
		return gguf.Array, gguf.I32, len(v)
	case []float32:
		return gguf.Array, gguf.F32, len(v)
	case []string:
		return gguf.Array, gguf.String, len(v)
	}
	panic(fmt.Sprintf("fakegguf: a value of %T", v))
}
