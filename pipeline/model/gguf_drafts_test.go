package model_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// draftCase is a draft block of two layers in one of the layouts.
type draftCase struct {
	keys    []fakegguf.Key
	tensors []fakegguf.Tensor
}

func draftCases(cfg model.Config) map[string]draftCase {
	own := len(cfg.Layers)
	layer := func(stack string) (list []fakegguf.Tensor) {
		for _, x := range fakegguf.Attention(cfg.WithDrafts(2), 9, stored("Q8_0")) {
			for k := range 2 {
				if name, ok := strings.CutPrefix(x.Name, fmt.Sprintf("blk.%d.", own+k)); ok {
					x.Name = fmt.Sprintf("%s%d.%s", stack, k, name)
					list = append(list, x)
				}
			}
		}
		return list
	}
	tensor := func(name, format string, shape ...int) fakegguf.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return fakegguf.Tensor{Name: name, Format: format, Shape: shape, Data: make([]byte, gguf.FormatNamed(format).Size(n))}
	}
	return map[string]draftCase{
		"deepseek4-dspark": {[]fakegguf.Key{{Name: "general.architecture", Value: "deepseek4-dspark"},
			{Name: "dspark.block_size", Value: uint32(4)}, {Name: "dspark.n_layers", Value: uint32(2)},
			{Name: "dspark.stage_count", Value: uint32(2)}, {Name: "dspark.target_layer_ids", Value: []int32{0, 2}}},
			append(layer("mtp."), tensor("mtp.0.main_proj.weight", "Q8_0", cfg.Hidden, 2*cfg.Hidden),
				tensor("mtp.1.markov_head.markov_w1.weight", "F16", 96, 8))},
		"dflash": {[]fakegguf.Key{{Name: "general.architecture", Value: "dflash"}, {Name: "dflash.block_size", Value: uint32(4)},
			{Name: "dflash.block_count", Value: uint32(2)}, {Name: "dflash.target_layers", Value: []int32{1, 3}},
			{Name: "dflash.embedding_length", Value: uint32(cfg.Hidden)}, {Name: "dflash.rope.freq_base", Value: float32(cfg.Main.Theta)},
			{Name: "dflash.attention.compress_ratios", Value: []int32{0, 0}}},
			append(layer("blk."), tensor("fc.weight", "Q8_0", cfg.Hidden, 2*cfg.Hidden), tensor("markov_w1.weight", "BF16", 96, 8))},
	}
}

// A draft block in a file of its own, of either layout, has the values of its file, beside models
// in either kind of file. Layers are counted after the model's.
func TestDraftFile(t *testing.T) {
	cfg := fakemodel.Config(0, 4, 128)
	cfg.Quantization = ""
	inGGUF := writeGGUF(t, fakegguf.Keys(cfg), fakegguf.Attention(cfg, 5, stored("Q8_0")))
	own := cfg.WithDrafts(3) // which the file's take the place of
	own.DraftTargets = []int{1}
	released := fakemodel.New(fakemodel.Options{Config: own})
	inFolder := t.TempDir()
	require.NoError(t, released.Write(inFolder, 1))
	for arch, c := range draftCases(cfg) {
		file := writeGGUF(t, c.keys, c.tensors)
		values := map[string][]float32{}
		for _, x := range c.tensors {
			f := gguf.FormatNamed(x.Format)
			v := make([]float32, len(x.Data)/f.Bytes*f.Values)
			f.Decode(v, x.Data)
			_, name, _ := strings.Cut(x.Name, ".")
			if n, rest, ok := strings.Cut(name, "."); ok && (n == "0" || n == "1") {
				values[fmt.Sprintf("blk.%d.%s", len(cfg.Layers)+int(n[0]-'0'), rest)] = v
			}
		}
		for _, dir := range []string{inGGUF, inFolder} {
			read, err := model.LoadConfigWithDrafts(dir, file)
			require.NoError(t, err, arch)
			assert.Equal(t, []any{5, 4, []int{0, 2}}, []any{len(read.Layers), read.DraftBlock, read.DraftTargets}, arch)
			ck, err := model.Open(dir, model.CheckpointOptions{Layers: []int{3, 1, 4}, Drafts: filepath.Dir(file), Ranks: 2, Rank: 1})
			require.NoError(t, err, arch)
			assert.Equal(t, read.Layers, ck.Config.Layers)
			checkGGUFLayer(t, cfg, &ck.Layers[0], values, 1)
			checkGGUFLayer(t, cfg, &ck.Layers[2], values, 1)
			require.NoError(t, ck.Close())
			all, err := model.OpenTensors(dir, file)
			require.NoError(t, err)
			x, err := all.Tensor("mtp.0.main_proj.weight")
			require.NoError(t, err)
			assert.Equal(t, []int{cfg.Hidden, 2 * cfg.Hidden}, x.Shape)
			at := dir
			if dir == inGGUF {
				at = filepath.Dir(dir)
			}
			assert.Equal(t, filepath.Join(at, x.File), file, "the way to the file")
			_, err = all.Tensor("mtp.0.main_norm.weight")
			assert.ErrorContains(t, err, map[string]string{"dflash": "m.gguf: enc.output_norm.weight: got absent",
				"deepseek4-dspark": "mtp.0.main_norm.weight: got absent"}[arch])
			require.NoError(t, all.Close())
		}
	}
}

// What does not fit the model, or contradicts itself, is refused by its name.
func TestDraftFileRefused(t *testing.T) {
	cfg := fakemodel.Config(0, 4, 128)
	dir := writeGGUF(t, fakegguf.Keys(cfg), fakegguf.Attention(cfg, 5, stored("Q8_0")))
	cases := draftCases(cfg)
	try := func(c draftCase, is error, says string) {
		t.Helper()
		path := writeGGUF(t, c.keys, c.tensors)
		_, err := model.LoadConfigWithDrafts(dir, path)
		if err == nil {
			var ck *model.Checkpoint
			if ck, err = model.Open(dir, model.CheckpointOptions{Layers: []int{3, 4}, Drafts: path}); err == nil {
				ck.Close()
			}
		}
		assert.ErrorIs(t, err, is, says)
		assert.ErrorContains(t, err, says)
	}
	for arch, says := range map[string]map[string]map[string]any{ // keys, messages, values
		"deepseek4-dspark": {
			"dspark.stage_count": {"dspark.stage_count: got absent": nil, "got 0, want 1 to 4096": uint32(0),
				"dspark.stage_count: got u64": uint64(1 << 40), "got 1048576, want 1 to 4096": uint32(1 << 20)},
			"dspark.n_layers":   {"dspark.n_layers: got 3, want what dspark.stage_count says, 2": uint32(3)},
			"dspark.block_size": {"dspark.block_size: got 65, want 1 to 64": uint32(65), "dspark.block_size: got absent": nil},
			"dspark.target_layer_ids": {"dspark.target_layer_ids: got [0 3], want 0 to 2, ascending": []int32{0, 3},
				"dspark.target_layer_ids: got [2 0]": []int32{2, 0}, "dspark.target_layer_ids: got absent": nil,
				"dspark.target_layer_ids: got [-1 0]": []int32{-1, 0}, "want shape [192 192], of the 1 layers": []int32{1},
				"dspark.target_layer_ids: got array of 5000 i32": make([]int32, 5000)},
			"general.architecture": {`a file of architecture "llama"`: "llama",
				"general.architecture: got deepseek4, a model": "deepseek4"},
		},
		"dflash": {
			"dflash.target_layers":             {"dflash.target_layers: got [0 2], want 1 to 3, ascending": []int32{0, 2}},
			"dflash.embedding_length":          {"dflash.embedding_length: got 64, want the model's, 192": uint32(64)},
			"dflash.rope.freq_base":            {"dflash.rope.freq_base: got 160000, want the model's, 10000": float32(160000)},
			"dflash.attention.compress_ratios": {"array of 2 i32 with 4, want the model's, 0": []int32{0, 4}},
			"dflash.block_count":               {"blk.1.attn_kv.weight: got an unknown tensor, want those": uint32(1)},
		},
	} {
		for key, values := range says {
			for want, value := range values {
				c := draftCase{slices.Clone(cases[arch].keys), cases[arch].tensors}
				at := slices.IndexFunc(c.keys, func(k fakegguf.Key) bool { return k.Name == key })
				if c.keys[at].Value = value; value == nil {
					c.keys = slices.Delete(c.keys, at, at+1)
				}
				is := model.ErrConfig
				if strings.Contains(want, "architecture \"") || strings.Contains(want, "tensor") || strings.Contains(want, "shape") {
					is = model.ErrCheckpoint
				}
				try(c, is, want)
			}
		}
	}
	c := cases["deepseek4-dspark"]
	c.keys = slices.Clone(c.keys)
	for i, k := range c.keys {
		if k.Name == "dspark.stage_count" || k.Name == "dspark.n_layers" {
			c.keys[i].Value = uint32(1 << 12)
		}
	}
	try(c, model.ErrConfig, "dspark.stage_count: got 4096, want 1 to 4093")
	for _, x := range []struct{ arch, name, other, want string }{ // other: another name, or "" for the other way round
		{"deepseek4-dspark", "mtp.1.attn_kv.weight", "mtp.1.norm.weight", "mtp.1.attn_kv.weight: got absent"},
		{"deepseek4-dspark", "mtp.1.markov_head.markov_w1.weight", "mtp.1.attn_extra.weight", "attn_extra.weight: got an unknown tensor"},
		{"deepseek4-dspark", "mtp.1.attn_kv.weight", "token_embd.weight", "token_embd.weight: got an unknown tensor"},
		{"deepseek4-dspark", "mtp.1.attn_kv.weight", "mtp.2.attn_kv.weight", "mtp.2.attn_kv.weight: got an unknown tensor"},
		{"deepseek4-dspark", "mtp.1.attn_kv.weight", "mtp.01.attn_kv.weight", "mtp.01.attn_kv.weight: got an unknown tensor"},
		{"deepseek4-dspark", "mtp.0.main_proj.weight", "mtp.0.ffn_conv_proj.weight", "mtp.0.ffn_conv_proj.weight: got an unknown tensor"},
		{"deepseek4-dspark", "mtp.0.attn_kv.weight", "", "mtp.0.attn_kv.weight: got Q8_0 [192, 512]"},
		{"deepseek4-dspark", "mtp.0.main_proj.weight", "", "mtp.0.main_proj.weight: got Q8_0 [384, 192]"},
		{"dflash", "markov_w1.weight", "output_norm.weight", "a draft model other than DSpark's"},
		{"dflash", "blk.0.attn_q_b.weight", "output_norm.weight", "blk.0.attn_q_b.weight: got absent"},
		{"dflash", "blk.0.attn_q_b.weight", "blk.0.main_proj.weight", "got an unknown tensor"},
		{"dflash", "blk.0.attn_q_b.weight", "token_embd.weight", "token_embd.weight: got an unknown tensor"},
		{"dflash", "blk.1.attn_kv.weight", "", "mtp.1.attn_kv.weight: got Q8_0 [192, 512]"},
	} {
		c := draftCase{cases[x.arch].keys, slices.Clone(cases[x.arch].tensors)}
		to := &c.tensors[slices.IndexFunc(c.tensors, func(y fakegguf.Tensor) bool { return y.Name == x.name })]
		if to.Name = x.other; x.other == "" {
			to.Name, to.Shape = x.name, []int{to.Shape[1], to.Shape[0]}
		}
		try(c, model.ErrCheckpoint, x.want)
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "no")} {
		_, err := model.LoadConfigWithDrafts(dir, path)
		assert.ErrorIs(t, err, vk.ErrArgument, path)
	}
	_, err := model.LoadConfigWithDrafts(dir, "/no/such.gguf")
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = model.Open(writeGGUF(t, cases["dflash"].keys, cases["dflash"].tensors), model.CheckpointOptions{})
	assert.ErrorIs(t, err, model.ErrConfig)
	assert.ErrorContains(t, err, "got dflash, a draft block")
}

// FuzzDrafts opens whatever begins like a draft file beside a model: it is refused with a typed
// error, or has layers whose bytes can be read.
func FuzzDrafts(f *testing.F) {
	cfg := fakemodel.Config(0, 4, 128)
	cfg.Hidden, cfg.Heads, cfg.Groups, cfg.QRank, cfg.ORank, cfg.IndexHeads, cfg.Quantization = 32, 1, 1, 32, 32, 1, ""
	dir := writeGGUF(f, fakegguf.Keys(cfg), fakegguf.Attention(cfg, 5, stored("F32")))
	drafts := filepath.Join(testkit.MemoryDir(f), "d.gguf")
	var data [2][]byte
	for i, arch := range []string{"deepseek4-dspark", "dflash"} {
		c := draftCases(cfg)[arch]
		file, all := fakegguf.Encode(c.keys, c.tensors), 0
		for _, x := range c.tensors {
			all += (len(x.Data) + 31) / 32 * 32
		}
		data[i] = file[len(file)-all:]
		f.Add(i == 1, file[:len(file)-all])
	}
	f.Fuzz(func(t *testing.T, second bool, header []byte) {
		d := data[0]
		if second {
			d = data[1]
		}
		require.NoError(t, os.WriteFile(drafts, slices.Concat(header, d), 0o666))
		c, err := model.Open(dir, model.CheckpointOptions{Layers: []int{0, 3, 4}, Drafts: drafts})
		if err != nil {
			var foreign *model.ForeignError
			assert.True(t, errors.Is(err, model.ErrCheckpoint) || errors.Is(err, model.ErrConfig) || errors.Is(err, vk.ErrArgument) ||
				errors.As(err, &foreign), err)
			return
		}
		defer c.Close()
		for i := range c.Layers {
			for _, m := range c.Layers[i].Matrices() {
				require.NoError(t, m.Row(m.N-1, make([]float32, m.K)))
			}
		}
	})
}
