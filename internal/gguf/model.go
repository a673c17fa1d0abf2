package gguf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/vkmla/vkmla/internal/files"
)

// Model is a model's keys and tensors. It may be used by several goroutines, but for Close.
type Model struct {
	Keys    map[string]Value // of the first part
	tensors map[string]Tensor
	mapped  [][]byte
}

// maxParts bounds the files of a model.
const maxParts = 1 << 12

// part is the name of a file that is one of several.
var part = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// Open maps a file, and the others where it is the first of several, and reads their headers.
// Whoever opens a model closes it.
//
// Errors wrap ErrFormat, are a *ForeignError, or are the file system's.
func Open(path string) (*Model, error) {
	m := &Model{tensors: map[string]Tensor{}}
	err := m.open(path)
	if err == nil {
		return m, nil
	}
	return nil, errors.Join(err, m.Close())
}

func (m *Model) open(path string) error {
	dir, name := filepath.Split(path)
	first, err := m.file(path)
	if err != nil {
		return err
	}
	m.Keys = first.keys
	var parts, all int
	err = Guard(func() (err error) { parts, all, err = first.split(0); return err })
	if err == nil {
		err = first.named(name)
	}
	if err != nil {
		return fmt.Errorf("gguf: open: %s: %w", path, err)
	}
	for i := 1; i < parts; i++ {
		other, err := partName(name, i, parts)
		if err == nil {
			err = m.part(filepath.Join(dir, other), i, parts)
		}
		if err != nil {
			return err
		}
	}
	if parts > 1 && all != len(m.tensors) {
		return fmt.Errorf("gguf: open: %s: %w", path, malformed("%d parts have %d tensors, want the %d of split.tensors.count",
			parts, len(m.tensors), all))
	}
	return nil
}

// part opens part i of several.
func (m *Model) part(path string, i, parts int) error {
	h, err := m.file(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("gguf: open: %s: part %d of %d is absent: %w", path, i+1, parts, err)
	}
	if err != nil {
		return err
	}
	var n int
	err = Guard(func() (err error) { n, _, err = h.split(i); return err })
	if err == nil && n != parts {
		err = malformed("split.count is %d, and %d in the first part", n, parts)
	}
	if err != nil {
		return fmt.Errorf("gguf: open: %s: %w", path, err)
	}
	return nil
}

// partName returns the name of part i, given the first one's.
func partName(first string, i, parts int) (string, error) {
	f := part.FindStringSubmatch(first)
	if f == nil || f[2] != "00001" || f[3] != fmt.Sprintf("%05d", parts) {
		return "", fmt.Errorf("gguf: open: %s: %w", first,
			malformed("of %d parts the first has to be called NAME-00001-of-%05d.gguf", parts, parts))
	}
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", f[1], i+1, parts), nil
}

// named checks that a file whose name makes it one of several says how many there are. Without that
// the tensors of the others, such as a draft block's, would be left out silently.
func (h *header) named(name string) error {
	_, there := h.keys["split.count"]
	f := part.FindStringSubmatch(name)
	if there || f == nil {
		return nil
	}
	if n, _ := strconv.Atoi(f[3]); n > 1 {
		return malformed("split.count is absent, want %d, as the name says; a whole model has another name", n)
	}
	return nil
}

// split reads how many parts there are, 1 where nothing is said, and how many tensors they have.
// The file has to be part i.
func (h *header) split(i int) (parts, tensors int, err error) {
	number := func(key string, otherwise int64) int {
		v, there := h.keys[key]
		if !there {
			return int(otherwise)
		}
		n, ok := v.Int()
		if err == nil && (!ok || n < 0 || n > math.MaxInt32) {
			err = malformed("%s: %v %d, want a number of parts or tensors", key, v, n)
		}
		return int(n)
	}
	parts, no := max(number("split.count", 1), 1), number("split.no", 0)
	tensors = number("split.tensors.count", -1)
	switch {
	case err != nil:
	case parts > maxParts:
		err = malformed("split.count: %d parts, want at most %d", parts, maxParts)
	case no != i && i == 0:
		err = malformed("this is part %d of %d; open the first", no+1, parts)
	case no != i:
		err = malformed("split.no is %d, want %d", no, i)
	case parts > 1 && i == 0 && tensors < 0:
		err = malformed("split.tensors.count is absent")
	}
	return parts, tensors, err
}

// file maps a file, and adds its tensors to the model's.
func (m *Model) file(path string) (*header, error) {
	f, st, err := files.Regular(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: open: %w", err)
	}
	defer f.Close()
	if st.Size() < 24 || st.Size() > math.MaxInt {
		return nil, fmt.Errorf("gguf: open: %s: %w", path, malformed("%d bytes", st.Size()))
	}
	data, err := files.Map(f, int(st.Size()))
	if err != nil {
		return nil, fmt.Errorf("gguf: open: %s: %w", path, err)
	}
	m.mapped = append(m.mapped, data)
	var h *header
	err = Guard(func() (err error) {
		h, err = parse(data, filepath.Base(path), maxTensors-len(m.tensors))
		return err
	})
	var foreign *ForeignError
	if errors.As(err, &foreign) {
		return nil, foreign
	}
	if err != nil {
		return nil, fmt.Errorf("gguf: open: %s: %w", path, err)
	}
	for _, e := range h.tensors {
		if other, twice := m.tensors[e.Name]; twice {
			return nil, fmt.Errorf("gguf: open: %s: %w", path, malformed("the tensor %s is in %s, too", e.Name, other.File))
		}
		m.tensors[e.Name] = e.Tensor
	}
	h.tensors = nil
	return h, nil
}

// apart checks that no two tensors share bytes.
func (h *header) apart() error {
	order := make([]int32, len(h.tensors))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(h.tensors[a].at, h.tensors[b].at) })
	for i := 1; i < len(order); i++ {
		a, b := &h.tensors[order[i-1]], &h.tensors[order[i]]
		if a.at+a.size > b.at {
			return malformed("%s: begins at %d, inside %s, which ends at %d", b.Name, b.at, a.Name, a.at+a.size)
		}
	}
	return nil
}

// Names are the names of all tensors, sorted.
func (m *Model) Names() []string { return slices.Sorted(maps.Keys(m.tensors)) }

// Tensor returns a tensor, whose Data hold until Close.
func (m *Model) Tensor(name string) (t Tensor, ok bool) { t, ok = m.tensors[name]; return t, ok }

// Close unmaps the files. Closing twice is allowed.
func (m *Model) Close() error {
	var errs []error
	for _, data := range m.mapped {
		errs = append(errs, files.Unmap(data))
	}
	m.mapped, m.tensors, m.Keys = nil, nil, nil
	return errors.Join(errs...)
}
