package prefix_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/vk"
)

func name(i int) string { return fmt.Sprintf("%064x", i) }

// TestFolder keeps files, and takes nothing for an object that is none.
func TestFolder(t *testing.T) {
	dir, ctx := filepath.Join(t.TempDir(), "a", "b"), t.Context()
	f := folder(t, dir)
	_, err := f.Get(ctx, name(1), 10)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	there, err := f.Has(ctx, name(1))
	require.NoError(t, err)
	assert.False(t, there)
	require.NoError(t, f.Put(ctx, name(1), []byte("one")))
	require.NoError(t, f.Put(ctx, name(1), []byte("two")))
	data, err := folder(t, dir).Get(ctx, name(1), 3)
	require.NoError(t, err)
	assert.Equal(t, "two", string(data))
	_, err = f.Get(ctx, name(1), 2)
	assert.ErrorIs(t, err, prefix.ErrDamaged)
	there, err = f.Has(ctx, name(1))
	require.NoError(t, err)
	assert.True(t, there)

	require.NoError(t, os.Mkdir(filepath.Join(dir, name(2)), 0o700))
	_, err = f.Get(ctx, name(2), 10)
	assert.ErrorIs(t, err, prefix.ErrDamaged)
	assert.ErrorIs(t, f.Put(ctx, name(2), nil), fs.ErrInvalid)
	upper := strings.ToUpper(name(0xabc))
	for _, bad := range []string{"", "..", "../" + name(1)[3:], upper, name(1) + "0", name(1)[1:] + "/"} {
		_, err := f.Get(ctx, bad, 10)
		assert.ErrorIs(t, err, vk.ErrArgument, bad)
		assert.ErrorIs(t, f.Put(ctx, bad, nil), vk.ErrArgument, bad)
		_, err = f.Has(ctx, bad)
		assert.ErrorIs(t, err, vk.ErrArgument, bad)
	}
	_, err = prefix.OpenFolder(dir, -1)
	assert.ErrorIs(t, err, vk.ErrArgument)
	file := filepath.Join(dir, name(1))
	_, err = prefix.OpenFolder(file, 0)
	assert.Error(t, err, "a file for a folder")
}

// TestFolderLimit holds the limit: what was used last stays, and strangers' files do.
func TestFolderLimit(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	stranger := filepath.Join(dir, "stranger")
	left, fresh := filepath.Join(dir, "."+name(7)+".0.tmp"), filepath.Join(dir, "."+name(12)+".0.tmp")
	for _, path := range []string{stranger, left, fresh} {
		require.NoError(t, os.WriteFile(path, make([]byte, 100), 0o600))
	}
	then := time.Now().Add(-24 * time.Hour)
	require.NoError(t, errors.Join(os.Chtimes(left, then, then), os.Chtimes(stranger, then, then)))
	f := testkit.Must[*prefix.Folder](t)(prefix.OpenFolder(dir, 10_000))
	object := make([]byte, 1000)
	for i := range 9 {
		require.NoError(t, f.Put(ctx, name(i), object))
		old := then.Add(time.Duration(i) * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, name(i)), old, old))
	}
	_, err := f.Get(ctx, name(0), 1000) // is used now
	require.NoError(t, err)
	require.NoError(t, f.Put(ctx, name(9), object))
	for i := range 10 {
		there, err := f.Has(ctx, name(i))
		require.NoError(t, err)
		assert.Equal(t, i != 1, there, "object %d", i)
	}
	assert.FileExists(t, stranger)
	assert.FileExists(t, fresh, "somebody may write it")
	assert.NoFileExists(t, left)
	assert.ErrorContains(t, f.Put(ctx, name(10), make([]byte, 10_001)), "10001 bytes")

	// Another process with a lower limit.
	require.NoError(t, testkit.Must[*prefix.Folder](t)(prefix.OpenFolder(dir, 3000)).Put(ctx, name(11), object))
	sum := int64(0)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range list {
		st, err := e.Info()
		require.NoError(t, err)
		sum += st.Size()
	}
	assert.LessOrEqual(t, sum, int64(3000+100), "the stranger's 100 too")
}

// TestFolderAtOnce lets several write and read the same objects, as processes do.
func TestFolderAtOnce(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file that somebody reads cannot be replaced there")
	}
	dir := t.TempDir()
	var group sync.WaitGroup
	for range 4 {
		f := testkit.Must[*prefix.Folder](t)(prefix.OpenFolder(dir, 40_000))
		group.Go(func() {
			for i := range 60 {
				n := name(i % 7)
				want := bytes.Repeat([]byte{byte(i % 7)}, 9000)
				if !assert.NoError(t, f.Put(t.Context(), n, want)) {
					return
				}
				data, err := f.Get(t.Context(), n, 9000)
				if !errors.Is(err, fs.ErrNotExist) { // another one may have needed the room
					assert.NoError(t, err)
					assert.True(t, bytes.Equal(want, data), "%d bytes", len(data))
				}
			}
		})
	}
	group.Wait()
}
