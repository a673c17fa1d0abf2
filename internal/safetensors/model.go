package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
)

// Names of a model's files.
const (
	SingleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"
	maxIndex   = 256 << 20 // bytes of an index; that of the largest model has 20 million
)

// Model is the tensors of a folder. Files are opened when one of their tensors is
// first asked for.
type Model struct {
	dir   string
	where map[string]string // tensor to file
	files map[string]*File
}

// OpenModel opens a folder with model.safetensors.index.json, or else with
// model.safetensors. Whoever opens it closes it.
//
// Errors wrap ErrFormat, or are the file system's.
func OpenModel(dir string) (*Model, error) {
	m := &Model{dir: dir, files: map[string]*File{}}
	data, err := readIndex(filepath.Join(dir, IndexName))
	switch {
	case err == nil:
		if m.where, err = parseIndex(data); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, IndexName), err)
		}
		return m, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("safetensors: open: %w", err)
	}
	f, err := Open(filepath.Join(dir, SingleName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("safetensors: open: %s has neither %s nor %s: %w", dir, IndexName, SingleName, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	m.files[SingleName], m.where = f, map[string]string{}
	for name := range f.Tensors {
		m.where[name] = SingleName
	}
	return m, nil
}

func readIndex(path string) ([]byte, error) {
	f, _, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err == nil && len(data) > maxIndex {
		err = malformed("%s is larger than %d bytes", path, maxIndex)
	}
	return data, err
}

// parseIndex reads the weight_map of an index. Other members are not looked at.
func parseIndex(data []byte) (map[string]string, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, malformed("the index is not a JSON object")
	}
	var where map[string]string
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, malformed("the index: %v", err)
		}
		if t != "weight_map" {
			var skip json.RawMessage
			if err := dec.Decode(&skip); err != nil {
				return nil, malformed("the index: %v", err)
			}
			continue
		}
		if where != nil {
			return nil, malformed("the index has two of weight_map")
		}
		if where, err = parseWeightMap(dec); err != nil {
			return nil, err
		}
	}
	if _, err := dec.Token(); err != nil || where == nil {
		return nil, malformed("the index has no complete weight_map")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, malformed("the index goes on behind its JSON object")
	}
	return where, nil
}

func parseWeightMap(dec *json.Decoder) (map[string]string, error) {
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, malformed("weight_map is not an object")
	}
	where := map[string]string{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		if err != nil || !ok || !printable(name) {
			return nil, malformed("weight_map: the name %.200q is empty, too long or unprintable", t)
		}
		var file string
		if err := dec.Decode(&file); err != nil {
			return nil, malformed("weight_map: %s: %v", name, err)
		}
		// Only names of files beside the index: a path could lead anywhere.
		if !printable(file) || file == "." || !filepath.IsLocal(file) || filepath.Base(file) != file {
			return nil, malformed("weight_map: %s lies in %.200q, which is no file of the folder", name, file)
		}
		if _, twice := where[name]; twice {
			return nil, malformed("weight_map names %s twice", name)
		}
		where[name] = file
	}
	if _, err := dec.Token(); err != nil {
		return nil, malformed("weight_map: %v", err)
	}
	return where, nil
}

// Names are the names of all tensors, sorted.
func (m *Model) Names() []string { return slices.Sorted(maps.Keys(m.where)) }

// Has tells whether the model has a tensor of that name.
func (m *Model) Has(name string) bool { _, ok := m.where[name]; return ok }

// File is the name of the file that a tensor lies in, "" for one that the model does
// not have.
func (m *Model) File(name string) string { return m.where[name] }

// Tensor returns a tensor, whose Data hold until Close. It is for one goroutine at a
// time.
//
// Errors wrap ErrFormat (also if there is no such tensor), or are the file system's.
func (m *Model) Tensor(name string) (Tensor, error) {
	file, ok := m.where[name]
	if !ok {
		return Tensor{}, malformed("there is no tensor %.200q", name)
	}
	f := m.files[file]
	if f == nil {
		var err error
		if f, err = Open(filepath.Join(m.dir, file)); err != nil {
			return Tensor{}, err
		}
		m.files[file] = f
	}
	t, ok := f.Tensors[name]
	if !ok {
		return Tensor{}, malformed("%s is not in %s, where the index has it", name, file)
	}
	return t, nil
}

// Close closes all files. Closing twice is allowed.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	m.files, m.where = map[string]*File{}, nil
	return errors.Join(errs...)
}
