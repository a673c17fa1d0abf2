package model_test

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
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
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
)

// stored says how tensors of attention are stored: vectors as F32, all else as one format.
func stored(format string) func(string) string {
	return func(name string) string {
		if strings.HasSuffix(name, "norm.weight") || name == "attn_sinks.weight" {
			return "F32"
		}
		return format
	}
}

func writeGGUF(t testing.TB, keys []fakegguf.Key, tensors []fakegguf.Tensor) string {
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, os.WriteFile(path, fakegguf.Encode(keys, tensors), 0o666))
	return path
}

// A GGUF file means what its blocks decode to, rounded to bf16 where no kernel reads them, under
// the names of its tensors.
func TestGGUF(t *testing.T) {
	for _, format := range []string{"F32", "F16", "BF16", "Q8_0", "Q4_K", "Q6_K", "Q4_0", "Q5_0", "IQ4_NL", "MXFP4", "NVFP4"} {
		cfg := fakemodel.Config(0, 4, 128)
		if gguf.FormatNamed(format).Values == 256 {
			cfg.Hidden, cfg.QRank, cfg.ORank = 256, 256, 256
		}
		tensors := fakegguf.Attention(cfg, 5, stored(format))
		values := map[string][]float32{}
		for _, x := range tensors {
			f := gguf.FormatNamed(x.Format)
			v := make([]float32, len(x.Data)/f.Bytes*f.Values)
			f.Decode(v, x.Data)
			values[x.Name] = v
		}
		path := writeGGUF(t, fakegguf.Keys(cfg), tensors)
		for rank := range 2 {
			c, err := model.Open(filepath.Dir(path), model.CheckpointOptions{Rank: rank, Ranks: 2})
			require.NoError(t, err, format)
			assert.Equal(t, cfg.Layers, c.Config.Layers)
			want := cfg
			want.Quantization = ""
			assert.Equal(t, want, c.Config)
			for i := range c.Layers {
				checkGGUFLayer(t, cfg, &c.Layers[i], values, rank)
			}
			widened := c.Widened
			if slices.Contains([]string{"F32", "F16", "BF16", "Q8_0", "Q4_K"}, format) {
				assert.Zero(t, widened)
				assert.Empty(t, widened.String())
			} else {
				assert.Equal(t, []string{format}, widened.Formats)
				assert.Contains(t, widened.String(), "linear layers of "+format+" are kept as bf16: ")
				assert.Equal(t, widened.Kept/2, widened.Stored*int64(gguf.FormatNamed(format).Values)/int64(gguf.FormatNamed(format).Bytes))
			}
			require.NoError(t, c.Close())
		}
	}
}

// checkGGUFLayer compares a layer of the first or second of two ranks with all values of its file.
func checkGGUFLayer(t *testing.T, cfg model.Config, l *model.LayerWeights, values map[string][]float32, rank int) {
	at := fmt.Sprintf("blk.%d.", l.Layer)
	check := func(m model.Matrix, k, column int, rows ...[]float32) {
		row, r := make([]float32, m.K), 0
		for _, part := range rows {
			for ; len(part) > 0; part, r = part[k:], r+1 {
				require.NoError(t, m.Row(r, row))
				for j, x := range row {
					want := part[column+j]
					if m.Format == projection.FormatBF16 {
						want = numfmt.BF16Round(want)
					}
					if want != x {
						t.Fatalf("%s: row %d, column %d: %g, want %g", m.Name, r, j, x, want)
					}
				}
			}
		}
		require.Equal(t, m.N, r, m.Name)
		stored := func(b model.Blob) []byte {
			data, err := b.Bytes()
			require.NoError(t, err)
			return data
		}
		h := projection.LinearHost{Groups: 1, N: m.N, K: m.K, Weights: m.Format, Data: stored(m.Data), Scale: stored(m.Scales)}
		for rows := stored(m.RowScales); len(rows) > 0; rows = rows[4:] {
			h.RowScale = append(h.RowScale, math.Float32frombits(binary.LittleEndian.Uint32(rows)))
		}
		for r = range m.N {
			require.NoError(t, m.Row(r, row))
			for j, x := range row {
				if on := float32(h.Weight(r, j)); on != x {
					t.Fatalf("%s (%v): row %d, column %d: %g on the device, want %g", m.Name, m.Format, r, j, on, x)
				}
			}
		}
	}
	half := func(name string) []float32 {
		v := values[at+name]
		return v[len(v)/2*rank : len(v)/2*(rank+1)]
	}
	check(l.QKV, cfg.Hidden, 0, values[at+"attn_q_a.weight"], values[at+"attn_kv.weight"])
	check(l.QB, cfg.QRank, 0, half("attn_q_b.weight"))
	check(l.OA, cfg.HeadsPerGroup()*512, 0, half("attn_output_a.weight"))
	check(l.OB, cfg.Groups*cfg.ORank, cfg.Groups*cfg.ORank/2*rank, values[at+"attn_output_b.weight"])
	if l.Compressor != nil {
		check(l.Compressor.KVGate, cfg.Hidden, 0, values[at+"attn_compressor_kv.weight"], values[at+"attn_compressor_gate.weight"])
		ape, err := l.Compressor.Ape.Data.Bytes()
		require.NoError(t, err)
		assert.Equal(t, values[at+"attn_compressor_ape.weight"], f32s(ape))
	}
	if l.Indexer != nil {
		check(l.Indexer.QB, cfg.QRank, 0, values[at+"indexer.attn_q_b.weight"])
		check(l.Indexer.Weights, cfg.Hidden, 0, values[at+"indexer.proj.weight"])
		check(l.Indexer.Compressor.KVGate, cfg.Hidden, 0,
			values[at+"indexer_compressor_kv.weight"], values[at+"indexer_compressor_gate.weight"])
	}
	sinks, err := l.Sink.Data.Bytes()
	require.NoError(t, err)
	assert.Equal(t, half("attn_sinks.weight"), f32s(sinks))
}

// What is missing, doubled, misshapen or unknown is named.
func TestGGUFRefused(t *testing.T) {
	cfg := fakemodel.Config(0, 4, 128)
	keys := func() []fakegguf.Key { return fakegguf.Keys(cfg) }
	tensors := func() []fakegguf.Tensor { return fakegguf.Attention(cfg, 5, stored("Q8_0")) }
	set := func(name string, value any) []fakegguf.Key {
		list := keys()
		at := slices.IndexFunc(list, func(k fakegguf.Key) bool { return k.Name == name })
		if value == nil {
			return slices.Delete(list, at, at+1)
		}
		list[at].Value = value
		return list
	}
	change := func(name string, f func(x *fakegguf.Tensor)) []fakegguf.Tensor {
		list := tensors()
		at := slices.IndexFunc(list, func(x fakegguf.Tensor) bool { return x.Name == name })
		if f == nil {
			return slices.Delete(list, at, at+1)
		}
		f(&list[at])
		return list
	}
	named := func(other string) func(x *fakegguf.Tensor) { return func(x *fakegguf.Tensor) { x.Name = other } }
	more := func(name, format string, shape ...int) []fakegguf.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return append(tensors(),
			fakegguf.Tensor{Name: name, Format: format, Shape: shape, Data: make([]byte, gguf.FormatNamed(format).Size(n))})
	}
	const a = "deepseek4."
	for name, c := range map[string]struct {
		keys    []fakegguf.Key
		tensors []fakegguf.Tensor
		is      error
		error   string
	}{
		"missing":  {keys(), change("blk.1.attn_q_b.weight", nil), model.ErrCheckpoint, "blk.1.attn_q_b.weight: got absent"},
		"no sinks": {keys(), change("blk.0.attn_sinks.weight", nil), model.ErrCheckpoint, "blk.0.attn_sinks.weight: got absent"},
		"no ape": {keys(), change("blk.1.indexer_compressor_ape.weight", nil),
			model.ErrCheckpoint, "blk.1.indexer_compressor_ape.weight: got absent"},
		"misshapen": {keys(), change("blk.2.attn_kv.weight", func(x *fakegguf.Tensor) { x.Shape = []int{192, 512} }),
			model.ErrCheckpoint, "blk.2.attn_kv.weight: got Q8_0 [192, 512], want shape [512 192]"},
		"turned ape": {keys(), change("blk.1.attn_compressor_ape.weight", func(x *fakegguf.Tensor) { x.Shape = []int{128, 32} }),
			model.ErrCheckpoint, "blk.1.attn_compressor_ape.weight"},
		"of no floats": {keys(), change("blk.0.attn_q_a.weight", func(x *fakegguf.Tensor) {
			x.Format, x.Data = "I8", make([]byte, 128*192)
		}), model.ErrCheckpoint, "blk.0.attn_q_a.weight: this is INT8"},
		"unread blocks": {keys(), change("blk.0.attn_q_a.weight", func(x *fakegguf.Tensor) {
			x.Format, x.Data = "Q4_1", make([]byte, 128*192/32*20)
		}), model.ErrCheckpoint, "blk.0.attn_q_a.weight: got Q4_1 [128, 192], want one of F32, F16, BF16, Q8_0, "},
		"unknown": {keys(), more("blk.2.attn_extra.weight", "F32", 4),
			model.ErrCheckpoint, "blk.2.attn_extra.weight: got an unknown tensor"},
		"of another kind": {keys(), more("blk.0.indexer.proj.weight", "F32", 8, 192),
			model.ErrCheckpoint, "blk.0.indexer.proj.weight: got an unknown tensor"},
		"an older layout": {keys(), change("blk.1.attn_kv.weight", named("blk.1.attn_kv_latent.weight")),
			model.ErrForeign, "blk.1.attn_kv_latent.weight: this is an older layout"},
		"another model":   {set("general.architecture", "llama"), tensors(), model.ErrForeign, `this is a model of architecture "llama"`},
		"V4.1":            {set("general.architecture", "deepseek41"), tensors(), model.ErrForeign, "this is DeepSeek-V4.1 in GGUF"},
		"no architecture": {set("general.architecture", nil), tensors(), model.ErrConfig, "general.architecture: got absent"},
		"an adapter":      {set("general.type", "adapter"), tensors(), model.ErrForeign, `a file of type "adapter"`},
		"few ratios": {set(a+"attention.compress_ratios", []int32{0, 4}), tensors(),
			model.ErrConfig, a + "attention.compress_ratios: got 2 ratios"},
		"no ratios": {set(a+"attention.compress_ratios", nil), tensors(),
			model.ErrConfig, a + "attention.compress_ratios: got absent"},
		"other ratios": {set(a+"attention.compress_ratios", []int32{0, 8, 128}), tensors(),
			model.ErrConfig, a + "attention.compress_ratios: got 8"},
		"ratios, no list": {set(a+"attention.compress_ratios", uint32(4)), tensors(),
			model.ErrConfig, a + "attention.compress_ratios: got u32"},
		"other heads": {set(a+"attention.key_length", uint32(576)), tensors(), model.ErrConfig, a + "attention.key_length: got 576"},
		"other values": {set(a+"attention.value_length", uint32(128)), tensors(),
			model.ErrConfig, a + "attention.value_length: got 128"},
		"several kv heads": {set(a+"attention.head_count_kv", uint32(8)), tensors(), model.ErrConfig, a + "attention.head_count_kv: got 8"},
		"no base": {set(a+"attention.compress_rope_freq_base", nil), tensors(),
			model.ErrConfig, a + "attention.compress_rope_freq_base: got absent"},
		"no scaling":    {set(a+"rope.scaling.type", nil), tensors(), model.ErrConfig, a + "rope.scaling.type: got absent"},
		"other scaling": {set(a+"rope.scaling.type", "linear"), tensors(), model.ErrConfig, a + `rope.scaling.type: got "linear"`},
		"no factor":     {set(a+"rope.scaling.factor", nil), tensors(), model.ErrConfig, a + "rope.scaling.factor: got absent"},
		"a text":        {set(a+"attention.head_count", "four"), tensors(), model.ErrConfig, a + "attention.head_count: got string"},
		"negative":      {set(a+"embedding_length", int32(-192)), tensors(), model.ErrConfig, a + "embedding_length: got -192"},
		"huge":          {set(a+"block_count", uint64(1<<40)), tensors(), model.ErrConfig, a + "block_count: got u64"},
	} {
		_, err := model.Open(writeGGUF(t, c.keys, c.tensors), model.CheckpointOptions{})
		assert.ErrorIs(t, err, c.is, name)
		assert.ErrorContains(t, err, c.error, name)
	}
	// Blocks beyond block_count and metadata that is not known are ignored.
	c, err := model.Open(writeGGUF(t, append(keys(), fakegguf.Key{Name: a + "nextn_predict_layers", Value: uint32(1)}),
		more("blk.3.attn_extra.weight", "F32", 4)), model.CheckpointOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// Blocks of MTP at the end are none of the model's layers, also where block_count counts them.
func TestGGUFWithMTP(t *testing.T) {
	cfg := fakemodel.Config(0, 4, 0)
	tensors := fakegguf.Attention(cfg, 5, stored("Q8_0"))
	for n, more := range map[int][]fakegguf.Tensor{3: nil, 2: {{Name: "blk.2.nextn.eh_proj.weight", Format: "F32", Shape: []int{1}, Data: make([]byte, 4)}}} {
		path := writeGGUF(t, append(fakegguf.Keys(cfg), fakegguf.Key{Name: "deepseek4.nextn_predict_layers", Value: uint32(1)}),
			slices.Concat(tensors, more))
		c, err := model.Open(path, model.CheckpointOptions{})
		require.NoError(t, err)
		assert.Equal(t, cfg.Layers[:n], c.Config.Layers)
		assert.Len(t, c.Layers, n)
		require.NoError(t, c.Close())
	}
}

// A path is a file, a folder with one, or a folder with the parts of one.
func TestGGUFPaths(t *testing.T) {
	cfg := fakemodel.Config(0)
	keys, tensors := fakegguf.Keys(cfg), fakegguf.Attention(cfg, 5, stored("Q8_0"))
	file, dir := fakegguf.Encode(keys, tensors), t.TempDir()
	put := func(name string, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o666))
	}
	open := func(name string) error {
		c, err := model.Open(filepath.Join(dir, name), model.CheckpointOptions{})
		if err == nil {
			err = c.Close()
		}
		if _, e := model.LoadConfig(filepath.Join(dir, name)); err == nil {
			err = e
		}
		return err
	}
	put("a.gguf", file)
	put("config.json", []byte("{}"))
	put("b.gguf", []byte("something else"))
	assert.NoError(t, open("a.gguf"))
	assert.NoError(t, open(""), "one file of GGUF")
	put("c.gguf", file)
	assert.ErrorIs(t, open(""), model.ErrCheckpoint)
	assert.ErrorContains(t, open(""), `2 GGUF files, such as "a.gguf" and "c.gguf"`)
	put("model.safetensors", []byte("x"))
	assert.ErrorIs(t, open(""), model.ErrConfig, "safetensors come first")

	dir = t.TempDir()
	for i, part := range [][]fakegguf.Tensor{nil, tensors[:3], tensors[3:]} {
		k := []fakegguf.Key{{Name: "split.no", Value: uint16(i)}, {Name: "split.count", Value: uint16(3)},
			{Name: "split.tensors.count", Value: int32(len(tensors))}}
		if i == 0 {
			k = append(k, keys...)
		}
		put(fmt.Sprintf("a-%05d-of-00003.gguf", i+1), fakegguf.Encode(k, part))
	}
	assert.NoError(t, open(""))
	assert.NoError(t, open("a-00001-of-00003.gguf"))
	assert.ErrorIs(t, open("a-00002-of-00003.gguf"), model.ErrCheckpoint)
	assert.ErrorContains(t, open("a-00002-of-00003.gguf"), "open the first")
	require.NoError(t, os.Remove(filepath.Join(dir, "a-00003-of-00003.gguf")))
	assert.ErrorIs(t, open(""), fs.ErrNotExist)
}

// f32s are the numbers that bytes stand for.
func f32s(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}
