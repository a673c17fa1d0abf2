package model

import (
	"errors"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/safetensors"
)

// source is a model's mapped files.
type source interface {
	Names() []string // as stored, sorted
	Has(name string) bool
	File(name string) string // "" for a tensor that is not there
	Tensor(name string) (safetensors.Tensor, error)
	Close() error

	// attentionName takes a stored name apart. ok is false for a tensor that is not attention's.
	attentionName(stored string) (s storedName, ok bool)
	// spelled returns the spelling for a missing tensor of a layer's attention, given its released
	// name.
	spelled(c *Config, layer int, name string) string
}

// openDrafted opens a model with the draft block of another file, if that is not "".
func openDrafted(path, drafts string, p safetensors.Part) (source, error) {
	m, err := openSource(path, p)
	if err != nil || drafts == "" {
		return m, err
	}
	d, err := openDrafts(path, drafts)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return drafted{m, d}, nil
}

// openSource opens the files of a folder, or a GGUF file. Of safetensors it has the wanted part.
func openSource(path string, p safetensors.Part) (source, error) {
	file, err := ggufOf(path)
	if err != nil {
		return nil, err
	}
	if file != "" {
		return openGGUF(file)
	}
	m, err := safetensors.Open(path, p)
	if err != nil {
		return nil, fileError(foreignFolder(path, err))
	}
	return folder{m}, nil
}

// folder is the safetensors of a folder.
type folder struct{ *safetensors.Model }

func (folder) attentionName(stored string) (storedName, bool) { return attentionName(stored) }

func (folder) spelled(c *Config, layer int, name string) string { return c.releasedRoot(layer) + name }

// ggufModel is a GGUF file or several parts.
type ggufModel struct{ *gguf.Model }

func (m ggufModel) Has(name string) bool { _, ok := m.Model.Tensor(name); return ok }

func (m ggufModel) File(name string) string { t, _ := m.Model.Tensor(name); return t.File }

func (m ggufModel) Tensor(name string) (safetensors.Tensor, error) {
	t, ok := m.Model.Tensor(name)
	if !ok {
		return safetensors.Tensor{}, &CheckpointError{Tensor: name, Got: "absent", Want: "the tensor"}
	}
	return safetensors.Tensor{Name: t.Name, DType: safetensors.DType(t.Format.Name), Shape: t.Shape, Data: t.Data}, nil
}

// openGGUF opens a GGUF file of a model that is read.
func openGGUF(file string) (source, error) {
	m, err := mapGGUF(file)
	if err != nil {
		return nil, err
	}
	if err := checkArchitecture(m, file); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return ggufModel{m}, nil
}

// mapGGUF opens a GGUF file of any kind.
func mapGGUF(file string) (*gguf.Model, error) {
	m, err := gguf.Open(file)
	var foreign *gguf.ForeignError
	switch {
	case errors.As(err, &foreign):
		return nil, foreignGGUF(foreign)
	case err != nil:
		return nil, fileError(err)
	}
	return m, nil
}
