package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/vkmla/vkmla/internal/files"
)

const (
	maxHeader  = 100_000_000 // the format's own limit
	maxTensors = 1 << 18     // of a file; a model of 300,000 lies in a hundred of them
	maxDims    = 16
	maxName    = 1000
	metadata   = "__metadata__"
)

// Part says which tensors of a model are wanted.
type Part struct {
	Keep func(name string) bool
	Most int // of a file, and of an index
}

// All is every tensor.
var All = Part{func(string) bool { return true }, maxTensors}

// parse reads the header of a whole file and returns the wanted tensors by name; their
// Data are parts of file. Tensors have to cover everything after the header without
// gap and overlap, as the format demands.
//
// Errors wrap ErrFormat.
func parse(file []byte, p Part) (map[string]Tensor, error) {
	if len(file) < 8 {
		return nil, malformed("a file of %d bytes is shorter than its header", len(file))
	}
	n := binary.LittleEndian.Uint64(file)
	if n > maxHeader || n > uint64(len(file)-8) {
		return nil, malformed("a header of %d bytes in a file of %d (at most %d are allowed)", n, len(file), maxHeader)
	}
	header, data := file[8:8+n], file[8+n:]
	list, err := parseHeader(header)
	if err != nil {
		return nil, err
	}
	return place(list, data, p)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("safetensors: parse: %s: %w", fmt.Sprintf(format, args...), ErrFormat)
}

// entry is a tensor as the header describes it.
type entry struct {
	Tensor
	from, to int64
}

// parseHeader reads the entries one after the other, because a map would hide a name
// that is there twice.
func parseHeader(header []byte) ([]entry, error) {
	s := files.Scanner{Data: header}
	if !s.Take('{') {
		return nil, malformed("the header is not a JSON object")
	}
	list := make([]entry, 0, min(bytes.Count(header, []byte(`"data_offsets"`)), maxTensors))
	described := false // by metadata
	for first := true; ; first = false {
		name, more, err := s.Member(first, maxName)
		if err != nil {
			return nil, malformed("the header: %v", err)
		}
		if !more {
			break
		}
		if name == metadata {
			if described {
				return nil, malformed("%s is there twice", metadata)
			}
			described = true
			if err := skipMetadata(&s); err != nil {
				return nil, malformed("%s: %v", metadata, err)
			}
			continue
		}
		if !printable(name) {
			return nil, malformed("the name %.200q is empty, too long or unprintable", name)
		}
		if len(list) == maxTensors {
			return nil, malformed("more than %d tensors", maxTensors)
		}
		e := entry{Tensor: Tensor{Name: name}}
		if err := e.parse(&s); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	if !s.End() {
		return nil, malformed("the header goes on behind its JSON object")
	}
	return list, nil
}

// skipMetadata goes past an object of strings, which nothing here asks for.
func skipMetadata(s *files.Scanner) error {
	if !s.Take('{') {
		return errors.New("not an object")
	}
	for first := true; ; first = false {
		_, more, err := s.Member(first, maxName)
		if err != nil || !more {
			return err
		}
		if !s.Is('"') {
			return errors.New("not an object of strings")
		}
		if err := s.Skip(0); err != nil {
			return err
		}
	}
}

// fields holds what the header says of a tensor.
var fields = [3]string{"dtype", "shape", "data_offsets"}

// parse reads what the header says of a tensor.
func (e *entry) parse(s *files.Scanner) error {
	if !s.Take('{') {
		return malformed("%s: is not described by an object", e.Name)
	}
	var seen [3]bool
	for first := true; ; first = false {
		field, more, err := s.Member(first, maxName)
		i := slices.Index(fields[:], field)
		switch {
		case err != nil:
			return malformed("%s: %v", e.Name, err)
		case !more && seen != [3]bool{true, true, true}:
			return malformed("%s: has no dtype, shape or pair of data_offsets", e.Name)
		case !more:
			return e.check()
		case i < 0 || seen[i]:
			return malformed("%s: has %.40q, unknown or there twice", e.Name, field)
		}
		seen[i] = true
		switch field {
		case "dtype":
			var t string
			t, err = s.String(maxName)
			e.DType = dtypeNamed(t)
			if err == nil && e.DType == "" {
				return malformed("%s: the element type %.40q is not known", e.Name, t)
			}
		case "shape":
			var dims [maxDims]int64
			var n int
			n, err = ints(s, dims[:])
			e.Shape = make([]int, n)
			for i := range e.Shape {
				e.Shape[i] = int(dims[i])
			}
		case "data_offsets":
			var o [2]int64
			var n int
			if n, err = ints(s, o[:]); err == nil && n != 2 {
				return malformed("%s: has no pair of data_offsets", e.Name)
			}
			e.from, e.to = o[0], o[1]
		}
		if err != nil {
			return malformed("%s: %s: %v", e.Name, field, err)
		}
	}
}

// ints reads a list of whole numbers, at most as many as list has.
func ints(s *files.Scanner, list []int64) (n int, err error) {
	if !s.Take('[') {
		return 0, errors.New("not a list")
	}
	for ; !s.Take(']'); n++ {
		if n > 0 && !s.Take(',') {
			return 0, errors.New("no comma")
		}
		if n == len(list) {
			return 0, fmt.Errorf("more than %d numbers", len(list))
		}
		if list[n], err = s.Int(); err != nil {
			return 0, err
		}
		if list[n] > math.MaxInt {
			return 0, fmt.Errorf("%d is too large", list[n])
		}
	}
	return n, nil
}

func printable(name string) bool {
	return name != "" && len(name) <= maxName && strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// check checks an entry in itself.
func (e *entry) check() error {
	n, ok := size(e.DType, e.Shape)
	if !ok {
		return malformed("%s: %v has no size in bytes", e.Name, e.Tensor)
	}
	if e.from < 0 || e.to < e.from || e.to-e.from != n {
		return malformed("%s: %v needs %d bytes and lies from %d to %d", e.Name, e.Tensor, n, e.from, e.to)
	}
	return nil
}

// place gives the tensors their bytes.
func place(list []entry, data []byte, p Part) (map[string]Tensor, error) {
	slices.SortStableFunc(list, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	at := int64(0)
	kept := map[string]Tensor{}
	for i := range list {
		e := &list[i]
		switch {
		case e.from < at:
			return nil, malformed("%s: begins at %d, inside the tensor before it, which ends at %d", e.Name, e.from, at)
		case e.from > at:
			return nil, malformed("%s: begins at %d, and nothing is described from %d on", e.Name, e.from, at)
		case e.to > int64(len(data)):
			return nil, malformed("%s: ends at %d of %d bytes", e.Name, e.to, len(data))
		}
		if _, twice := kept[e.Name]; twice {
			return nil, malformed("%.200q is there twice", e.Name)
		}
		if at = e.to; !p.Keep(e.Name) {
			continue
		}
		if len(kept) == p.Most {
			return nil, malformed("more than %d tensors that are to be read", p.Most)
		}
		e.Data = data[e.from:e.to:e.to]
		kept[e.Name] = e.Tensor
	}
	if at != int64(len(data)) {
		return nil, malformed("tensors end at %d of %d bytes", at, len(data))
	}
	return kept, nil
}
