package blob_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/pipeline/prefix/blob"
)

func name(i int) string { return fmt.Sprintf("%064x", i) }

// TestStores does with buckets of each kind what a keeper does. scripts/test store starts an S3
// server and names a bucket of it.
func TestStores(t *testing.T) {
	files, err := fileblob.OpenBucket(t.TempDir(), &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	require.NoError(t, err)
	stores := map[string]*blob.Store{"memory": blob.New(memblob.OpenBucket(nil)), "files": blob.New(files)}
	if url := os.Getenv("VKMLA_TEST_BUCKET"); url != "" {
		stores["bucket"], err = blob.Open(t.Context(), url)
		require.NoError(t, err)
	}
	for kind, s := range stores {
		t.Run(kind, func(t *testing.T) { store(t, s) })
		require.NoError(t, s.Close())
	}
}

func store(t *testing.T, s prefix.Store) {
	ctx := t.Context()
	absent := name(1 << 20)
	_, err := s.Get(ctx, absent, 10)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	there, err := s.Has(ctx, absent)
	require.NoError(t, err)
	assert.False(t, there)
	for _, n := range []int{0, 1, 600_000, 6_000_000} { // the last one in several parts, where a driver has them
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * i >> 3)
		}
		require.NoError(t, s.Put(ctx, name(n), data))
		require.NoError(t, s.Put(ctx, name(n), data))
		there, err := s.Has(ctx, name(n))
		require.NoError(t, err)
		assert.True(t, there)
		got, err := s.Get(ctx, name(n), n)
		require.NoError(t, err)
		assert.True(t, string(data) == string(got), "%d bytes, want %d", len(got), n)
		if n > 0 {
			_, err = s.Get(ctx, name(n), n-1)
			assert.ErrorIs(t, err, prefix.ErrDamaged)
		}
	}
	left, leave := context.WithCancel(ctx)
	leave()
	_, err = s.Get(left, name(1), 10)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, s.Put(left, name(5), []byte("late")), context.Canceled)
	_, err = s.Has(left, name(1))
	assert.ErrorIs(t, err, context.Canceled)
	there, err = s.Has(ctx, name(5))
	require.NoError(t, err)
	assert.False(t, there, "an object whose writer left")
}

// TestNone holds that nothing panics without a bucket.
func TestNone(t *testing.T) {
	for _, s := range []*blob.Store{nil, {}, blob.New(nil)} {
		_, err := s.Get(t.Context(), name(1), 1)
		assert.Error(t, err)
		_, err = s.Has(t.Context(), name(1))
		assert.Error(t, err)
		assert.Error(t, s.Put(t.Context(), name(1), nil))
		assert.NoError(t, s.Close())
	}
	_, err := blob.Open(t.Context(), "nowhere://x")
	assert.Error(t, err)
}
