//go:build buckets

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNodesBucket does with a bucket what TestNodes does with a folder. scripts/test store starts
// two nodes of an S3 server that keep objects as files of one folder: a node for each server.
func TestNodesBucket(t *testing.T) {
	bucket, other, data := os.Getenv("VKMLA_TEST_BUCKET"), os.Getenv("VKMLA_TEST_BUCKET_2"), os.Getenv("VKMLA_TEST_BUCKET_DIR")
	if bucket == "" || other == "" || data == "" {
		t.Skip("VKMLA_TEST_BUCKET is not set: no S3 server")
	}
	dir, vocab := whole(t)
	under := strings.ToLower(filepath.Base(t.TempDir())) + t.Name() + "/" // what others kept is not counted
	files := func() []string {
		list, err := filepath.Glob(filepath.Join(data, under, "[0-9a-f]*"))
		require.NoError(t, err)
		return list
	}
	names := [2]string{bucket + "&prefix=" + under, other + "&prefix=" + under}
	nodes(t, dir, vocab, names, func() int { return len(files()) }, func(_ *node, ask func() int) {
		for _, name := range files() {
			st, err := os.Stat(name)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(name, st.Size()/2))
		}
		assert.Zero(t, ask(), "tokens found in a bucket whose objects are cut")
	})
}
