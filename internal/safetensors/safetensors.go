// Package safetensors reads tensors from memory-mapped safetensors files, single or
// sharded, and writes them.
//
// A file is eight bytes of header length, a JSON header that gives every tensor's
// element type, shape and place, and the tensors' bytes. A sharded model has an index
// file that says which file holds which tensor.
//
// A checkpoint may come from anybody: nothing in the header is believed that was not
// checked against the file's size, nothing is allocated on its word, and whatever is
// wrong is an error that wraps ErrFormat.
//
// Why not one of the existing packages: nlpodyssey/safetensors knows neither 8-bit
// floats nor their scales and lets a header that names a tensor twice pass;
// maruel/safetensors has no 8-bit exponents (F8_E8M0), without which FP8 weights of
// DeepSeek-V4 cannot be read, and needs two more modules, in a library whose users
// get no module but the Vulkan binding. Neither turns a file that shrinks while it is
// mapped into an error. What is needed is small: a strict header.
//
// Source: the format's description in the README of huggingface/safetensors, and
// the element types of its safetensors/src/tensor.rs.
package safetensors

import (
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/internal/files"
)

// ErrFormat is wrapped by every error about a file that is malformed or contradicts
// itself or its index.
var ErrFormat = errors.New("malformed safetensors")

// ErrPointer is wrapped by the error about a file in whose place there is a pointer to it, and
// wraps ErrFormat.
var ErrPointer = fmt.Errorf("%s: %w", files.PointerWhat, ErrFormat)

// DType is an element type as the format spells it.
type DType string

// The element types that this project reads and writes. Others are known by their
// size, so that files that contain them can be read.
const (
	BF16   DType = "BF16"
	F16    DType = "F16"
	F32    DType = "F32"
	U8     DType = "U8"
	I8     DType = "I8"
	I32    DType = "I32"
	I64    DType = "I64"
	F8E4M3 DType = "F8_E4M3"
	F8E8M0 DType = "F8_E8M0"
	F4     DType = "F4" // two to a byte
)

var bits = map[DType]int{
	"BOOL": 8, U8: 8, I8: 8, "F8_E5M2": 8, F8E4M3: 8, F8E8M0: 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, F16: 16, BF16: 16,
	I32: 32, "U32": 32, F32: 32,
	I64: 64, "U64": 64, "F64": 64, "C64": 64,
	F4: 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// dtypeNamed returns the element type of that spelling, "" for none that is known.
func dtypeNamed(name string) DType {
	for d := range bits {
		if string(d) == name {
			return d
		}
	}
	return ""
}

// Bits is the size of an element in bits, 0 for a type that is not known.
func (d DType) Bits() int { return bits[d] }

// Tensor is a tensor of a file.
type Tensor struct {
	Name  string
	DType DType
	Shape []int // no dimensions: a scalar
	// Data are the tensor's bytes, row-major and little-endian. They lie in the
	// mapped file: they must not be written to, nor used after it was closed, and
	// be read within Guard.
	Data []byte
}

// String gives type and shape, such as "BF16 [3, 128]".
func (t Tensor) String() string { return string(t.DType) + " " + shapeString(t.Shape) }

func shapeString(shape []int) string {
	s := "["
	for i, d := range shape {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprint(d)
	}
	return s + "]"
}

// size is the number of bytes of a tensor. ok is false for an unknown type, a
// negative dimension, a product that does not fit, or half a byte at the end.
func size(d DType, shape []int) (n int64, ok bool) {
	n = int64(d.Bits())
	empty := false
	for _, dim := range shape {
		if dim < 0 || n == 0 {
			return 0, false
		}
		if empty = empty || dim == 0; empty {
			continue
		}
		if n > (1<<62)/int64(dim) {
			return 0, false
		}
		n *= int64(dim)
	}
	if empty {
		return 0, d.Bits() > 0
	}
	return n / 8, n > 0 && n%8 == 0
}

// Guard is files.Guard whose error wraps ErrFormat.
func Guard(f func() error) error {
	err := files.Guard(f)
	if errors.Is(err, files.ErrShrunk) {
		return fmt.Errorf("safetensors: %w: %w", err, ErrFormat)
	}
	return err
}
