package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// output takes results in one format: standard output as they come, or a file, as a whole at
// the end.
type output struct {
	io.Writer
	format string
	path   string // "" for standard output
	data   *bytes.Buffer
}

// openOutputs are standard output in a format, and files in those of their endings. Files that
// cannot be written are found out before anything runs.
func openOutputs(op string, stdout io.Writer, format string, files, formats []string) ([]*output, error) {
	if !slices.Contains(formats, format) {
		return nil, &vk.ArgumentError{Op: op, Arg: "output", Got: strconv.Quote(format), Want: strings.Join(formats, ", ")}
	}
	list := []*output{{Writer: stdout, format: format}}
	for _, path := range files {
		format := strings.TrimPrefix(filepath.Ext(path), ".")
		if !slices.Contains(formats, format) {
			return nil, &vk.ArgumentError{Op: op, Arg: "save", Got: strconv.Quote(path),
				Want: "a name that ends in ." + strings.Join(formats, ", .")}
		}
		file, err := openFile(op, "save", path, format)
		if err != nil {
			return nil, err
		}
		list = append(list, file)
	}
	return list, nil
}

// openFile returns a file that can be written, which a flag has named.
func openFile(op, flag, path, format string) (*output, error) {
	_, before := os.Stat(path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", op, flag, err)
	}
	f.Close()
	if before != nil {
		os.Remove(path)
	}
	data := &bytes.Buffer{}
	return &output{data, format, path, data}, nil
}

// keep writes a file.
func (o *output) keep() error {
	if o.path == "" {
		return nil
	}
	return replaceFile(o.path, func(w io.Writer) error { _, err := w.Write(o.data.Bytes()); return err })
}
