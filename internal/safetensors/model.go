package safetensors

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/vkmla/vkmla/internal/files"
)

// Names of a model's files.
const (
	SingleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"
	maxIndex   = 256 << 20 // bytes of an index; that of the largest model has 20 million
	maxNesting = 16        // of what is skipped
)

// Model is the tensors of a folder. Files are opened when one of their tensors is
// first asked for.
type Model struct {
	dir   string
	where map[string]string // tensor to file
	files map[string]*File
	part  Part
}

// Open opens a folder with model.safetensors.index.json, or else with model.safetensors,
// for the tensors of some names. Of the others only their places in a file are checked.
// Whoever opens it closes it.
//
// Errors wrap ErrFormat, or are the file system's.
func Open(dir string, p Part) (*Model, error) {
	m := &Model{dir: dir, files: map[string]*File{}, part: p}
	data, err := files.Read(filepath.Join(dir, IndexName), maxIndex)
	switch {
	case errors.Is(err, files.ErrLarge) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, malformed("%v", err)
	case files.IsPointer(data):
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, IndexName), ErrPointer)
	case err == nil:
		if m.where, err = parseIndex(data, p); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, IndexName), err)
		}
		return m, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("safetensors: open: %w", err)
	}
	f, err := open(filepath.Join(dir, SingleName), p)
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

// parseIndex reads the weight_map of an index. Other members are not looked at.
func parseIndex(data []byte, p Part) (map[string]string, error) {
	s := files.Scanner{Data: data}
	if !s.Take('{') {
		return nil, malformed("the index is not a JSON object")
	}
	var where map[string]string
	for first := true; ; first = false {
		name, more, err := s.Member(first, len(data))
		switch {
		case err != nil:
		case !more && (where == nil || !s.End()):
			return nil, malformed("the index has no weight_map, or goes on behind its JSON object")
		case !more:
			return where, nil
		case name != "weight_map":
			err = s.Skip(maxNesting)
		case where != nil:
			return nil, malformed("the index has two of weight_map")
		default:
			if where, err = parseWeightMap(&s, p); errors.Is(err, ErrFormat) {
				return nil, err
			}
		}
		if err != nil {
			return nil, malformed("the index: %v", err)
		}
	}
}

func parseWeightMap(s *files.Scanner, p Part) (map[string]string, error) {
	if !s.Take('{') {
		return nil, malformed("weight_map is not an object")
	}
	where, shards := map[string]string{}, map[string]string{}
	for first := true; ; first = false {
		name, more, err := s.Member(first, maxName)
		if err != nil || !more {
			return where, err
		}
		if !printable(name) {
			return nil, malformed("weight_map: the name %.200q is empty, too long or unprintable", name)
		}
		file, err := s.String(maxName)
		if err != nil {
			return nil, malformed("weight_map: %s: %v", name, err)
		}
		// Only names of files beside the index: a path could lead anywhere.
		if !printable(file) || file == "." || !filepath.IsLocal(file) || filepath.Base(file) != file {
			return nil, malformed("weight_map: %s lies in %.200q, which is no file of the folder", name, file)
		}
		if !p.Keep(name) {
			continue
		}
		if _, twice := where[name]; twice {
			return nil, malformed("weight_map names %s twice", name)
		}
		if len(where) == p.Most {
			return nil, malformed("weight_map names more than %d tensors that are to be read", p.Most)
		}
		if _, seen := shards[file]; !seen {
			shards[file] = file
		}
		where[name] = shards[file] // one copy of each name
	}
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
		if f, err = open(filepath.Join(m.dir, file), m.part); err != nil {
			return Tensor{}, err
		}
		for other := range f.Tensors {
			if at, known := m.where[other]; known && at != file {
				return Tensor{}, errors.Join(malformed("%.200q is in %s, and the index has it in %s", other, file, at), f.Close())
			}
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
