package testkit

import (
	"os"
	"testing"
)

// MemoryDir returns an empty folder for a test's files, in memory where the system has such a
// place.
func MemoryDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "vkmla-test-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
