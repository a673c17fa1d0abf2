//go:build unix

package safetensors_test

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	st "github.com/vkmla/vkmla/internal/safetensors"
)

// A pipe without a writer is refused and not waited for.
func TestPipes(t *testing.T) {
	for _, name := range []string{st.SingleName, st.IndexName} {
		dir := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Skip(err)
		}
		_, err := st.Open(dir, st.All)
		assert.ErrorIs(t, err, fs.ErrInvalid, name)
	}
}
