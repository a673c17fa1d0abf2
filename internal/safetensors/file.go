package safetensors

import (
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/files"
)

// File is an open file. It may be used by several goroutines, but for Close.
type File struct {
	Tensors map[string]Tensor
	data    []byte
}

// open maps a file and reads its header. Whoever opens it closes it.
//
// Errors wrap ErrFormat, or are the file system's.
func open(path string, p Part) (*File, error) {
	f, st, err := files.Regular(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: open: %w", err)
	}
	defer f.Close()
	if st.Size() < 8 || st.Size() > math.MaxInt {
		return nil, fmt.Errorf("safetensors: open: %s: %d bytes: %w", path, st.Size(), ErrFormat)
	}
	data, err := files.Map(f, int(st.Size()))
	if err != nil {
		return nil, fmt.Errorf("safetensors: open: %s: %w", path, err)
	}
	file := &File{data: data}
	err = Guard(func() (err error) {
		if files.IsPointer(data) {
			return ErrPointer
		}
		file.Tensors, err = parse(data, p)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return file, nil
}

// Close ends the mapping, and with it the tensors' Data. Closing twice is allowed.
func (f *File) Close() error {
	data := f.data
	f.data, f.Tensors = nil, nil
	if data == nil {
		return nil
	}
	if err := files.Unmap(data); err != nil {
		return fmt.Errorf("safetensors: close: %w", err)
	}
	return nil
}
