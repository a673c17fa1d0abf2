//go:build unix

package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// What the outputs are written to stays what it is: a mode, a link, a pipe.
func TestReplaceFile(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(text string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}
	}
	replace := func(name, text string) {
		t.Helper()
		if err := replaceFile(at(name), put(text)); err != nil {
			t.Error(err)
		}
	}
	want := func(name, text string, mode os.FileMode) {
		t.Helper()
		data, err := os.ReadFile(at(name))
		st, e := os.Stat(at(name))
		if err != nil || e != nil || string(data) != text || st.Mode() != mode {
			t.Errorf("%s: %q, %v, %v, %v, want %q, %v", name, data, st.Mode(), err, e, text, mode)
		}
	}
	replace("a", "one")
	want("a", "one", 0o640) // the umask's
	if err := errors.Join(os.Chmod(at("a"), 0o604), os.Symlink("a", at("link")), os.Symlink("none", at("loose")), syscall.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	replace("link", "two")
	want("a", "two", 0o604)
	if st, err := os.Lstat(at("link")); err != nil || st.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link: %v, %v", st.Mode(), err)
	}
	failed := errors.New("failed")
	if err := replaceFile(at("a"), func(w io.Writer) error { return errors.Join(put("three")(w), failed) }); !errors.Is(err, failed) {
		t.Error(err)
	}
	want("a", "two", 0o604)
	if err := replaceFile(at("loose"), put("four")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to nothing: %v", err)
	}

	if err := replaceFile(at("pipe"), put("five")); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("a pipe without a reader: %v", err)
	}
	reader, err := os.OpenFile(at("pipe"), os.O_RDWR, 0) // does not wait for a writer
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	replace("pipe", "five")
	st, err := os.Lstat(at("pipe"))
	if err != nil || st.Mode().Type() != fs.ModeNamedPipe {
		t.Fatalf("the pipe: %v, %v", st.Mode(), err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != "five" {
		t.Errorf("from the pipe: %q, %v", got, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 4 {
		t.Errorf("files were left: %v, %v", list, err)
	}
}
