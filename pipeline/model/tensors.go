package model

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/safetensors"
)

const opTensors = "model: open tensors"

// Tensor is a stored tensor of any kind, as its file has it.
type Tensor struct {
	Name  string // as stored
	File  string // of the checkpoint's folder, or the way from there
	DType string // as safetensors spells it, such as "BF16", "F8_E4M3", "I64", or GGUF, such as "Q8_0"
	Shape []int  // no dimensions: a scalar
	// Data are its bytes, row-major and little-endian, of GGUF in blocks, in the mapped file: not
	// to be written to, nor used after Tensors.Close. They may begin at any address.
	Data []byte
}

// Tensors is the files of a checkpoint, for programs that run what is not attention themselves.
// Files are mapped; only headers are read. Its methods may be called from several goroutines.
type Tensors struct {
	mu    sync.Mutex
	model source
	names []string
}

// OpenTensors opens all tensors of a model's folder: model.safetensors, or the files that
// model.safetensors.index.json names; or those of a GGUF file, or of a folder with one. Nothing in
// a file is trusted unchecked. drafts is as in CheckpointOptions: its tensors are called as there.
// The caller closes them.
//
// Errors: *CheckpointError (ErrCheckpoint) for malformed files; *ForeignError (ErrForeign);
// *ConfigError (ErrConfig) for drafts that are none; the file system's.
func OpenTensors(dir, drafts string) (*Tensors, error) {
	m, err := openDrafted(dir, drafts, safetensors.All)
	if err != nil {
		return nil, err
	}
	return &Tensors{model: m, names: m.Names()}, nil
}

// Names lists the stored names, sorted.
func (t *Tensors) Names() []string { return t.names }

// Tensor returns the tensor of a stored name.
//
// Errors: *CheckpointError (ErrCheckpoint) for an unknown name and a malformed file; the file
// system's; an error for closed Tensors.
func (t *Tensors) Tensor(name string) (Tensor, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.model.Has(name) {
		file := ""
		if d, other := t.model.(drafted); other && ofDrafts(name) {
			file, name = d.File(name), d.drafts.own(name)
		}
		return Tensor{}, &CheckpointError{File: file, Tensor: name, Got: "absent", Want: "the tensor"}
	}
	s, err := t.model.Tensor(name)
	if err != nil {
		if errors.Is(err, safetensors.ErrFormat) {
			err = &CheckpointError{File: t.model.File(name), Tensor: name, err: err}
		}
		return Tensor{}, fmt.Errorf("%s: %w", opTensors, err)
	}
	return Tensor{s.Name, t.model.File(name), string(s.DType), s.Shape, s.Data}, nil
}

// Read runs f, which reads Data, and turns the fault that the system raises where a file became
// shorter than its mapping into an error. It covers Go code only; f must not hold a lock.
//
// Errors: those of f; *CheckpointError (ErrCheckpoint) for a fault.
func (t *Tensors) Read(f func() error) error {
	if f == nil {
		return badArgument(opTensors, "f", "nil", "a function")
	}
	err := files.Guard(f)
	if errors.Is(err, files.ErrShrunk) {
		return &CheckpointError{Tensor: "model", err: err}
	}
	return err
}

// Close unmaps the files. Closing twice is allowed.
func (t *Tensors) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.model.Close()
}
