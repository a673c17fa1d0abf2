package weights_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/random"
	"github.com/vkmla/vkmla/server/weights"
)

// examined opens a model and reads all of it. The log says what was read.
func examined(t *testing.T, dir string) (identity, log string, err error) {
	t.Helper()
	m, err := weights.Open(dir)
	require.NoError(t, err)
	defer m.Close()
	var out bytes.Buffer
	err = m.Examine(t.Context(), slog.New(slog.NewTextHandler(&out, nil)))
	return m.Identity(), out.String(), err
}

// tensor finds a stored tensor: its file, and where its bytes begin and end there.
func tensor(t *testing.T, dir, name string) (file string, from, to int64) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	for _, file := range list {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		n := int64(data[0]) | int64(data[1])<<8 | int64(data[2])<<16
		var header map[string]struct {
			Offsets [2]int64 `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(data[8:8+n], &header))
		if x, ok := header[name]; ok {
			return file, 8 + n + x.Offsets[0], 8 + n + x.Offsets[1]
		}
	}
	require.Fail(t, "no tensor "+name)
	return "", 0, 0
}

// change writes to a tensor, and gives its file a time of its own in the past.
func change(t *testing.T, dir, name string, at int64, with []byte) {
	t.Helper()
	file, from, to := tensor(t, dir, name)
	if at < 0 {
		at += to - from
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(with, from+at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	age(t, dir)
}

var aged = time.Now().Add(-time.Hour)

// age makes all files older than any that was made so before.
func age(t *testing.T, dir string) {
	t.Helper()
	aged = aged.Add(time.Second)
	list, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	for _, file := range list {
		require.NoError(t, os.Chtimes(file, aged, aged))
	}
}

// written makes a small model.
func written(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	c, err := random.Config("tiny", 0)
	require.NoError(t, err)
	_, err = random.Write(t.Context(), dir, c, 1)
	require.NoError(t, err)
	age(t, dir)
	return dir
}

// TestIdentity holds that any byte of any tensor has a part in the identity, and that what is kept
// beside the model is taken only for the files that were read.
func TestIdentity(t *testing.T) {
	dir := written(t)
	first, log, err := examined(t, dir)
	require.NoError(t, err)
	assert.Contains(t, log, "read all weights")
	again, log, err := examined(t, dir)
	require.NoError(t, err)
	assert.Equal(t, first, again)
	assert.NotContains(t, log, "read all weights", "the second time")

	if runtime.GOOS == "linux" { // where a change shows though size and time are as they were
		was := aged
		change(t, dir, "embed.weight", 5, []byte{0x3F})
		aged = was.Add(-time.Second)
		age(t, dir)
		_, log, err = examined(t, dir)
		require.NoError(t, err)
		assert.Contains(t, log, "read all weights")
	}

	seen := map[string]bool{first: true}
	for _, at := range []int64{0, 38, -2} {
		change(t, dir, "embed.weight", at, []byte{0x12, 0x3F})
		id, _, err := examined(t, dir)
		require.NoError(t, err)
		assert.False(t, seen[id], "byte %d of the embedding has no part in the identity", at)
		seen[id] = true
	}
	// A file that has just been written may change without a sign of it.
	file, _, _ := tensor(t, dir, "embed.weight")
	now := time.Now()
	require.NoError(t, os.Chtimes(file, now, now))
	for range 2 {
		_, log, err = examined(t, dir)
		require.NoError(t, err)
		assert.Contains(t, log, "read all weights", "of a young file")
	}
}

// TestFinite refuses numbers that are infinite or none, by name and place.
func TestFinite(t *testing.T) {
	for name, x := range map[string]struct {
		tensor string
		at     int64
		bits   []byte
		place  string
	}{
		"NaN":      {"embed.weight", 2 * 3, []byte{0xC0, 0x7F}, "7fc0 at [0 3]"},
		"infinity": {"head.weight", -2, []byte{0x80, 0xFF}, "ff80 at ["},
		"E4M3":     {"layers.0.ffn.shared_experts.w1.weight", 5, []byte{0xFF}, "ff at [0 5]"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t)
			change(t, dir, x.tensor, x.at, x.bits)
			_, _, err := examined(t, dir)
			require.ErrorIs(t, err, model.ErrCheckpoint)
			assert.ErrorContains(t, err, x.tensor)
			assert.ErrorContains(t, err, x.place)
		})
	}
}
