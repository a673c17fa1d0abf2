package gguf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/files"
)

// ErrSeveral is wrapped by the error about a folder with more than one model.
var ErrSeveral = errors.New("name a file of the folder")

// maxEntries bounds the files of a folder that are looked at.
const maxEntries = 4096

// Find returns the GGUF file that a path means: itself, or the one of a folder, unless that has a
// model in safetensors. Of a model in parts that is the first. It is "" where there is none. A path
// that ends in .gguf and is not there is itself.
//
// The error wraps ErrSeveral.
func Find(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		if strings.HasSuffix(path, ".gguf") {
			return path, nil // Open says that it is not there
		}
		return "", nil // the caller's own opening says what is wrong
	}
	if !st.IsDir() {
		if begins(path) {
			return path, nil
		}
		return "", nil
	}
	for _, name := range []string{"model.safetensors", "model.safetensors.index.json"} {
		if _, err := os.Stat(filepath.Join(path, name)); !errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return "", nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxEntries)
	var found []string
	for _, name := range names {
		n := part.FindStringSubmatch(name)
		if strings.HasSuffix(name, ".gguf") && (n == nil || n[2] == "00001") && begins(filepath.Join(path, name)) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return filepath.Join(path, found[0]), nil
	}
	return "", fmt.Errorf("gguf: find: %d GGUF files, such as %.200q and %.200q: %w", len(found), found[0], found[1], ErrSeveral)
}

// begins reports whether a file begins as GGUF does.
func begins(path string) bool {
	f, _, err := files.Regular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && string(magic[:]) == "GGUF"
}
