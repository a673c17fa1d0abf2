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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		assert.NoError(t, replaceFile(at(name), put(text)))
	}
	want := func(name, text string, mode os.FileMode) {
		t.Helper()
		data, err := os.ReadFile(at(name))
		st, e := os.Stat(at(name))
		require.NoError(t, err, "%s: %q, %v, %v, want %q, %v", name, data, st.Mode(), e, text, mode)
		assert.True(t, e == nil && string(data) == text && st.Mode() == mode,
			"%s: %q, %v, %v, want %q, %v", name, data, st.Mode(), e, text, mode)
	}
	replace("a", "one")
	want("a", "one", 0o640) // the umask's
	require.NoError(t, errors.Join(os.Chmod(at("a"), 0o604), os.Symlink("a", at("link")),
		os.Symlink("none", at("loose")), syscall.Mkfifo(at("pipe"), 0o600)))
	replace("link", "two")
	want("a", "two", 0o604)
	st, err := os.Lstat(at("link"))
	assert.NoError(t, err, "the link: %v", st.Mode())
	assert.Equal(t, fs.ModeSymlink, st.Mode().Type(), "the link: %v", st.Mode())
	failed := errors.New("failed")
	assert.ErrorIs(t, replaceFile(at("a"), func(w io.Writer) error { return errors.Join(put("three")(w), failed) }), failed)
	want("a", "two", 0o604)
	assert.ErrorIs(t, replaceFile(at("loose"), put("four")), fs.ErrNotExist, "a link to nothing")

	assert.ErrorIs(t, replaceFile(at("pipe"), put("five")), syscall.ENXIO, "a pipe without a reader")
	reader, err := os.OpenFile(at("pipe"), os.O_RDWR, 0) // does not wait for a writer
	require.NoError(t, err)
	defer reader.Close()
	replace("pipe", "five")
	st, err = os.Lstat(at("pipe"))
	require.NoError(t, err, "the pipe: %v", st.Mode())
	require.Equal(t, fs.ModeNamedPipe, st.Mode().Type(), "the pipe: %v", st.Mode())
	got := make([]byte, 4)
	_, err = io.ReadFull(reader, got)
	assert.NoError(t, err, "from the pipe")
	assert.Equal(t, "five", string(got), "from the pipe")
	list, err := os.ReadDir(dir)
	assert.NoError(t, err, "files were left")
	assert.Len(t, list, 4, "files were left")
}
