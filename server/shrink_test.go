package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShrinkingModel shortens the file of the weights while it is served from: requests get an
// error, and the server lives. Once the file is as it was, it answers again.
func TestShrinkingModel(t *testing.T) {
	dir, _ := whole(t)
	list, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	file := list[0]
	n := start(t, "--model", dir, "--warm=false")
	before, _ := n.complete([]int32{1, 2, 3}, 2)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(file, 5000))
	status := func() int {
		r, err := http.Get(n.url + "/healthz")
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		return r.StatusCode
	}
	assert.Equal(t, http.StatusServiceUnavailable, status(), "no load should come here")
	for range 2 {
		r, err := http.Post(n.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt": [4, 5], "max_tokens": 2}`))
		require.NoError(t, err)
		assert.Equal(t, http.StatusInternalServerError, r.StatusCode)
		require.NoError(t, r.Body.Close())
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(file, time.Now(), info.ModTime()))
	assert.Equal(t, http.StatusOK, status())
	after, _ := n.complete([]int32{1, 2, 3}, 2)
	assert.Equal(t, before, after)
}
