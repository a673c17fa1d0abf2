package prefix_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// disk mounts a small disk, where the process may.
func disk(t *testing.T) (dir string, readOnly func()) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no disk can be mounted here: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, 0)) })
	return dir, func() {
		require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=64k"))
	}
}

// TestFullDisk puts more than a disk holds: what was used last is there, though the limit is far.
func TestFullDisk(t *testing.T) {
	dir, _ := disk(t)
	f, ctx, object := folder(t, dir), t.Context(), make([]byte, 12<<10)
	for i := range 20 {
		require.NoError(t, f.Put(ctx, name(i), object), "object %d", i)
		old := time.Now().Add(time.Duration(i-100) * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, name(i)), old, old))
	}
	there, err := f.Has(ctx, name(19))
	require.NoError(t, err)
	assert.True(t, there)
	there, err = f.Has(ctx, name(0))
	require.NoError(t, err)
	assert.False(t, there)
	assert.ErrorIs(t, f.Put(ctx, name(20), make([]byte, 1<<20)), syscall.ENOSPC, "no disk has room for it")
}

// TestReadOnlyDisk reads what is there and keeps nothing.
func TestReadOnlyDisk(t *testing.T) {
	dir, readOnly := disk(t)
	ctx := t.Context()
	require.NoError(t, folder(t, dir).Put(ctx, name(1), []byte("one")))
	readOnly()
	f := folder(t, dir)
	assert.ErrorIs(t, f.ReadOnly(), syscall.EROFS)
	data, err := f.Get(ctx, name(1), 3)
	require.NoError(t, err)
	assert.Equal(t, "one", string(data))
	require.NoError(t, f.Put(ctx, name(2), []byte("two")))
	there, err := f.Has(ctx, name(2))
	require.NoError(t, err)
	assert.False(t, there)
}
