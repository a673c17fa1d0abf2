package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stuckDriver says that it was called, and never returns.
const stuckDriver = `#include <unistd.h>
void *vk_icdGetInstanceProcAddr(void *instance, const char *name) {
	if (write(2, "called", 6) == 6) for (;;) pause();
	return 0;
}
`

// TestStuckDriver holds that a second signal ends a command whose call of a driver does not return,
// which the first cannot.
func TestStuckDriver(t *testing.T) {
	dir := t.TempDir()
	source, library, icd := filepath.Join(dir, "stuck.c"), filepath.Join(dir, "stuck.so"), filepath.Join(dir, "stuck.json")
	require.NoError(t, os.WriteFile(source, []byte(stuckDriver), 0o666))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Skipf("no C compiler: %v: %s", err, out)
	}
	manifest := fmt.Sprintf(`{"file_format_version": "1.0.0", "ICD": {"library_path": %q, "api_version": "1.2.0"}}`, library)
	require.NoError(t, os.WriteFile(icd, []byte(manifest), 0o666))
	self, err := os.Executable()
	require.NoError(t, err)
	for _, name := range []string{"info", "verify"} {
		cmd := exec.Command(self, name)
		cmd.Env = append(os.Environ(), asCommand+"=1", "VK_DRIVER_FILES="+icd, "VK_ICD_FILENAMES="+icd)
		stderr, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		called := make([]byte, 6)
		_, err = io.ReadFull(stderr, called)
		require.NoError(t, err)
		assert.Equal(t, "called", string(called))
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		err = nil
		for err == nil { // until one comes after the first has been heard
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			select {
			case err = <-ended:
				assert.EqualError(t, err, "signal: interrupt", name)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}
