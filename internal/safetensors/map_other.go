//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package safetensors

import (
	"fmt"
	"io"
	"os"
)

// mapFile reads the file where there is no simple call that maps it.
func mapFile(f *os.File, n int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, int64(n)))
	if err == nil && len(data) < n {
		err = fmt.Errorf("%d of %d bytes: %w", len(data), n, io.ErrUnexpectedEOF)
	}
	return data, err
}

func unmapFile([]byte) error { return nil }
