// Package files reads files that may come from anybody: only regular ones, none beyond a size that
// the caller says, and JSON only within bounds that are checked before anything is made of it. It
// writes files that are there as a whole or not at all.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrLarge is wrapped by errors about files that are larger than the caller allows.
var ErrLarge = errors.New("too large")

// Regular opens a regular file, or a link to one. With a pipe or a device already opening could
// block, and reading never end.
//
// The error is fs.ErrInvalid for anything else, or the file system's.
func Regular(path string) (*os.File, fs.FileInfo, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, nil, irregular(path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a pipe since
	if err != nil {
		return nil, nil, err
	}
	st, err = f.Stat() // of the opened file, not of the name
	if err == nil && !st.Mode().IsRegular() {
		err = irregular(path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

func irregular(path string) error {
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("not a regular file: %w", fs.ErrInvalid)}
}

// Read reads a regular file of at most `most` bytes into memory of its size.
//
// The error wraps ErrLarge for a larger one, io.ErrUnexpectedEOF for one that changed meanwhile, or
// is that of Regular.
func Read(path string, most int64) ([]byte, error) {
	f, st, err := Regular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size() > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%d bytes, want at most %d: %w", st.Size(), most, ErrLarge)}
	}
	data := make([]byte, st.Size())
	if _, err = io.ReadFull(f, data); err == nil {
		if n, _ := f.Read(make([]byte, 1)); n > 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}
