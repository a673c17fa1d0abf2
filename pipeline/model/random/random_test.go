package random_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
)

// TestWrite demands a checkpoint of the configuration, the same for the same seed.
func TestWrite(t *testing.T) {
	var ids []model.Identity
	for _, seed := range []uint64{1, 1, 2} {
		c := random.Config(0, 128, 4, 4)
		c.Hidden, c.Window, c.Eps = 128, 32, 1e-5
		dir := t.TempDir()
		require.NoError(t, random.Write(dir, c, seed))
		got, err := model.Open(dir, model.CheckpointOptions{})
		require.NoError(t, err)
		got.Config.Quantization = c.Quantization
		assert.Equal(t, c, got.Config)
		id, err := got.Layers[2].Identity()
		require.NoError(t, err)
		ids = append(ids, id)
		require.NoError(t, got.Close())
	}
	assert.Equal(t, ids[0], ids[1])
	assert.NotEqual(t, ids[0], ids[2])
	assert.ErrorIs(t, random.Write(t.TempDir(), model.Config{}, 1), model.ErrConfig)
	assert.ErrorIs(t, random.Write("/does/not/exist", random.Config(), 1), os.ErrNotExist)
}

// A checkpoint of DeepSeek-V4.1 is read as what it was made of.
func TestWriteV41(t *testing.T) {
	c, dir := random.V41Config(), t.TempDir()
	require.NoError(t, random.Write(dir, c, 1))
	got, err := model.Open(dir, model.CheckpointOptions{})
	require.NoError(t, err)
	defer got.Close()
	got.Config.Quantization = c.Quantization
	assert.Equal(t, c, got.Config)
	assert.Len(t, got.Layers, len(c.Layers))
}

// A checkpoint for a server's tests.
func ExampleWrite() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := random.Write(dir, random.Config(0, 4), 1); err != nil {
		fmt.Println(err)
		return
	}
	c, err := model.Open(dir, model.CheckpointOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println(len(c.Layers), "layers,", c.Config.Hidden, "wide")
	// Output: 2 layers, 192 wide
}
