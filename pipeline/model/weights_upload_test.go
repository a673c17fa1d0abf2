package model_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func same(t *testing.T, name string, got tensor.Tensor, want model.Blob) {
	t.Helper()
	if want.Size() == 0 {
		assert.True(t, got.IsZero(), "%s: %v where nothing is needed", name, got)
		return
	}
	data := make([]byte, got.Bytes())
	require.NoError(t, got.Download(context.Background(), data))
	assert.True(t, bytes.Equal(data, must[[]byte](t)(want.Bytes())), "%s: %v differs", name, got)
}

func TestUpload(t *testing.T) {
	dev := testkit.Device(t)
	for _, s := range []fakemodel.Storage{fakemodel.BF16, fakemodel.FP8, fakemodel.FP8BF16, fakemodel.FP8Rows, fakemodel.NVFP4} {
		cfg := fakemodel.Config(4, 1)
		cfg.Heads = 128 // so that wq_b is brought in several pieces
		c, err := openFake(t, fake(t, fakemodel.Options{Config: cfg, Storage: s}), 3, model.CheckpointOptions{})
		require.NoError(t, err)
		var last int64
		layers, err := c.Upload(context.Background(), dev, func(done, total int64) {
			assert.Equal(t, c.Bytes(), total, "progress %d of %d after %d", done, total, last)
			assert.Greater(t, done, last, "progress %d of %d after %d", done, total, last)
			assert.LessOrEqual(t, done, total, "progress %d of %d after %d", done, total, last)
			last = done
		})
		require.NoError(t, err)
		require.Equal(t, c.Bytes(), last)
		require.Len(t, layers, 2)
		for i, d := range layers {
			w := &c.Layers[i]
			assert.Equal(t, i, d.Layer)
			assert.Equal(t, i, w.Layer)
			matrices := []model.DeviceMatrix{d.QKV, d.QB, d.OA, d.OB}
			vectors := []tensor.Tensor{d.QNorm, d.KVNorm, d.Sink}
			if x := d.Compressor; x != nil {
				matrices, vectors = append(matrices, x.KVGate), append(vectors, x.Ape, x.Norm)
			}
			if x := d.Indexer; x != nil {
				matrices = append(matrices, x.QB, x.Weights, x.Compressor.KVGate)
				vectors = append(vectors, x.Compressor.Ape, x.Compressor.Norm)
			}
			for j, m := range w.Matrices() {
				g := matrices[j]
				assert.True(t, g.Format == m.Format && g.N == m.N && g.K == m.K && g.Global == m.Global, "%s: %+v", m.Name, g)
				same(t, m.Name, g.Data, m.Data)
				same(t, m.Name, g.Scales, m.Scales)
				same(t, m.Name, g.RowScales, m.RowScales)
			}
			for j, v := range w.Vectors() {
				same(t, v.Name, vectors[j], v.Data)
				assert.Equal(t, v.DType, vectors[j].DType, "%s: %v", v.Name, vectors[j])
			}
			assert.NoError(t, errors.Join(d.Close(), d.Close()))
		}
	}
}

// A cancelled upload, or one that runs out of memory, leaves nothing allocated: the test kit fails
// the test otherwise.
func TestUploadEnds(t *testing.T) {
	dev := testkit.Device(t)
	c, err := openFake(t, fake(t, fakemodel.Options{}), 1, model.CheckpointOptions{})
	require.NoError(t, err)
	for _, after := range []int64{0, 1, c.Bytes() / 2} {
		ctx, stop := context.WithCancel(context.Background())
		if after == 0 {
			stop()
		}
		layers, err := c.Upload(ctx, dev, func(done, _ int64) {
			if done >= after {
				stop()
			}
		})
		assert.Nil(t, layers, "cancelled after %d", after)
		assert.ErrorIs(t, err, context.Canceled, "cancelled after %d", after)
		stop()
	}
	_, err = c.Upload(context.Background(), nil, nil)
	assert.ErrorIs(t, err, vk.ErrArgument)
	_, err = model.Upload(context.Background(), dev, make([]model.LayerWeights, 1), nil)
	assert.ErrorIs(t, err, vk.ErrArgument)
}

// TestUploadFinite refuses a weight, or a scale of Q8_0, that is infinite or none, by the name of
// its tensor and its place: kernels would make finite wrong numbers of it.
func TestUploadFinite(t *testing.T) {
	refused := func(c *model.Checkpoint, want string) {
		t.Helper()
		_, err := c.Upload(t.Context(), testkit.Device(t), nil)
		require.ErrorIs(t, err, model.ErrCheckpoint)
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "want finite numbers")
	}
	for want, x := range map[string]struct {
		storage fakemodel.Storage
		bits    []byte
	}{
		"the bits 7fc0 at [0 3]": {fakemodel.BF16, []byte{0xC0, 0x7F}},
		"the bits ff80 at [0 3]": {fakemodel.BF16, []byte{0x80, 0xFF}},
		"the bits 7f at [0 3]":   {fakemodel.FP8, []byte{0x7F}},
	} {
		const name = "layers.0.attn.wq_b.weight"
		m := fake(t, fakemodel.Options{Storage: x.storage})
		copy(m.Find(name).Data[3*len(x.bits):], x.bits)
		c, err := openFake(t, m, 1, model.CheckpointOptions{})
		require.NoError(t, err)
		refused(c, name+": got "+want)
	}
	cfg := fakemodel.Config(0, 4, 128)
	for _, bits := range []uint16{0x7E00, 0xFC00} { // NaN and infinity
		tensors := fakegguf.Attention(cfg, 5, stored("Q8_0"))
		at := slices.IndexFunc(tensors, func(x fakegguf.Tensor) bool { return x.Name == "blk.0.attn_q_b.weight" })
		binary.LittleEndian.PutUint16(tensors[at].Data[34*5:], bits)
		c, err := model.Open(writeGGUF(t, fakegguf.Keys(cfg), tensors), model.CheckpointOptions{})
		require.NoError(t, err)
		defer c.Close()
		refused(c, "blk.0.attn_q_b.weight")
	}
}
