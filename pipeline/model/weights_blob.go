package model

import (
	"fmt"
	"io"

	"github.com/vkmla/vkmla/internal/files"
)

// Blob holds the bytes of a tensor as they go to the device. Most are still in a mapped file: they
// are read, and converted if need be, on demand.
type Blob struct {
	size   int64
	pieces []piece // one after the other
}

// piece is a run of bytes. read fills dst with those from off on; dst never reaches beyond the
// piece.
type piece struct {
	size int64
	read func(dst []byte, off int64)
}

// Size returns the number of bytes.
func (b Blob) Size() int64 { return b.size }

// ReadAt reads bytes from off on, as an io.ReaderAt. Several goroutines may call it, but none after
// the checkpoint was closed.
//
// Errors: io.EOF after the end; ErrCheckpoint if the file shrank after it was opened.
func (b Blob) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("model: read weights: offset %d is negative", off)
	}
	err = files.Guard(func() error {
		at := int64(0)
		for _, q := range b.pieces {
			if from := off + int64(n) - at; n < len(p) && from < q.size {
				k := min(int64(len(p)-n), q.size-from)
				q.read(p[n:n+int(k)], from)
				n += int(k)
			}
			at += q.size
		}
		return nil
	})
	if err != nil {
		return n, fmt.Errorf("model: read weights: %w: %w", ErrCheckpoint, err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// bytes returns a copy of all bytes. Errors: those of ReadAt.
func (b Blob) Bytes() ([]byte, error) {
	p := make([]byte, b.size)
	if _, err := b.ReadAt(p, 0); err != nil {
		return nil, err
	}
	return p, nil
}

// blob is bytes as they are.
func blob(data []byte) Blob {
	n := int64(len(data))
	return Blob{n, []piece{{n, func(dst []byte, off int64) { copy(dst, data[off:]) }}}}
}

// grid is columns a to b of rows r to s of a matrix of bytes.
func grid(data []byte, width, r, s, a, b int) Blob {
	if a == 0 && b == width {
		return blob(data[r*width : s*width])
	}
	w := int64(b - a)
	n := int64(s-r) * w
	return Blob{n, []piece{{n, func(dst []byte, off int64) {
		for len(dst) > 0 {
			row, col := off/w, off%w
			at := (int64(r)+row)*int64(width) + int64(a)
			k := copy(dst, data[at+col:at+w])
			dst, off = dst[k:], off+int64(k)
		}
	}}}}
}

// computed is n elements of size bytes each. put writes the elements i to i+len(dst)/size-1. Reads
// may begin and end within an element.
func computed(n int64, size int, put func(dst []byte, i int64)) Blob {
	total := n * int64(size)
	return Blob{total, []piece{{total, func(dst []byte, off int64) {
		s := int64(size)
		if rest := off % s; rest != 0 {
			one := make([]byte, size)
			put(one, off/s)
			k := copy(dst, one[rest:])
			dst, off = dst[k:], off+int64(k)
		}
		whole := len(dst) / size * size
		if whole > 0 {
			put(dst[:whole], off/s)
		}
		if whole < len(dst) {
			one := make([]byte, size)
			put(one, (off+int64(whole))/s)
			copy(dst[whole:], one)
		}
	}}}}
}

// join puts blobs one after the other.
func join(list ...Blob) Blob {
	var all Blob
	for _, b := range list {
		all.size += b.size
		all.pieces = append(all.pieces, b.pieces...)
	}
	return all
}
