// Package gguf reads models from memory-mapped GGUF files, whole or in parts, and decodes their
// block formats.
//
// A file has a header of counted keys and tensors, then the tensors' bytes. The header's values
// stay in the mapped file and are read where they lie, so that a vocabulary costs no memory. Of a
// file in parts the first has the keys; each part lists its own tensors.
//
// A file may come from anybody: nothing in it is believed that was not checked against the file's
// size, nothing is allocated on its word, and whatever is wrong is an error that wraps ErrFormat.
// A file that is well-formed as far as it is known, and of a kind that is not read, is a
// *ForeignError.
//
// Why not one of the existing packages: gpustack/gguf-parser-go v0.28.2 knows all types by size,
// but panics where a value has another type than it expects or a product overflows, believes an
// array's length before it allocates, brings an HTTP client, SSH ciphers and two JSON encoders into
// a library whose users get no module but the Vulkan binding, and decodes no block. What is needed
// is a strict header and a function for each block format.
//
// Sources: the description of GGUF in ggml for the container; the structs of ggml-common.h for the
// formats.
package gguf

import (
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/internal/files"
)

// ErrFormat is wrapped by every error about a file that is malformed or contradicts itself or its
// other parts.
var ErrFormat = errors.New("malformed GGUF")

// ForeignError says what a file is that is known, and that this package does not read.
type ForeignError struct {
	File string // its name, without the folder
	Name string // of the tensor; "" for the whole file
	What string // such as "GGUF of version 2"
}

// Error reads "gguf: open: file: name: this is WHAT, which is not read".
func (e *ForeignError) Error() string {
	where := e.File
	if e.Name != "" {
		where += ": " + e.Name
	}
	return fmt.Sprintf("gguf: open: %s: this is %s, which is not read", where, e.What)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrFormat)
}

// Tensor is a tensor of a model.
type Tensor struct {
	Name   string
	File   string // its name, without the folder
	Format *Format
	Shape  []int // row-major: the last dimension is that of a row; GGUF itself has them in reverse
	// Data are the tensor's bytes, rows one after the other. They lie in the mapped file: they must
	// not be written to, nor used after it was closed, and be read within Guard.
	Data []byte
}

// String gives type and shape, such as "Q8_0 [512 4096]".
func (t Tensor) String() string { return fmt.Sprintf("%s %v", t.Format.Name, t.Shape) }

// Row returns the numbers of a row.
func (t Tensor) Row() int { return t.Shape[len(t.Shape)-1] }

// Guard runs f, which reads mapped data, and turns the fault that the system raises where a file
// has become shorter than its mapping into an error that wraps ErrFormat.
func Guard(f func() error) error {
	err := files.Guard(f)
	if errors.Is(err, files.ErrShrunk) {
		return fmt.Errorf("gguf: %w: %w", err, ErrFormat)
	}
	return err
}
