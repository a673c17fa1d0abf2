package model

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/server/gpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// forcedGPU is forced for the form that has everything on the device.
func (r *recorded) forcedGPU(t *testing.T, run string) (logits [][]float32, inputs [][][]float32) {
	t.Helper()
	dev, T := testkit.Device(t), len(r.tokens)
	w, err := weights.Open(r.dir)
	require.NoError(t, err)
	defer w.Close()
	g, err := gpu.New(t.Context(), dev, w, gpu.Options{MaxStep: T})
	require.NoError(t, err)
	defer g.Close()
	made := func(dt tensor.DType, shape ...int) tensor.Tensor {
		x, err := tensor.New(dev, "forced", dt, shape...)
		require.NoError(t, err)
		t.Cleanup(func() { x.Close() })
		return x
	}
	at := pipeline.Between{Tokens: T, Input: made(tensor.BF16, T, r.d), Output: made(tensor.BF16, T, r.d), QueryStart: made(tensor.I32, 2)}
	require.NoError(t, at.QueryStart.Upload(t.Context(), binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(T))))
	rows := make([]int32, T)
	for i := range rows {
		rows[i] = int32(i)
	}
	require.NoError(t, g.Set(rows, r.tokens, r.wanted()))
	for at.Layer = range len(w.Layers) + 1 {
		record(t, dev, func(rec *vk.Recorder) error { return g.Between(rec, at) })
		if at.Layer == len(w.Layers) {
			break
		}
		data := make([]byte, at.Input.Bytes())
		require.NoError(t, at.Input.Download(t.Context(), data))
		list := make([][]float32, T)
		for i := range T * r.d {
			list[i/r.d] = append(list[i/r.d], math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:]))<<16))
		}
		inputs = append(inputs, list)
		for i, v := range r.rows(t, layerName(run, at.Layer, "out")) {
			binary.LittleEndian.PutUint16(data[2*i:], numfmt.BF16Encode(v))
		}
		require.NoError(t, at.Output.Upload(t.Context(), data))
	}
	return g.Logits(len(r.wanted())), inputs
}

// record records something and runs it.
func record(t *testing.T, dev *vk.Device, f func(rec *vk.Recorder) error) {
	t.Helper()
	rec, err := dev.NewRecorder()
	require.NoError(t, err)
	defer rec.Close()
	require.NoError(t, f(rec))
	c, err := rec.End()
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Run(t.Context()))
}
