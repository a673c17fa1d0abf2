//go:build unix

package safetensors_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	st "github.com/vkmla/vkmla/internal/safetensors"
)

// A pipe that nobody writes to is refused and not waited for.
func TestPipes(t *testing.T) {
	for _, name := range []string{st.SingleName, st.IndexName} {
		dir := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Skip(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := st.OpenModel(dir)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: still waiting", name)
		}
	}
}
