//go:build unix

package files

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A pipe without a writer is refused and not waited for.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	_, err := Read(path, 10)
	assert.ErrorIs(t, err, fs.ErrInvalid)
}
