package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

const (
	maxHeader = 100_000_000 // the format's own limit
	maxDims   = 16
	maxName   = 1000
	metadata  = "__metadata__"
)

// Parse reads the header of a whole file and returns its tensors by name; their
// Data are parts of file. Tensors have to cover everything behind the header without
// gap and overlap, as the format demands.
//
// Errors wrap ErrFormat.
func Parse(file []byte) (map[string]Tensor, error) {
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
	return place(list, data)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("safetensors: parse: %s: %w", fmt.Sprintf(format, args...), ErrFormat)
}

// entry is a tensor as the header describes it.
type entry struct {
	name string
	info
}

type info struct {
	DType   *DType   `json:"dtype"`
	Shape   *[]int   `json:"shape"`
	Offsets *[]int64 `json:"data_offsets"`
}

// parseHeader reads the entries one after the other, because a map would hide a name
// that is there twice.
func parseHeader(header []byte) ([]entry, error) {
	dec := json.NewDecoder(bytes.NewReader(header))
	dec.DisallowUnknownFields()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, malformed("the header is not a JSON object")
	}
	var list []entry
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, malformed("the header: %v", err)
		}
		if seen[name] {
			return nil, malformed("%.200q is there twice", name)
		}
		seen[name] = true
		if name == metadata {
			var m map[string]string
			if err := dec.Decode(&m); err != nil {
				return nil, malformed("%s: %v", metadata, err)
			}
			continue
		}
		if !printable(name) {
			return nil, malformed("the name %.200q is empty, too long or unprintable", name)
		}
		e := entry{name: name}
		if err := dec.Decode(&e.info); err != nil {
			return nil, malformed("%s: %v", name, err)
		}
		if err := e.check(); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	if _, err := dec.Token(); err != nil {
		return nil, malformed("the header: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, malformed("the header goes on behind its JSON object")
	}
	return list, nil
}

func printable(name string) bool {
	return name != "" && len(name) <= maxName && strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// check checks an entry in itself.
func (e entry) check() error {
	if e.DType == nil || e.Shape == nil || e.Offsets == nil || len(*e.Offsets) != 2 {
		return malformed("%s: has no dtype, shape or pair of data_offsets", e.name)
	}
	if e.DType.Bits() == 0 {
		return malformed("%s: the element type %.40q is not known", e.name, string(*e.DType))
	}
	if len(*e.Shape) > maxDims {
		return malformed("%s: has %d dimensions, more than %d", e.name, len(*e.Shape), maxDims)
	}
	n, ok := size(*e.DType, *e.Shape)
	if !ok {
		return malformed("%s: %s %s has no size in bytes", e.name, *e.DType, shapeString(*e.Shape))
	}
	if o := *e.Offsets; o[0] < 0 || o[1] < o[0] || o[1]-o[0] != n {
		return malformed("%s: %s %s needs %d bytes and lies from %d to %d", e.name, *e.DType, shapeString(*e.Shape), n, o[0], o[1])
	}
	return nil
}

// place gives the tensors their bytes.
func place(list []entry, data []byte) (map[string]Tensor, error) {
	slices.SortStableFunc(list, func(a, b entry) int {
		x, y := *a.Offsets, *b.Offsets
		return slices.Compare(x, y)
	})
	at := int64(0)
	all := make(map[string]Tensor, len(list))
	for _, e := range list {
		o := *e.Offsets
		switch {
		case o[0] < at:
			return nil, malformed("%s: begins at %d, inside the tensor before it, which ends at %d", e.name, o[0], at)
		case o[0] > at:
			return nil, malformed("%s: begins at %d, and nothing is described from %d on", e.name, o[0], at)
		case o[1] > int64(len(data)):
			return nil, malformed("%s: ends at %d of %d bytes", e.name, o[1], len(data))
		}
		at = o[1]
		all[e.name] = Tensor{e.name, *e.DType, *e.Shape, data[o[0]:o[1]:o[1]]}
	}
	if at != int64(len(data)) {
		return nil, malformed("tensors end at %d of %d bytes", at, len(data))
	}
	return all, nil
}
