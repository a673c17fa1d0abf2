package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// inGGUF makes names of GGUF of released ones, the longer first.
var inGGUF = strings.NewReplacer("layers.", "blk.", "attn.indexer.compressor.wkv", "indexer_compressor_kv",
	"attn.indexer.compressor.wgate", "indexer_compressor_gate", "attn.indexer.compressor.ape", "indexer_compressor_ape.weight",
	"attn.indexer.compressor.norm", "indexer_compressor_norm", "attn.indexer.wq_b", "indexer.attn_q_b",
	"attn.indexer.weights_proj", "indexer.proj", "attn.compressor.wkv", "attn_compressor_kv",
	"attn.compressor.wgate", "attn_compressor_gate", "attn.compressor.ape", "attn_compressor_ape.weight",
	"attn.compressor.norm", "attn_compressor_norm", "attn.wq_a", "attn_q_a", "attn.q_norm", "attn_q_a_norm", "attn.wq_b", "attn_q_b",
	"attn.wkv", "attn_kv", "attn.kv_norm", "attn_kv_a_norm", "attn.wo_a", "attn_output_a", "attn.wo_b", "attn_output_b",
	"attn.attn_sink", "attn_sinks.weight")

// A GGUF file gives the outputs of a folder with the same weights, bit for bit.
func TestRunGGUF(t *testing.T) {
	folder, inputs := runFiles(t)
	cfg := fakemodel.Config(0, 4)
	tensors := fakegguf.Attention(cfg, 7, func(name string) string {
		switch {
		case strings.HasSuffix(name, "norm.weight") || name == "attn_sinks.weight":
			return "F32"
		case name == "attn_output_a.weight":
			return "Q4_0" // beside Q5_0
		}
		return "Q5_0"
	})
	file := filepath.Join(t.TempDir(), "a.gguf")
	require.NoError(t, os.WriteFile(file, fakegguf.Encode(fakegguf.Keys(cfg), tensors), 0o666))
	values := map[string][]float32{}
	for _, x := range tensors {
		f := gguf.FormatNamed(x.Format)
		values[x.Name] = make([]float32, len(x.Data)/f.Bytes*f.Values)
		f.Decode(values[x.Name], x.Data)
	}
	m := fakemodel.New(fakemodel.Options{Config: cfg, Weights: func(name string, _ []int) []float32 {
		if name == "embed.weight" {
			return nil
		}
		require.Contains(t, values, inGGUF.Replace(name))
		return values[inGGUF.Replace(name)]
	}})
	require.NoError(t, m.Write(folder, 1))

	outputs := func(model string) (vectors.Arrays, string) {
		path := filepath.Join(t.TempDir(), "out.npz")
		code, _, stderr := command("run", "--model", model, "--inputs", inputs, "--outputs", path, "--layers", "0,1")
		require.Equal(t, exitOK, code, stderr)
		return readArrays(t, path), stderr
	}
	want, said := outputs(folder)
	assert.Empty(t, said)
	got, said := outputs(file)
	assert.Equal(t, want, got)
	assert.Contains(t, said, "linear layers of Q4_0, Q5_0 are kept as bf16")
}

// Layers of a file that llama.cpp's converter would write are those of a float64 model.
func TestRunRecordedGGUF(t *testing.T) {
	dir := testkit.GGUF(t)
	layers := filepath.Join(dir, "layers_q8_0-mxfp4.npz")
	code, stdout, stderr := command("run", "--model", filepath.Join(dir, "model-q8_0-mxfp4.gguf"), "--inputs", layers, "--expect", layers)
	require.Equal(t, exitOK, code, stderr)
	assert.Contains(t, stdout, "6 passed, 0 failed, 0 skipped, 0 missing")
}
