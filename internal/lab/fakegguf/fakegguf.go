// Package fakegguf writes GGUF files for tests.
package fakegguf

import "github.com/vkmla/vkmla/internal/gguf"

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

// Encode returns a file of version 3 with tensors in their order. Its end is not padded.
func Encode(keys []Key, tensors []Tensor) []byte {
	var h gguf.Header
	for _, k := range keys {
		if k.Name == "general.alignment" {
			h.Align = int64(k.Value.(uint32))
		}
		h.Key(k.Name, k.Value)
	}
	for _, t := range tensors {
		h.Tensor(t.Name, t.Format, int64(len(t.Data)), t.Shape...)
	}
	b := h.Bytes()
	for _, t := range tensors {
		n := int64(len(b))
		b = append(append(b, make([]byte, h.Padded(n)-n)...), t.Data...)
	}
	return b
}
