package model_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestTensors reads tensors that are not attention's, and what is wrong with files.
func TestTensors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, safetensors.SingleName)
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(f,
		safetensors.Tensor{Name: "layers.0.ffn.experts.0.w1.weight", DType: safetensors.I8, Shape: []int{2, 3}, Data: []byte{1, 2, 3, 4, 5, 6}},
		safetensors.Tensor{Name: "embed.weight", DType: safetensors.BF16, Shape: []int{1, 1}, Data: []byte{7, 8}}))
	require.NoError(t, f.Close())
	c, err := model.OpenTensors(dir, "")
	require.NoError(t, err)
	assert.Equal(t, []string{"embed.weight", "layers.0.ffn.experts.0.w1.weight"}, c.Names())
	x, err := c.Tensor("layers.0.ffn.experts.0.w1.weight")
	require.NoError(t, err)
	assert.Equal(t, model.Tensor{Name: "layers.0.ffn.experts.0.w1.weight", File: safetensors.SingleName,
		DType: "I8", Shape: []int{2, 3}, Data: []byte{1, 2, 3, 4, 5, 6}}, x)
	_, err = c.Tensor("head.weight")
	assert.ErrorIs(t, err, model.ErrCheckpoint)
	own := errors.New("f's own")
	assert.ErrorIs(t, c.Read(func() error { return own }), own)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err = c.Tensor("embed.weight")
	assert.Error(t, err, "closed")

	require.NoError(t, os.WriteFile(path, []byte("not a checkpoint"), 0o600))
	_, err = model.OpenTensors(dir, "")
	assert.ErrorIs(t, err, model.ErrCheckpoint)
	_, err = model.OpenTensors(t.TempDir(), "")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
