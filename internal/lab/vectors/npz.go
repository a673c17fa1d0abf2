package vectors

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Archive is an open .npz file: arrays by name, without a manifest that describes
// them.
type Archive struct {
	path    string
	file    io.Closer // nil for one in memory
	members map[string]*zip.File
}

// OpenArchive opens an .npz file. Whoever opens it closes it.
//
// Errors wrap ErrFormat, or are the file system's.
func OpenArchive(path string) (*Archive, error) {
	z, err := zip.OpenReader(path)
	if errors.Is(err, zip.ErrFormat) || errors.Is(err, zip.ErrInsecurePath) {
		return nil, malformed(path, "%v", err)
	}
	if err != nil {
		return nil, fmt.Errorf("vectors: open: %w", err)
	}
	a, err := newArchive(path, &z.Reader, z)
	if err != nil {
		z.Close()
	}
	return a, err
}

// ReadArchive takes the bytes of an .npz file, of which errors call it name. Errors wrap ErrFormat.
func ReadArchive(name string, data []byte) (*Archive, error) {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, malformed(name, "%v", err)
	}
	return newArchive(name, z, nil)
}

func newArchive(path string, z *zip.Reader, file io.Closer) (*Archive, error) {
	a := &Archive{path, file, map[string]*zip.File{}}
	for _, f := range z.File {
		name, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok || !printable(name) || a.members[name] != nil {
			return nil, malformed(path, "member %.200q is no .npy, unprintable or there twice", f.Name)
		}
		a.members[name] = f
	}
	return a, nil
}

// Names are the names of the arrays, sorted.
func (a *Archive) Names() []string {
	var names []string
	for n := range a.members {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Has tells whether the archive has an array of that name.
func (a *Archive) Has(name string) bool { return a.members[name] != nil }

// Array reads the array of that name, stored in either order. It may have at most 1
// GiB.
//
// Errors wrap ErrFormat, also if there is no such array.
func (a *Archive) Array(name string) (Array, error) {
	f := a.members[name]
	if f == nil {
		return Array{}, malformed(a.path, "has no array %.200q", name)
	}
	r, err := f.Open()
	if err != nil {
		return Array{}, malformed(a.path, "%s: %v", name, err)
	}
	defer r.Close()
	h, err := readNpyHeader(r)
	if err == nil {
		var arr Array
		if arr, err = readNpyData(r, h.t, h.shape); err == nil {
			if h.columns {
				arr = rowMajor(arr)
			}
			return arr, nil
		}
	}
	return Array{}, malformed(a.path, "%s: %v", name, err)
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

// npyHeader is the header of version 1 of the format, padded so that data begin at a
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
