package model_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// Ways to store weights that are known and not read are named, with file and tensor.
func TestForeignTensors(t *testing.T) {
	const l = "layers.1.attn.wq_b."
	const i8, u8, u32, f32, e8 = safetensors.I8, safetensors.U8, "U32", safetensors.F32, safetensors.F8E8M0
	type add struct {
		name  string
		dtype safetensors.DType
		shape []int
	}
	for name, c := range map[string]struct {
		tensors []add // in the place of wq_b.weight
		tensor  string
		what    string
	}{
		"GPTQ": {[]add{{"qweight", "I32", []int{8, 1024}}, {"qzeros", "I32", []int{1, 128}},
			{"scales", "F16", []int{1, 1024}}, {"g_idx", "I32", []int{64}}}, "qweight", "GPTQ"},
		"AWQ": {[]add{{"qweight", "I32", []int{64, 128}}, {"qzeros", "I32", []int{1, 128}},
			{"scales", "F16", []int{1, 1024}}}, "qweight", "AWQ or GPTQ"},
		"EXL3": {[]add{{"trellis", "I16", []int{4, 64, 64}}, {"suh", "F16", []int{64}}, {"svh", "F16", []int{1024}}}, "trellis", "EXL3"},
		"EXL2": {[]add{{"q_weight", "I32", []int{8, 1024}}, {"q_scale", "I32", []int{1, 128}}}, "q_weight", "EXL2"},
		"MLX": {[]add{{"weight", u32, []int{1024, 8}}, {"scales", "BF16", []int{1024, 1}},
			{"biases", "BF16", []int{1024, 1}}}, "weight", "MLX's quantisation"},
		"MLX, deep": {[]add{{"weight", u32, []int{2, 512, 8}}, {"scales", "BF16", []int{2, 512, 1}}}, "weight", "MLX's quantisation"},
		"bitsandbytes": {[]add{{"weight", u8, []int{32768, 1}}, {"weight.absmax", u8, []int{1024}}}, "weight",
			"bitsandbytes' quantisation"},
		"LLM.int8": {[]add{{"weight", i8, []int{1024, 64}}, {"SCB", f32, []int{1024}}}, "weight", "bitsandbytes' INT8"},
		"INT4": {[]add{{"weight_packed", "I32", []int{1024, 8}},
			{"weight_scale", "BF16", []int{1024, 1}}}, "weight_packed", "packed integers of compressed-tensors"},
		"INT8": {[]add{{"weight", i8, []int{1024, 64}}, {"weight_scale", f32, []int{1024, 1}},
			{"weight_offset", f32, []int{1024, 1}}}, "weight", "INT8 (W8A8)"},
		"U8": {[]add{{"weight", u8, []int{1024, 64}},
			{"weight_scale", f32, []int{1024, 1}}}, "weight", "codes of 8 bits without a type"},
		"MXFP4":        {[]add{{"weight", i8, []int{1024, 32}}, {"scale", e8, []int{1024, 2}}}, "weight", "MXFP4"},
		"MXFP4 packed": {[]add{{"weight_packed", u8, []int{1024, 32}}, {"weight_scale", u8, []int{1024, 2}}}, "weight_packed", "MXFP4"},
		"MXFP4 typed":  {[]add{{"weight", safetensors.F4, []int{1024, 64}}, {"weight_scale", e8, []int{1024, 2}}}, "weight", "MXFP4"},
		"MXFP8":        {[]add{{"weight", safetensors.F8E4M3, []int{1024, 64}}, {"weight_scale", u8, []int{1024, 2}}}, "weight", "MXFP8"},
		"E5M2":         {[]add{{"weight", "F8_E5M2", []int{1024, 64}}, {"weight_scale", f32, []int{}}}, "weight", "FP8 of E5M2"},
		"FNUZ": {[]add{{"weight", "F8_E4M3FNUZ", []int{1024, 64}}, {"weight_scale", f32, []int{}}}, "weight",
			"FP8 of another bias"},
	} {
		m := fake(t, fakemodel.Options{Config: drafted()})
		m.Remove(l + "weight")
		for _, x := range c.tensors {
			m.Add(l+x.name, x.dtype, x.shape...)
		}
		_, err := openFake(t, m, 1, model.CheckpointOptions{})
		want := "model: checkpoint: model.safetensors: " + l + c.tensor + ": this is " + c.what + ", which vkmla does not read"
		assert.EqualError(t, err, want, name)
		assert.ErrorIs(t, err, model.ErrForeign, name)
		assert.ErrorIs(t, err, model.ErrCheckpoint, name)
		_, err = openFake(t, m, 1, model.CheckpointOptions{Layers: []int{0, 2}})
		assert.NoError(t, err, "%s: layers that are stored otherwise", name)
	}
}

// FP8's scales in shapes that kernels of others take are named.
func TestForeignScales(t *testing.T) {
	const l = "layers.1.attn.wq_a."
	for want, c := range map[string]struct {
		dtype  safetensors.DType
		shape  []int
		tensor string
	}{
		"UE8M0 scales packed four to an I32": {safetensors.I32, []int{128, 1}, "scale"},
		"FP8 with scales for 1 by 128":       {safetensors.F32, []int{128, 2}, "weight"},
	} {
		m := fake(t, fakemodel.Options{Storage: fakemodel.FP8})
		m.Remove(l + "scale")
		m.Add(l+"scale", c.dtype, c.shape...)
		_, err := openFake(t, m, 1, model.CheckpointOptions{})
		assert.EqualError(t, err, "model: checkpoint: model.safetensors: "+l+c.tensor+": this is "+want+", which vkmla does not read")
		assert.ErrorIs(t, err, model.ErrForeign)
	}
}

// A clone without Git LFS has a short text in the place of a large file.
func TestPointers(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\n" +
		"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
	for file, shards := range map[string]int{"config.json": 1, "model.safetensors": 1, "model.safetensors.index.json": 2,
		"model-00001-of-00002.safetensors": 2, "x.gguf": 1} {
		dir := t.TempDir()
		require.NoError(t, fake(t, fakemodel.Options{Config: drafted()}).Write(dir, shards))
		path := filepath.Join(dir, file)
		if file != "x.gguf" {
			require.FileExists(t, path)
		}
		require.NoError(t, os.WriteFile(path, []byte(pointer), 0o666))
		open := dir
		if file == "x.gguf" {
			open = path
		}
		_, err := model.Open(open, model.CheckpointOptions{})
		assert.ErrorContains(t, err, "a Git LFS pointer in place of the file", file)
		assert.ErrorContains(t, err, file)
		if file == "config.json" {
			assert.ErrorIs(t, err, model.ErrConfig)
		} else {
			assert.ErrorIs(t, err, model.ErrCheckpoint, file)
		}
	}
}

// A file of the folder in the folder's place is refused as an argument.
func TestFileForFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, fake(t, fakemodel.Options{Config: drafted()}).Write(dir, 1))
	for _, file := range []string{"config.json", "model.safetensors"} {
		path := filepath.Join(dir, file)
		_, config := model.LoadConfig(path)
		_, tensors := model.OpenTensors(path, "")
		_, all := model.Open(path, model.CheckpointOptions{})
		for _, err := range []error{config, tensors, all} {
			assert.ErrorIs(t, err, vk.ErrArgument, file)
			assert.ErrorContains(t, err, file+", want the folder of a model, or a GGUF file")
		}
	}
}

// Folders and files of other programs are named, too.
func TestForeignFiles(t *testing.T) {
	config := func(f map[string]any) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			m := fake(t, fakemodel.Options{Config: drafted()})
			m.Config = f
			require.NoError(t, m.Write(dir, 1))
		}
	}
	put := func(names ...string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, n := range names {
				require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte("GGUF"), 0o666))
			}
		}
	}
	for name, c := range map[string]struct {
		make  func(t *testing.T, dir string)
		path  string // in the folder, to be opened
		error string
	}{
		"GGUF by another name": {func(t *testing.T, dir string) {
			config(released(drafted()))(t, dir)
			put("model.safetensors")(t, dir)
		}, "", "model.safetensors: this is GGUF under another name"},
		"shards": {func(t *testing.T, dir string) {
			config(released(drafted()))(t, dir)
			require.NoError(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model0-mp8.safetensors")))
		}, "", "model0-mp8.safetensors: this is a checkpoint converted for DeepSeek's own inference code"},
		"its configuration": {config(map[string]any{"dim": 4096, "n_layers": 43}), "",
			"config.json: dim: this is the configuration of DeepSeek's own inference code"},
		"PyTorch": {put("pytorch_model-00001-of-00002.bin"), "",
			"pytorch_model-00001-of-00002.bin: this is a checkpoint of PyTorch's own format"},
		"MLX": {put("weights.0.npz"), "", "weights.0.npz: this is an archive of MLX's"},
	} {
		dir := t.TempDir()
		c.make(t, dir)
		_, err := model.Open(filepath.Join(dir, c.path), model.CheckpointOptions{})
		assert.EqualError(t, err, "model: checkpoint: "+c.error+", which vkmla does not read", name)
		assert.ErrorIs(t, err, model.ErrForeign, name)
	}
	dir := t.TempDir()
	put("notes.npz", "x\x1b[31m.pt")(t, dir)
	_, err := model.Open(dir, model.CheckpointOptions{})
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.NotErrorIs(t, err, model.ErrForeign)
}
