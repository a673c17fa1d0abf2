package gguf

import (
	"encoding/binary"
	"reflect"
	"slices"
)

// Header collects what stands in front of the tensors of a file of version 3, to write one.
type Header struct {
	Align int64 // tensors begin at multiples of it; 0: 32. Another one needs a key, too

	keys, tensors []byte
	n, count      uint64
	at            int64 // of the next tensor
}

// kinds are those of Go's values.
var kinds = map[reflect.Kind]Kind{reflect.Uint8: U8, reflect.Uint16: U16, reflect.Uint32: U32, reflect.Uint64: U64, reflect.Int32: I32,
	reflect.Float32: F32, reflect.Bool: Bool, reflect.String: String, reflect.Slice: Array}

// Key adds a key with a bool, a string, a number of one of these kinds, or a slice of them.
func (h *Header) Key(name string, value any) {
	v := reflect.ValueOf(value)
	h.n++
	h.keys = le.AppendUint32(appendText(h.keys, name), uint32(kinds[v.Kind()]))
	if v.Kind() != reflect.Slice {
		h.value(v)
		return
	}
	h.keys = le.AppendUint64(le.AppendUint32(h.keys, uint32(kinds[v.Type().Elem().Kind()])), uint64(v.Len()))
	for i := range v.Len() {
		h.value(v.Index(i))
	}
}

func (h *Header) value(v reflect.Value) {
	if v.Kind() == reflect.String {
		h.keys = appendText(h.keys, v.String())
		return
	}
	h.keys, _ = binary.Append(h.keys, le, v.Interface()) // of a fixed width
}

// Tensor adds a tensor of some bytes, which come after those of the tensor before, padded.
func (h *Header) Tensor(name, format string, bytes int64, shape ...int) {
	h.count++
	h.tensors = le.AppendUint32(appendText(h.tensors, name), uint32(len(shape)))
	for _, d := range slices.Backward(shape) {
		h.tensors = le.AppendUint64(h.tensors, uint64(d))
	}
	h.tensors = le.AppendUint64(le.AppendUint32(h.tensors, uint32(FormatNamed(format).Type)), uint64(h.at))
	h.at += h.Padded(bytes)
}

// Padded returns n as the next multiple at which tensors begin.
func (h *Header) Padded(n int64) int64 {
	align := h.Align
	if align == 0 {
		align = 32
	}
	return (n + align - 1) / align * align
}

// Bytes returns the header, without padding at its end.
func (h *Header) Bytes() []byte {
	b := le.AppendUint64(le.AppendUint64(le.AppendUint32([]byte("GGUF"), 3), h.count), h.n)
	return slices.Concat(b, h.keys, h.tensors)
}

func appendText(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
