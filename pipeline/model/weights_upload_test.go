package model_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func same(t *testing.T, name string, got tensor.Tensor, want model.Blob) {
	t.Helper()
	if want.Size() == 0 {
		if !got.IsZero() {
			t.Errorf("%s: %v where nothing is needed", name, got)
		}
		return
	}
	data := make([]byte, got.Bytes())
	if err := got.Download(context.Background(), data); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, must[[]byte](t)(want.Bytes())) {
		t.Errorf("%s: %v differs", name, got)
	}
}

func TestUpload(t *testing.T) {
	dev := testkit.Device(t)
	for _, s := range []fakemodel.Storage{fakemodel.BF16, fakemodel.FP8, fakemodel.FP8BF16, fakemodel.NVFP4} {
		cfg := fakemodel.Config(4, 1)
		cfg.Heads = 128 // so that wq_b is brought in several pieces
		c, err := openFake(t, fake(t, fakemodel.Options{Config: cfg, Storage: s}), 3, model.CheckpointOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var last int64
		layers, err := c.Upload(context.Background(), dev, func(done, total int64) {
			if total != c.Bytes() || done <= last || done > total {
				t.Errorf("progress %d of %d after %d", done, total, last)
			}
			last = done
		})
		if err != nil || last != c.Bytes() || len(layers) != 2 {
			t.Fatal(len(layers), last, err)
		}
		for i, d := range layers {
			w := &c.Layers[i]
			if d.Layer != i || w.Layer != i {
				t.Errorf("layer %d", d.Layer)
			}
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
				if g.Format != m.Format || g.N != m.N || g.K != m.K || g.Global != m.Global || g.ScaleF32 != m.ScaleF32 {
					t.Errorf("%s: %+v", m.Name, g)
				}
				same(t, m.Name, g.Data, m.Data)
				same(t, m.Name, g.Scales, m.Scales)
			}
			for j, v := range w.Vectors() {
				same(t, v.Name, vectors[j], v.Data)
				if vectors[j].DType != v.DType {
					t.Errorf("%s: %v", v.Name, vectors[j])
				}
			}
			if err := errors.Join(d.Close(), d.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}

// A cancelled upload, or one that runs out of memory, leaves nothing allocated: the test kit fails
// the test otherwise.
func TestUploadEnds(t *testing.T) {
	dev := testkit.Device(t)
	c, err := openFake(t, fake(t, fakemodel.Options{}), 1, model.CheckpointOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
		if layers != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled after %d: %v, %v", after, layers, err)
		}
		stop()
	}
	if _, err := c.Upload(context.Background(), nil, nil); !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
	if _, err := model.Upload(context.Background(), dev, make([]model.LayerWeights, 1), nil); !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
}
