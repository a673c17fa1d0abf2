package vectors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// This reader of NumPy's .npy format exists because the Go package for it,
// sbinet/npyio, is not made for files from strangers: it indexes into a header
// without looking (a header without a newline is a panic), allocates what the
// header claims, and decodes element by element through reflection. What is
// needed here is little: a header, then the bytes as they are.

const (
	npyMagic     = "\x93NUMPY"
	maxNpyHeader = 1 << 16
	maxArray     = 1 << 30 // bytes of one array; the largest recorded ones have a few million
	maxDims      = 16
)

var (
	npyDescr   = regexp.MustCompile(`'descr'\s*:\s*'([<|=>]?[a-zA-Z]\d+)'`)
	npyFortran = regexp.MustCompile(`'fortran_order'\s*:\s*(True|False)`)
	npyShape   = regexp.MustCompile(`'shape'\s*:\s*\(([\d,\s]*)\)`)
)

// npyHead holds what an .npy header says.
type npyHead struct {
	t       Type
	shape   []int
	columns bool // the first index is the fastest; never set where that is the same
}

// readNpyHeader reads an .npy header and leaves r at the first data byte.
func readNpyHeader(r io.Reader) (npyHead, error) {
	var pre [10]byte
	if _, err := io.ReadFull(r, pre[:]); err != nil {
		return npyHead{}, fmt.Errorf("npy header: %w", err)
	}
	if string(pre[:6]) != npyMagic {
		return npyHead{}, fmt.Errorf("npy header: not an .npy file")
	}
	n := int(binary.LittleEndian.Uint16(pre[8:]))
	switch pre[6] {
	case 1:
	case 2, 3: // four bytes of length, the last two still to come
		var rest [2]byte
		if _, err := io.ReadFull(r, rest[:]); err != nil {
			return npyHead{}, fmt.Errorf("npy header: %w", err)
		}
		n |= int(binary.LittleEndian.Uint16(rest[:])) << 16
	default:
		return npyHead{}, fmt.Errorf("npy header: version %d is not known", pre[6])
	}
	if n > maxNpyHeader {
		return npyHead{}, fmt.Errorf("npy header: %d bytes long", n)
	}
	h := make([]byte, n)
	if _, err := io.ReadFull(r, h); err != nil {
		return npyHead{}, fmt.Errorf("npy header: %w", err)
	}
	return parseNpyHeader(h)
}

func parseNpyHeader(h []byte) (npyHead, error) {
	descr, fortran, dims := npyDescr.FindSubmatch(h), npyFortran.FindSubmatch(h), npyShape.FindSubmatch(h)
	if descr == nil || fortran == nil || dims == nil {
		return npyHead{}, fmt.Errorf("npy header: no descr, fortran_order and shape in %.100q", h)
	}
	t := typeOfDescr(string(descr[1]))
	if t == 0 {
		return npyHead{}, fmt.Errorf("npy header: element type %q is not supported", descr[1])
	}
	shape := []int{}
	for _, f := range strings.Split(string(dims[1]), ",") {
		if f = strings.TrimSpace(f); f == "" {
			continue
		}
		d, err := strconv.Atoi(f)
		if err != nil {
			return npyHead{}, fmt.Errorf("npy header: dimension %.40q", f)
		}
		shape = append(shape, d)
	}
	return npyHead{t, shape, bytes.Equal(fortran[1], []byte("True")) && len(shape) > 1}, nil
}

// typeOfDescr finds the type of a header's descr. Multi-byte elements must be
// little-endian; for bytes the order means nothing.
func typeOfDescr(d string) Type {
	order, kind := byte('='), d
	if !isLetter(d[0]) {
		order, kind = d[0], d[1:]
	}
	if kind == "b1" { // a boolean: a byte, 0 or 1
		return U8
	}
	for t, e := range types {
		if e.descr == kind && (order == '<' || e.size == 1) {
			return t
		}
	}
	return 0
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// byteSize returns the number of bytes of an array, or an error if the shape is
// negative or too large to be believed.
func byteSize(t Type, shape []int) (int, error) {
	n := t.Size()
	if len(shape) > maxDims {
		return 0, fmt.Errorf("%d dimensions", len(shape))
	}
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %s has a negative dimension", shapeString(shape))
		}
	}
	for _, d := range shape {
		if d == 0 {
			return 0, nil
		}
		if n > maxArray/d {
			return 0, fmt.Errorf("shape %s is larger than %d bytes", shapeString(shape), maxArray)
		}
		n *= d
	}
	return n, nil
}

// readNpy reads an array that must have the given type and shape, and nothing
// after it.
func readNpy(r io.Reader, t Type, shape []int, left *allowance) (Array, error) {
	if err := checkNpyHeader(r, t, shape); err != nil {
		return Array{}, err
	}
	return readNpyData(r, t, shape, left)
}

// readNpyData reads what follows a header, and has to be all.
func readNpyData(r io.Reader, t Type, shape []int, left *allowance) (Array, error) {
	n, err := byteSize(t, shape)
	if err == nil {
		err = left.take(n)
	}
	if err != nil {
		return Array{}, err
	}
	data := make([]byte, n)
	got, err := io.ReadFull(r, data)
	if err == nil || err == io.EOF && n == 0 {
		var more [1]byte
		k, e := io.ReadFull(r, more[:]) // to the end, where the checksum is compared
		if got, err = got+k, e; e == io.EOF {
			err = nil
		}
	}
	if got != n && (err == nil || errors.Is(err, io.ErrUnexpectedEOF) || err == io.EOF) {
		return Array{}, fmt.Errorf("%v needs %d bytes of data and has %s", Array{Type: t, Shape: shape}, n, count(got, n))
	}
	if err != nil {
		return Array{}, err
	}
	return Array{Type: t, Shape: append([]int(nil), shape...), Data: data}, nil
}

func count(got, want int) string {
	if got > want {
		return "more"
	}
	return strconv.Itoa(got)
}

func checkNpyHeader(r io.Reader, t Type, shape []int) error {
	h, err := readNpyHeader(r)
	if err != nil {
		return err
	}
	if h.columns {
		return fmt.Errorf("npy header: column-major order, where the format demands row-major")
	}
	if h.t != t || shapeString(h.shape) != shapeString(shape) {
		return fmt.Errorf("file holds %v, manifest says %v", Array{Type: h.t, Shape: h.shape}, Array{Type: t, Shape: shape})
	}
	return nil
}

// rowMajor puts the elements of an array whose first index is the fastest into the
// order of an Array.
func rowMajor(a Array) Array {
	out, size := New(a.Type, a.Shape...), a.Type.Size()
	idx, n := make([]int, len(a.Shape)), a.Len()
	for i := range n {
		at, stride := 0, 1
		for k, d := range a.Shape {
			at, stride = at+idx[k]*stride, stride*d
		}
		copy(out.Data[i*size:(i+1)*size], a.Data[at*size:])
		for k := len(idx) - 1; k >= 0; k-- { // the last index is the fastest of an Array
			if idx[k]++; idx[k] < a.Shape[k] {
				break
			}
			idx[k] = 0
		}
	}
	return out
}
