package vectors

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vkmla/vkmla/internal/files"
)

// Archive is an open .npz file: arrays by name, without a manifest that describes
// them.
type Archive struct {
	path    string
	file    io.Closer // nil for one in memory
	size    int64
	members map[string]*zip.File
}

// OpenArchive opens an .npz file. Whoever opens it closes it.
//
// Errors wrap ErrFormat, or are the file system's.
func OpenArchive(path string) (*Archive, error) {
	f, st, err := files.Regular(path)
	if err != nil {
		return nil, fmt.Errorf("vectors: open: %w", err)
	}
	a, err := newArchive(path, f, st.Size())
	if err != nil {
		f.Close()
		return nil, err
	}
	a.file = f
	return a, nil
}

// ReadArchive takes the bytes of an .npz file, which errors call name. Errors wrap ErrFormat.
func ReadArchive(name string, data []byte) (*Archive, error) {
	return newArchive(name, bytes.NewReader(data), int64(len(data)))
}

func newArchive(path string, r io.ReaderAt, size int64) (*Archive, error) {
	z, err := readZip(r, size)
	if err != nil {
		return nil, malformed(path, "%v", err)
	}
	a := &Archive{path: path, size: size, members: map[string]*zip.File{}}
	for _, f := range z.File {
		name, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok || !printable(name) || a.members[name] != nil {
			return nil, malformed(path, "member %.200q is no .npy, unprintable or there twice", f.Name)
		}
		a.members[name] = f
	}
	return a, nil
}

// Names returns the names of the arrays, sorted.
func (a *Archive) Names() []string {
	return slices.Sorted(maps.Keys(a.members))
}

// Has reports whether the archive has an array of that name.
func (a *Archive) Has(name string) bool { return a.members[name] != nil }

// Head reads type and shape of the array of that name, and no data.
//
// Errors wrap ErrFormat, also if there is no such array.
func (a *Archive) Head(name string) (Array, error) {
	var h npyHead
	err := a.open(name, func(r io.Reader) (err error) { h, err = readNpyHeader(r); return err })
	return Array{Type: h.t, Shape: h.shape}, err
}

// Array reads the array of that name, stored in either order. It may have at most 1
// GiB, and twice the bytes of the file and 24 MiB.
//
// Errors wrap ErrFormat, also if there is no such array.
func (a *Archive) Array(name string) (Array, error) {
	var arr Array
	left := allowance(freeBytes)
	left.add(a.size)
	err := a.open(name, func(r io.Reader) error {
		h, err := readNpyHeader(r)
		if err != nil {
			return err
		}
		if h.columns { // turned into a copy
			n, err := byteSize(h.t, h.shape)
			if err == nil {
				err = left.take(n)
			}
			if err != nil {
				return err
			}
		}
		if arr, err = readNpyData(r, h.t, h.shape, &left); err == nil && h.columns {
			arr = rowMajor(arr)
		}
		return err
	})
	return arr, err
}

// open reads from the array of that name.
func (a *Archive) open(name string, read func(io.Reader) error) error {
	f := a.members[name]
	if f == nil {
		return malformed(a.path, "has no array %.200q", name)
	}
	r, err := f.Open()
	if err == nil {
		err = read(r)
		r.Close()
	}
	if err != nil {
		return malformed(a.path, "%s: %v", name, err)
	}
	return nil
}

// Close closes the file.
func (a *Archive) Close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}

// ArchiveWriter writes an .npz file as NumPy's savez does: the arrays one after the
// other, not compressed.
type ArchiveWriter struct {
	zip  *zip.Writer
	seen map[string]bool
}

// NewArchiveWriter begins an archive.
func NewArchiveWriter(w io.Writer) *ArchiveWriter {
	return &ArchiveWriter{zip.NewWriter(w), map[string]bool{}}
}

// epoch is the earliest time that a zip file can state; with it, equal arrays give
// equal files.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// Add writes an array. Errors: ErrFormat for a name or array that no reader would
// take, and the writer's.
func (a *ArchiveWriter) Add(name string, arr Array) error {
	n, err := byteSize(arr.Type, arr.Shape)
	if err == nil && (arr.Type.Size() == 0 || n != len(arr.Data)) {
		err = fmt.Errorf("%v has %d bytes of data", arr, len(arr.Data))
	}
	if err == nil && (!printable(name) || a.seen[name]) {
		err = errors.New("the name is unprintable or there twice")
	}
	if err != nil {
		return malformed("write", "%.200q: %v", name, err)
	}
	a.seen[name] = true
	w, err := a.zip.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: zip.Store, Modified: epoch})
	if err == nil {
		_, err = w.Write(npyHeader(arr))
	}
	if err == nil {
		_, err = w.Write(arr.Data)
	}
	if err != nil {
		return fmt.Errorf("vectors: write %s: %w", name, err)
	}
	return nil
}

// Close ends the archive; it does not close what it was written to.
func (a *ArchiveWriter) Close() error {
	if err := a.zip.Close(); err != nil {
		return fmt.Errorf("vectors: write: %w", err)
	}
	return nil
}

// npyHeader returns the header of version 1 of the format, padded so that data begin at a
// multiple of 64 bytes.
func npyHeader(a Array) []byte {
	order := "<"
	if a.Type.Size() == 1 {
		order = "|"
	}
	shape := ""
	for _, d := range a.Shape {
		shape += fmt.Sprintf("%d, ", d)
	}
	if len(a.Shape) != 1 { // a tuple of one keeps its comma
		shape = strings.TrimSuffix(shape, ", ")
	}
	h := fmt.Sprintf("{'descr': '%s%s', 'fortran_order': False, 'shape': (%s), }", order, types[a.Type].descr, strings.TrimSuffix(shape, " "))
	h += strings.Repeat(" ", 63-(len(npyMagic)+4+len(h))%64) + "\n"
	out := append([]byte(npyMagic), 1, 0)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(h)))
	return append(out, h...)
}
