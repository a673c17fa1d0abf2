package random

import (
	"encoding/json"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/server/text"
	"github.com/vkmla/vkmla/server/weights"
)

// TestSizes holds that models of released width have the bytes that released checkpoints have.
func TestSizes(t *testing.T) {
	sum := func(l tensors) (n int64) {
		for _, x := range l {
			n += x.size
		}
		return n
	}
	for width, want := range map[string]int64{"flash": 156015698140, "pro": 850748205004} {
		c, err := Config(width, 0)
		require.NoError(t, err)
		total := sum(ends(&c))
		for i := range c.Layers {
			total += sum(layer(&c, i))
		}
		assert.Equal(t, want, total, width)
	}
	c, err := Config("flash", 0)
	require.NoError(t, err)
	c = WithDrafts(c)
	total := sum(ends(&c))
	for i := range c.Layers {
		total += sum(layer(&c, i))
	}
	assert.EqualValues(t, 166878536440, total, "with a DSpark block")
	_, err = Config("flash", 44)
	assert.ErrorContains(t, err, "got 44, want 1 to 43")
	_, err = Config("wide", 1)
	assert.ErrorContains(t, err, "flash, pro, small, tiny")
}

// TestConfig reads the configuration back, and refuses what is absent, negative or far too large.
func TestConfig(t *testing.T) {
	c, err := Config("tiny", 0)
	require.NoError(t, err)
	file, err := configFile(c)
	require.NoError(t, err)
	load := func(field string, v any) (weights.Config, error) {
		fields := map[string]any{}
		require.NoError(t, json.Unmarshal(file, &fields))
		if field != "" {
			fields[field] = v
		}
		data, err := json.Marshal(fields)
		require.NoError(t, err)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o666))
		return weights.LoadConfig(dir)
	}
	got, err := load("", nil)
	require.NoError(t, err)
	assert.Equal(t, c, got)
	for _, field := range []string{"vocab_size", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "num_hash_layers",
		"routed_scaling_factor"} {
		for _, bad := range []any{nil, -1, math.MaxInt64} {
			if field == "num_hash_layers" && bad == math.MaxInt64 || field == "routed_scaling_factor" && bad != nil {
				continue // all layers; any number
			}
			_, err := load(field, bad)
			assert.ErrorIs(t, err, model.ErrConfig, "%s %v", field, bad)
			assert.ErrorContains(t, err, field)
		}
	}
}

// TestWrite demands a checkpoint of the configuration in the released formats, with weights that
// keep lengths, the same for the same seed.
func TestWrite(t *testing.T) {
	c, err := Config("tiny", 0)
	require.NoError(t, err)
	var files [][]byte
	var last *weights.Model
	for _, seed := range []uint64{1, 1, 2} {
		dir := t.TempDir()
		size, err := Write(t.Context(), dir, c, seed)
		require.NoError(t, err)
		_, err = Write(t.Context(), dir, c, seed)
		assert.ErrorIs(t, err, fs.ErrExist, "a checkpoint is not written over")
		data, err := os.ReadFile(filepath.Join(dir, "model-layer-002.safetensors"))
		require.NoError(t, err)
		files = append(files, data)
		on := int64(0)
		list, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		require.NoError(t, err)
		for _, name := range list {
			st, err := os.Stat(name)
			require.NoError(t, err)
			on += st.Size()
		}
		assert.Equal(t, on, size)

		attention, err := model.Open(dir, model.CheckpointOptions{})
		require.NoError(t, err)
		assert.Equal(t, c.Layers, attention.Config.Layers)
		assert.Equal(t, projection.FormatFP8, attention.Layers[0].QB.Format)
		require.NoError(t, attention.Close())
		last, err = weights.Open(dir)
		require.NoError(t, err)
		t.Cleanup(func() { last.Close() })
	}
	assert.Equal(t, c, last.Config)
	assert.Equal(t, files[0], files[1])
	assert.NotEqual(t, files[0], files[2])

	l := last.Layers[2]
	for _, m := range []*weights.Matrix{&last.Head, &l.Gate, &l.AttnHC.Fn, &l.Experts[3].W1, &l.Experts[4].W2, &l.Shared.W3, &l.Shared.W2} {
		row, sum := make([]float32, m.K), 0.0
		for r := range m.N {
			m.Row(row, r)
			for _, v := range row {
				sum += float64(v) * float64(v)
			}
		}
		// A matrix with few scales has all of them at one end, by chance.
		assert.InDelta(t, 0, math.Log2(math.Sqrt(sum/float64(m.N))), .9, "%s: length of a row", m.Name)
	}
	assert.Equal(t, weights.MXFP4, l.Experts[0].W2.Format)
	assert.Equal(t, weights.FP8, l.Shared.W2.Format)

	c.Heads = 3
	_, err = Write(t.Context(), t.TempDir(), c, 1)
	assert.ErrorIs(t, err, model.ErrConfig)
	c.Heads = 4
	_, err = Write(t.Context(), filepath.Join(os.DevNull, "x"), c, 1)
	assert.Error(t, err)
}

// TestGGUF holds that files are read, with their tokenizer, and have the types that their kind has.
func TestGGUF(t *testing.T) {
	c, err := Config("small", 0)
	require.NoError(t, err)
	for kind, want := range map[string]map[string]string{
		"q2_k_s": {"token_embd.weight": "Q8_0", "output.weight": "Q6_K", "blk.2.attn_compressor_ape.weight": "Q8_0",
			"blk.1.ffn_down_exps.weight": "Q2_K", "blk.1.ffn_gate_inp.weight": "BF16", "blk.0.hc_attn_fn.weight": "Q8_0"},
		"iq2_xxs": {"token_embd.weight": "F16", "output.weight": "Q8_0", "blk.2.indexer.attn_q_b.weight": "F16",
			"blk.1.ffn_gate_exps.weight": "IQ2_XXS", "blk.1.ffn_down_exps.weight": "Q2_K", "blk.3.ffn_gate_shexp.weight": "Q8_0"},
		"mxfp4": {"token_embd.weight": "BF16", "blk.1.ffn_up_exps.weight": "MXFP4", "blk.0.hc_ffn_fn.weight": "F32",
			"blk.0.ffn_gate_tid2eid.weight": "I32", "blk.3.exp_probs_b.bias": "F32", "blk.2.indexer.proj.weight": "BF16"},
	} {
		dir := t.TempDir()
		size, err := WriteGGUF(t.Context(), dir, kind, c, 1)
		require.NoError(t, err)
		files, err := filepath.Glob(filepath.Join(dir, "*.gguf"))
		require.NoError(t, err)
		if kind == "iq2_xxs" {
			require.Len(t, files, 1, "ds4 reads no parts")
		} else {
			require.Len(t, files, 1+len(c.Layers))
		}
		for _, f := range files {
			s, err := os.Stat(f)
			require.NoError(t, err)
			size -= s.Size()
		}
		assert.Zero(t, size, "bytes that were told, less those there are")
		tensors, err := model.OpenTensors(dir, "")
		require.NoError(t, err)
		defer tensors.Close()
		for name, format := range want {
			x, err := tensors.Tensor(name)
			require.NoError(t, err)
			assert.Equal(t, format, x.DType, "%s: %s", kind, name)
		}
		w, err := weights.Open(dir)
		require.NoError(t, err)
		defer w.Close()
		assert.Equal(t, []any{c.Vocab, c.Hash, c.Experts, c.Limit}, []any{w.Config.Vocab, w.Config.Hash, w.Config.Experts, w.Config.Limit})
		require.NoError(t, w.Examine(t.Context(), slog.New(slog.DiscardHandler)))
		sum, n, row := 0.0, 0, make([]float32, c.Hidden)
		for r := range c.Width {
			w.Layers[1].Experts[3].W1.Row(row, r)
			for _, v := range row {
				sum, n = sum+float64(v)*float64(v), n+1
			}
		}
		assert.InDelta(t, 1, math.Sqrt(sum/float64(n)*float64(c.Hidden)), 0.5, "%s: what a row makes of an input's numbers", kind)
		attention, err := model.Open(dir, model.CheckpointOptions{})
		require.NoError(t, err)
		require.NoError(t, attention.Close())
		tok, err := text.Open(dir)
		require.NoError(t, err)
		ids, err := tok.Encode(t.Context(), "the rain", 100)
		require.NoError(t, err)
		assert.Less(t, len(ids), len("the rain")+1, "%s: %v", kind, ids)
		_, err = WriteGGUF(t.Context(), dir, kind, c, 1)
		assert.ErrorIs(t, err, fs.ErrExist)
	}
	_, err = WriteGGUF(t.Context(), t.TempDir(), "q9", c, 1)
	assert.ErrorContains(t, err, "want iq2_xxs, mxfp4, q2_k_s")
	c, err = Config("tiny", 0)
	require.NoError(t, err)
	_, err = WriteGGUF(t.Context(), t.TempDir(), "q2_k_s", c, 1)
	assert.ErrorContains(t, err, "multiples of 256")
}
