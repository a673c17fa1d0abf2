package vectors

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"

	"github.com/vkmla/vkmla/internal/files"
)

const (
	// maxDirectory bounds the bytes of a file that are searched for its list of members.
	maxDirectory = 4 << 20
	// freeBytes is the memory that arrays may have whatever the size of their files. Recorded
	// cases have up to 13 million bytes, mostly of poison, and a tenth of that in files.
	freeBytes = 24 << 20
)

// allowance counts the bytes that arrays may still have in memory: a compressed file can claim a
// thousand times its own size.
type allowance int64

// add raises the allowance for what is in a file.
func (a *allowance) add(size int64) { *a += allowance(2 * size) }

// take lowers it by the bytes of an array.
func (a *allowance) take(n int) error {
	if allowance(n) > *a {
		return fmt.Errorf("%d bytes, where %d are left of twice the file's and %d: keep large arrays uncompressed", n, *a, freeBytes)
	}
	*a -= allowance(n)
	return nil
}

var errDirectory = errors.New("the list of its members is too long")

// readZip reads the list of an archive's members.
func readZip(r io.ReaderAt, size int64) (*zip.Reader, error) {
	limited := &limitedReader{r, maxDirectory}
	z, err := zip.NewReader(limited, size)
	if limited.left < 0 {
		return nil, errDirectory
	}
	limited.left = 0
	if errors.Is(err, zip.ErrFormat) {
		begin := make([]byte, min(size, 64))
		if _, e := r.ReadAt(begin, 0); e == nil && files.IsPointer(begin) {
			err = fmt.Errorf("%w: %s", err, files.PointerWhat)
		}
	}
	return z, err
}

// limitedReader reads until left is 0, and then any number of bytes.
type limitedReader struct {
	r    io.ReaderAt
	left int64
}

func (l *limitedReader) ReadAt(p []byte, off int64) (int, error) {
	if l.left != 0 {
		if l.left -= int64(len(p)); l.left <= 0 {
			l.left = -1
			return 0, errDirectory
		}
	}
	return l.r.ReadAt(p, off)
}
