//go:build unix

package files

import (
	"os"
	"syscall"
)

// Map maps the first n bytes of a file for reading. They are read within Guard.
func Map(f *os.File, n int) ([]byte, error) {
	return syscall.Mmap(int(f.Fd()), 0, n, syscall.PROT_READ, syscall.MAP_SHARED)
}

// Unmap ends a mapping.
func Unmap(data []byte) error { return syscall.Munmap(data) }
