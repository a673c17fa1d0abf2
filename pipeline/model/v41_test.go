package model_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
)

// text is the text_config of a released configuration of V4.1.
func text(f map[string]any) map[string]any { return f["text_config"].(map[string]any) }

// inferenceFile is a configuration by the names of DeepSeek's inference code.
func inferenceFile(f map[string]any) map[string]any {
	own, yarn := maps.Clone(text(f)), text(f)["rope_scaling"].(map[string]any)
	for name, other := range map[string]string{"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
		"qk_rope_head_dim": "rope_head_dim", "rms_norm_eps": "norm_eps", "sliding_window": "window_size",
		"kv_source_layer_ids": "kv_source_layers", "index_source_layer_ids": "index_source_layers",
		"candidate_source_layer_id": "candidate_source_layer", "num_nextn_predict_layers": "n_mtp_layers"} {
		own[other] = own[name]
		delete(own, name)
	}
	for _, name := range []string{"rope_scaling", "model_type", "num_key_value_heads", "max_position_embeddings"} {
		delete(own, name)
	}
	own["rope_factor"], own["beta_fast"], own["beta_slow"] = yarn["factor"], yarn["beta_fast"], yarn["beta_slow"]
	own["original_seq_len"], own["dtype"], own["expert_dtype"] = yarn["original_max_position_embeddings"], "fp8", "fp4"
	return own
}

func TestParseConfigV41(t *testing.T) {
	want := model.FlashV41Config()
	full := released(want)
	text(full)["compress_ratios"] = append(text(full)["compress_ratios"].([]int), 0, 0, 0)
	flat := maps.Clone(text(full)) // without text_config
	flat["model_type"], flat["quantization_config"] = "deepseek_v41", full["quantization_config"]
	untyped := maps.Clone(flat)
	delete(untyped, "model_type")
	untyped["architectures"] = []string{"DeepseekV41ForCausalLM"}
	for name, f := range map[string]map[string]any{"released": full, "flat": flat, "by its architecture": untyped} {
		got, err := parse(t, f)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	got, err := parse(t, inferenceFile(full))
	require.NoError(t, err, "inference")
	got.Quantization = "fp8" // which that file does not say
	assert.Equal(t, want, got, "inference")
	kinds := map[string][]int{}
	for i, l := range want.Layers {
		kinds[l.Name] = append(kinds[l.Name], i)
		assert.Equal(t, l.Ratio > 0, want.Rope(i) == want.Compress, "layer %d: rotation", i)
	}
	assert.Equal(t, map[string][]int{"window": {0, 1}, "full2": {2, 8, 14}, "full-blocks1": {20}, "reindex-within1": {24, 28, 32, 36},
		"reuse2": {3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19},
		"reuse1": {21, 22, 23, 25, 26, 27, 29, 30, 31, 33, 34, 35, 37, 38, 39}}, kinds)
	for i, from := range map[int][2]int{2: {2, 2}, 7: {2, 2}, 13: {8, 8}, 20: {20, 20}, 23: {20, 20}, 24: {20, 24},
		27: {20, 24}, 39: {20, 36}} {
		assert.Equal(t, from, [2]int{want.Layers[i].EntriesOf, want.Layers[i].PicksOf}, "layer %d", i)
	}
	assert.Equal(t, 20, want.Layers[36].CandidatesOf)
	assert.Equal(t, model.Sources{Entries: []int{2, 8, 14, 20}, Picks: []int{2, 8, 14, 20, 24, 28, 32, 36}, Candidates: 20},
		model.SourcesOf(want.Layers))
	assert.Equal(t, float32(1e-20), want.Eps)
}

// Layers that draft need no ratios, and newer versions of transformers write types of layers beside
// the lists of sources.
func TestParseConfigV41Drafts(t *testing.T) {
	want := fakemodel.V41()
	f := released(want)
	c := text(f)
	c["compress_ratios"] = c["compress_ratios"].([]int)[:9]
	c["layer_types"] = slices.Repeat([]string{"sliding_attention"}, 9)
	for _, i := range []int{1, 3, 4} {
		c["layer_types"].([]string)[i] = "shared_compressed_attention"
	}
	for n, message := range map[int]string{1: "", -1: "num_nextn_predict_layers: got -1, want 0 to 4096",
		1 << 40: "num_nextn_predict_layers: got 1099511627776"} {
		dir := t.TempDir()
		c["num_nextn_predict_layers"] = n
		data, err := json.Marshal(f)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o666))
		_, err = model.LoadConfig(dir)
		require.NoError(t, err, "without drafts")
		got, err := model.LoadConfigWithDrafts(dir, "")
		if message != "" {
			require.ErrorIs(t, err, model.ErrConfig)
			assert.ErrorContains(t, err, message)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

// A token of V4.1-Flash takes 890 bytes: 2.5 entries and keys, of 288 and 68 bytes.
func TestCacheBytesV41(t *testing.T) {
	c := model.FlashV41Config()
	const tokens = 1 << 16
	assert.Equal(t, uint64(890*tokens), c.CacheBytes(3*tokens)-c.CacheBytes(2*tokens))
	state, err := cache.NewStateLayout(verify.C2Main, 16, 0)
	require.NoError(t, err)
	windows := uint64(40*3*64*528 + 3*2*state.Stride)
	assert.Equal(t, 890*tokens+windows, c.CacheBytes(tokens))
	c.Records = model.RecordsV4
	assert.Greater(t, c.CacheBytes(3*tokens)-c.CacheBytes(2*tokens), uint64(1790*tokens))
}

// Layers whose lists leave out what they read, and numbers that no model has, are refused by name.
func TestParseConfigV41Errors(t *testing.T) {
	for want, change := range map[string]func(c map[string]any){
		"kv_source_layer_ids: got [], want a layer at or below layer 1, whose ratio is 2": set("kv_source_layer_ids", []int{}),
		"kv_source_layer_ids: got absent, want a list of layers":                          set("kv_source_layer_ids", nil),
		"index_source_layer_ids: got absent, want a list of layers":                       set("index_source_layer_ids", nil),
		"kv_source_layer_ids: got [3 1 4], want numbers of the 9 layers, ascending":       set("kv_source_layer_ids", []int{3, 1, 4}),
		"kv_source_layer_ids: got [1 9], want numbers of the 9 layers, ascending":         set("kv_source_layer_ids", []int{1, 9}),
		"kv_source_layer_ids: got 0, want layers whose compress_ratios are not 0": set("kv_source_layer_ids",
			[]int{0, 1, 3, 4}),
		"index_source_layer_ids: got [1 4 6], want all of kv_source_layer_ids, [1 3 4]": set("index_source_layer_ids",
			[]int{1, 4, 6}),
		"compress_ratios: got 1 for layer 4, want 2, as layer 3 has it, whose entries it reads": set("kv_source_layer_ids", []int{1, 3}),
		"compress_ratios: got 4 for layer 2, want [0 1 2]": set("compress_ratios",
			[]int{0, 2, 4, 2, 1, 1, 1, 1, 1, 0}),
		"compress_ratios: got 3 ratios, want one for each of 9 layers":          set("compress_ratios", []int{0, 2, 2}),
		"candidate_source_layer_id: got 3, want one of index_source_layer_ids":  set("candidate_source_layer_id", 3),
		"candidate_source_layer_id: got 5, want one of index_source_layer_ids":  set("candidate_source_layer_id", 5),
		"candidate_source_layer_id: got 12, want one of index_source_layer_ids": set("candidate_source_layer_id", 12),
		"compress_ratios: got 2 for layer 6, want 1, as layer 4 has it, whose candidates it scores": func(c map[string]any) {
			c["compress_ratios"], c["kv_source_layer_ids"] = []int{0, 2, 2, 2, 1, 1, 2, 2, 2, 0}, []int{1, 3, 4, 6}
		},
		"candidate_source_layer_id: got absent":                       set("candidate_source_layer_id", nil),
		"candidate_topk_blocks: got absent":                           set("candidate_topk_blocks", nil),
		"candidate_block_size: got 0, want a power of two, 1 to 64":   set("candidate_block_size", 0),
		"candidate_block_size: got 12, want a power of two, 1 to 64":  set("candidate_block_size", 12),
		"candidate_block_size: got 128, want a power of two, 1 to 64": set("candidate_block_size", 128),
		"candidate_block_size: got absent":                            set("candidate_block_size", nil),
		"rms_norm_eps: got absent":                                    set("rms_norm_eps", nil),
		"index_n_heads: got absent":                                   set("index_n_heads", nil),
		"model_type: got \"deepseek_v41_vision\"":                     set("model_type", "deepseek_v41_vision"),
		"head_dim: got 576, want 512":                                 set("head_dim", 576),
		"quantization_config.weight_block_size: got [128 128], want [32 32]": set("quantization_config",
			map[string]any{"quant_method": "fp8", "weight_block_size": []int{128, 128}}),
	} {
		f := released(fakemodel.V41())
		delete(f, "quantization_config")
		change(text(f))
		_, err := parse(t, f)
		require.ErrorIs(t, err, model.ErrConfig, want)
		assert.ErrorContains(t, err, "model: config: "+want)
	}
	for want, change := range map[string]func(c map[string]any){ // the lists of another model are not passed over
		"kv_source_layer_ids: got [1 3 4], want absent":     func(map[string]any) {},
		"index_source_layer_ids: got [1 3 4 6 8], want abs": set("kv_source_layer_ids", nil),
		"candidate_source_layer_id: got 4, want absent": func(c map[string]any) {
			delete(c, "kv_source_layer_ids")
			delete(c, "index_source_layer_ids")
		},
	} {
		f := released(fakemodel.V41())
		f["model_type"], f["architectures"], text(f)["model_type"] = "deepseek_v4", nil, "deepseek_v4"
		change(text(f))
		_, err := parse(t, f)
		assert.ErrorContains(t, err, "model: config: "+want)
		f["architectures"] = []string{"DeepseekV41ForCausalLM"}
		_, err = parse(t, f)
		assert.ErrorContains(t, err, "architectures: got [DeepseekV41ForCausalLM], want another")
	}
	f := inferenceFile(released(fakemodel.V41()))
	delete(f, "window_size")
	_, err := parse(t, f)
	assert.EqualError(t, err, "model: config: window_size: got absent, want a value", "by the file's own names")
	f = released(fakemodel.V41())
	text(f)["candidate_source_layer_id"] = -1
	c, err := parse(t, f)
	require.NoError(t, err)
	assert.Equal(t, "reindex1", c.Layers[6].Name, "without candidates")
	assert.Equal(t, model.CandidatesNone, c.Layers[6].Candidates)
}

// After the layer that makes candidates, all that have an indexer pick from these, also where they
// have entries of their own or the candidates are of a layer without a compressor.
func TestCandidatesV41(t *testing.T) {
	for source, want := range map[int][]string{
		1: {"full-blocks1", "reuse1", "reindex-within1", "reuse1", "full-within1", "reindex-within1"},
		3: {"full1", "reuse1", "reindex-blocks1", "reuse1", "full-within1", "reindex-within1"},
		5: {"full1", "reuse1", "reindex1", "reuse1", "full-blocks1", "reindex-within1"},
		6: {"full1", "reuse1", "reindex1", "reuse1", "full1", "reindex-blocks1"},
	} {
		f := released(fakemodel.V41())
		c := text(f)
		c["num_hidden_layers"], c["compress_ratios"] = 7, []int{0, 1, 1, 1, 1, 1, 1}
		c["kv_source_layer_ids"], c["index_source_layer_ids"], c["candidate_source_layer_id"] = []int{1, 5}, []int{1, 3, 5, 6}, source
		cfg, err := parse(t, f)
		require.NoError(t, err)
		var names []string
		for _, l := range cfg.Layers[1:] {
			if names = append(names, l.Name); l.Candidates == model.CandidatesUsed {
				assert.Equal(t, source, l.CandidatesOf)
			}
		}
		assert.Equal(t, want, names, "candidates of layer %d", source)
	}
}

func set(name string, v any) func(c map[string]any) {
	return func(c map[string]any) {
		if c[name] = v; v == nil {
			delete(c, name)
		}
	}
}

// Rows about candidates, latents and blocks have to make sense.
func TestCheckLayersV41(t *testing.T) {
	for want, change := range map[string]func(l []model.Layer, c *model.Config){
		"layers[8].CandidatesOf":   func(l []model.Layer, c *model.Config) { l[8].CandidatesOf = 6 },
		"layers[6].CandidatesOf":   func(l []model.Layer, c *model.Config) { l[6].CandidatesOf = 6 },
		"layers[5]: got reuse1":    func(l []model.Layer, c *model.Config) { l[5].Candidates = model.CandidatesUsed },
		"layers[2]: got reuse2":    func(l []model.Layer, c *model.Config) { l[2].Latent = true },
		"layers[1]: got full2":     func(l []model.Layer, c *model.Config) { l[1].Latent = false },
		"layers[9]: got draft":     func(l []model.Layer, c *model.Config) { l[9].Ratio = 2 },
		"layers[3]: got full2":     func(l []model.Layer, c *model.Config) { l[3].Unplaced = false },
		"layers[4].Pools":          func(l []model.Layer, c *model.Config) { l[4].Pools = l[4].Pools[:1] },
		"dspark_block_size: got 0": func(l []model.Layer, c *model.Config) { c.DraftBlock = 0 },
		"candidate_topk_blocks":    func(l []model.Layer, c *model.Config) { c.CandidateBlocks = 0 },
		"candidate_block_size: got 6, want a power of two, 1 to 64": func(l []model.Layer, c *model.Config) { c.CandidateBlock = 6 },
		"weight_block_size: got 64, want 32 or 128":                 func(l []model.Layer, c *model.Config) { c.WeightBlock = 64 },
		"Records: got records(9), want v4 or v41":                   func(l []model.Layer, c *model.Config) { c.Records = 9 },
	} {
		c := fakemodel.V41()
		require.NoError(t, c.Check())
		c.Layers = slices.Clone(c.Layers)
		change(c.Layers, &c)
		assert.ErrorContains(t, c.Check(), want)
	}
}

// A checkpoint of V4.1 in the released form and others gives the weights that it was made of.
func TestCheckpointV41(t *testing.T) {
	cfg := fakemodel.V41()
	all := make([]int, len(cfg.Layers))
	for i := range all {
		all[i] = i
	}
	for _, storage := range []fakemodel.Storage{fakemodel.FP8, fakemodel.BF16, fakemodel.FP8F32, fakemodel.FP8Rows} {
		for _, prefix := range []string{"", "model.", "model.language_model."} {
			if storage != fakemodel.FP8 && prefix != "" {
				continue
			}
			m := fake(t, fakemodel.Options{Config: cfg, Storage: storage, Prefix: prefix, Seed: 3})
			c, err := openFake(t, m, 2, model.CheckpointOptions{Layers: all})
			require.NoError(t, err, "%s %s", storage, prefix)
			got := c.Config
			got.Quantization = cfg.Quantization
			require.Equal(t, cfg, got)
			for i := range c.Layers {
				compare(t, m, c, &c.Layers[i], storage != fakemodel.FP8F32)
			}
			wants := map[fakemodel.Storage]projection.Format{fakemodel.FP8: projection.FormatFP8x32, fakemodel.FP8Rows: projection.FormatFP8Rows}
			for _, m := range []model.Matrix{c.Layers[0].QB, c.Layers[0].OA, c.Layers[0].OB, c.Layers[1].Indexer.QB} {
				assert.Equal(t, cmp.Or(wants[storage], projection.FormatBF16), m.Format, "%s: %s", storage, m.Name)
			}
			if storage == fakemodel.FP8 { // wq_a ends within a block
				assert.Equal(t, projection.FormatBF16, c.Layers[0].QKV.Format)
			}
		}
	}
	m := fake(t, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})
	c, err := openFake(t, m, 1, model.CheckpointOptions{Rank: 1, Ranks: 2})
	require.NoError(t, err)
	require.Len(t, c.Layers, 9)
	for i := range c.Layers {
		compare(t, m, c, &c.Layers[i], true)
	}
}

func TestCheckpointV41Errors(t *testing.T) {
	for want, change := range map[string]func(m *fakemodel.Model){
		"layers.1.attn.indexer.wk.weight: got absent": func(m *fakemodel.Model) {
			m.Remove("layers.1.attn.indexer.wk.weight")
		},
		"layers.1.attn.compressor.wgate.weight: got absent": func(m *fakemodel.Model) {
			m.Remove("layers.1.attn.compressor.wgate.weight")
		},
		"layers.4.attn.compressor.wgate.weight: got an unknown tensor": add(
			"layers.4.attn.compressor.wgate.weight", 512, 112),
		"layers.1.attn.compressor.ape: got an unknown tensor":                         add("layers.1.attn.compressor.ape", 2, 512),
		"layers.6.attn.indexer.wk.weight: got an unknown tensor, want those of a rei": add("layers.6.attn.indexer.wk.weight", 128, 512),
		"layers.2.attn.indexer.wq_b.weight: got an unknown tensor":                    add("layers.2.attn.indexer.wq_b.weight", 256, 80),
		"shape [32, 3] for blocks":                                                    resize("layers.0.attn.wq_b.scale", 16, 1),
		"layers.3.attn.indexer.k_norm.weight: got BF16 [64], want shape [128]":        resize("layers.3.attn.indexer.k_norm.weight", 64),
	} {
		m := fake(t, fakemodel.Options{Config: fakemodel.V41(), Storage: fakemodel.FP8})
		change(m)
		_, err := openFake(t, m, 1, model.CheckpointOptions{})
		require.ErrorIs(t, err, model.ErrCheckpoint, want)
		assert.ErrorContains(t, err, want)
	}
}

// Every tensor of full and reindex layers has to be there, of its shape and type.
func TestCheckpointV41Tensors(t *testing.T) {
	cfg := fakemodel.V41()
	cfg.Layers = model.V41Layers(model.Sources{Entries: []int{1, 2}, Picks: []int{1, 2, 3}, Candidates: 2}, 0, 2, 1, 1, 1)
	cfg.Hidden, cfg.QRank, cfg.Heads, cfg.Groups = 40, 40, 2, 2
	whole := fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})
	tried := 0
	for _, x := range whole.Tensors {
		if layer, _, _ := strings.Cut(x.Name, ".attn."); !slices.Contains([]string{"layers.1", "layers.2", "layers.3"}, layer) {
			continue
		}
		for what, change := range map[string]func(m *fakemodel.Model, x *fakemodel.Tensor){
			"absent":          func(m *fakemodel.Model, x *fakemodel.Tensor) { m.Remove(x.Name) },
			"of integers":     func(m *fakemodel.Model, x *fakemodel.Tensor) { m.Remove(x.Name); m.Add(x.Name, "I32", x.Shape...) },
			"of another rank": func(m *fakemodel.Model, x *fakemodel.Tensor) { x.Shape = append([]int{1, 1}, x.Shape...) },
			"a row short": func(m *fakemodel.Model, x *fakemodel.Tensor) {
				m.Remove(x.Name)
				m.Add(x.Name, x.DType, append([]int{x.Shape[0] - 1}, x.Shape[1:]...)...)
			},
		} {
			m := *whole
			m.Tensors = nil
			for _, o := range whole.Tensors {
				c := *o
				m.Tensors = append(m.Tensors, &c)
			}
			change(&m, m.Find(x.Name))
			_, err := openFake(t, &m, 1, model.CheckpointOptions{})
			require.ErrorIs(t, err, model.ErrCheckpoint, "%s %s", x.Name, what)
			stem := strings.TrimSuffix(strings.TrimSuffix(x.Name, ".scale"), ".weight")
			assert.ErrorContains(t, err, stem, "%s %s", x.Name, what)
			tried++
		}
	}
	assert.Greater(t, tried, 200)
}

func add(name string, shape ...int) func(m *fakemodel.Model) {
	return func(m *fakemodel.Model) { m.Add(name, safetensors.BF16, shape...) }
}

func resize(name string, shape ...int) func(m *fakemodel.Model) {
	return func(m *fakemodel.Model) {
		x := m.Find(name)
		d := x.DType
		m.Remove(name)
		m.Add(strings.Clone(name), d, shape...)
	}
}

// Rows of FP8 in blocks of 32 by 32 that no kernel takes become bf16, with the same values.
func TestCheckpointV41Widths(t *testing.T) {
	cfg := fakemodel.V41()
	cfg.QRank, cfg.Hidden = 136, 40
	m := fake(t, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8, Seed: 5})
	c, err := openFake(t, m, 1, model.CheckpointOptions{})
	require.NoError(t, err)
	for i := range c.Layers {
		compare(t, m, c, &c.Layers[i], true)
		assert.Equal(t, projection.FormatBF16, c.Layers[i].QKV.Format)
		assert.Equal(t, projection.FormatBF16, c.Layers[i].QB.Format)
		assert.Equal(t, projection.FormatFP8x32, c.Layers[i].OA.Format)
	}
}
