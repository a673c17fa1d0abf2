package model_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// drafted is a small model with two layers that only predict ahead.
func drafted() model.Config {
	c := fakemodel.Config(1, 4, 128, 0, 4)
	c.Hidden, c.Heads, c.QRank, c.ORank, c.IndexHeads = 64, 2, 64, 16, 2
	c.Layers[3].Draft, c.Layers[4].Draft = true, true
	return c
}

// sameLayers demands the same bytes of two lists of layers.
func sameLayers(t *testing.T, want, got []model.LayerWeights) {
	t.Helper()
	require.Equal(t, len(want), len(got))
	blob := func(name string, a, b model.Blob) {
		t.Helper()
		require.True(t, bytes.Equal(must[[]byte](t)(a.Bytes()), must[[]byte](t)(b.Bytes())), "%s: other bytes", name)
	}
	for i := range want {
		a, b := &want[i], &got[i]
		require.Equal(t, a.Layer, b.Layer)
		require.Equal(t, len(a.Matrices()), len(b.Matrices()))
		for j, m := range a.Matrices() {
			n := b.Matrices()[j]
			require.Equal(t, []any{m.Format, m.N, m.K, m.Global}, []any{n.Format, n.N, n.K, n.Global}, n.Name)
			blob(n.Name, m.Data, n.Data)
			blob(n.Name, m.Scales, n.Scales)
			blob(n.Name, m.RowScales, n.RowScales)
		}
		for j, v := range a.Vectors() {
			w := b.Vectors()[j]
			require.Equal(t, []any{v.DType, v.Shape}, []any{w.DType, w.Shape}, w.Name)
			blob(w.Name, v.Data, w.Data)
		}
	}
}

// Every spelling, after every prefix, gives the bytes of the plain one, layers that predict ahead
// among them.
func TestSpellings(t *testing.T) {
	all := model.CheckpointOptions{Layers: []int{4, 0, 1, 2, 3}}
	for i, s := range []fakemodel.Storage{fakemodel.FP8, fakemodel.NVFP4} {
		plain, err := openFake(t, fake(t, fakemodel.Options{Config: drafted(), Storage: s}), 1, all)
		require.NoError(t, err)
		require.Len(t, plain.Config.Layers, 5)
		for _, naming := range fakemodel.Namings() {
			for j, prefix := range []string{"", "model.", "language_model.", "model.language_model.", "language_model.model."} {
				if naming == fakemodel.Prefixed || naming == fakemodel.Modules { // which begin with model.
					if strings.HasPrefix(prefix, "model.") || strings.HasSuffix(prefix, ".model.") {
						continue
					}
				}
				if i > 0 && j > 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%s", s, naming, prefix), func(t *testing.T) {
					m := fake(t, fakemodel.Options{Config: drafted(), Storage: s, Naming: naming, Prefix: prefix})
					c, err := openFake(t, m, 1, all)
					require.NoError(t, err)
					sameLayers(t, plain.Layers, c.Layers)
				})
			}
		}
	}
}

// What could be read in two ways is refused, and the error names the second of the two.
func TestSpellingsAmbiguous(t *testing.T) {
	for name, c := range map[string]struct {
		naming fakemodel.Naming
		extra  string
		want   string
	}{
		"two places of the indexer": {fakemodel.Released, "layers.1.attn.compressor.indexer.wq_b.weight", "the same tensor as"},
		"a scale":                   {fakemodel.Released, "layers.1.attn.compressor.indexer.wq_b.scale", "the same tensor as"},
		"two names of a module":     {fakemodel.Moved, "layers.1.self_attn.compressor.indexer.q_b_proj.weight", "the same tensor as"},
		"nested and not": {fakemodel.NestedModules, "layers.1.self_attn.compressor.indexer.kv_proj.weight",
			"the same tensor as"},
		"two modules":                {fakemodel.Released, "layers.1.self_attn.wq_b.weight", "names with layers.N.attn throughout"},
		"two prefixes":               {fakemodel.Released, "language_model.layers.1.attn.wq_b.weight", "throughout"},
		"two prefixes, other layers": {fakemodel.Released, "model.language_model.layers.9.attn.wq_b.weight", "throughout"},
		"two prefixes of a draft":    {fakemodel.Released, "model.mtp.0.attn.wq_b.weight", "throughout"},
		"a draft under two numbers":  {fakemodel.Released, "layers.3.attn.wq_b.weight", "the same tensor as"},
	} {
		m := fake(t, fakemodel.Options{Config: drafted(), Storage: fakemodel.FP8, Naming: c.naming})
		m.Add(c.extra, safetensors.BF16, 1)
		_, err := openFake(t, m, 1, model.CheckpointOptions{Layers: []int{1, 3}})
		assert.ErrorIs(t, err, model.ErrCheckpoint, name)
		assert.ErrorContains(t, err, c.want, name)
	}
}

// Draft layers are read when they are asked for, and only then looked at.
func TestDrafts(t *testing.T) {
	cfg := drafted()
	m := fake(t, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})
	c, err := openFake(t, m, 1, model.CheckpointOptions{})
	require.NoError(t, err)
	assert.Len(t, c.Config.Layers, 3)
	assert.Len(t, c.Layers, 3)
	c, err = openFake(t, m, 1, model.CheckpointOptions{Layers: []int{3, 4}})
	require.NoError(t, err)
	assert.Equal(t, cfg.Layers, c.Config.Layers)
	assert.Equal(t, 3, c.Layers[0].Layer)
	assert.Nil(t, c.Layers[0].Compressor)
	assert.NotNil(t, c.Layers[1].Indexer)
	assert.Equal(t, cfg.Main, c.Config.Rope(3))
	mtp := m.Values["mtp.0.attn.wo_b.weight"]
	row := make([]float32, c.Layers[0].OB.K)
	require.NoError(t, c.Layers[0].OB.Row(1, row))
	assert.Equal(t, mtp[len(row):2*len(row)], row)

	again := c.Config // the configuration of a checkpoint reads it again
	c, err = openFake(t, m, 1, model.CheckpointOptions{Config: &again, Layers: []int{4}})
	require.NoError(t, err)
	assert.Len(t, c.Layers, 1)

	for _, x := range m.Tensors { // numbered on after the others
		x.Name = strings.Replace(strings.Replace(x.Name, "mtp.0.", "layers.3.", 1), "mtp.1.", "layers.4.", 1)
	}
	d, err := openFake(t, m, 1, model.CheckpointOptions{Layers: []int{4}})
	require.NoError(t, err)
	sameLayers(t, c.Layers, d.Layers)
	m.Remove("layers.3.attn.wkv.scale")
	_, err = openFake(t, m, 1, model.CheckpointOptions{Layers: []int{3}})
	assert.ErrorContains(t, err, "mtp.0.attn.wkv.scale: got absent")

	bad := cfg
	bad.Layers = append([]model.Layer{}, cfg.Layers...)
	bad.Layers[4].Draft = false
	assert.ErrorIs(t, bad.Check(), model.ErrConfig)
}

// The released lists of ratios: 44, 46 and 62 of them.
func TestDraftRatios(t *testing.T) {
	for _, c := range []struct {
		cfg   model.Config
		tails []any // of compress_ratios
		types []string
		want  int // draft layers; below 0: the error
	}{
		{model.FlashConfig(), []any{0}, nil, 1}, {model.FlashConfig(), []any{0, 0, 0}, nil, 3}, {model.ProConfig(), []any{0}, nil, 1},
		{model.FlashConfig(), nil, nil, 0}, {model.FlashConfig(), []any{0, 4}, []string{"sliding_attention"}, 2},
		{model.FlashConfig(), []any{4}, []string{"sliding_attention"}, -1}, {model.FlashConfig(), []any{7}, nil, -1},
	} {
		f := released(c.cfg)
		var list []any
		for _, l := range c.cfg.Layers {
			list = append(list, l.Ratio)
		}
		f["compress_ratios"] = append(list, c.tails...)
		if c.types != nil {
			var types []string
			for _, l := range c.cfg.Layers {
				types = append(types, map[int]string{0: "sliding_attention", 4: "compressed_sparse_attention",
					128: "heavily_compressed_attention"}[l.Ratio])
			}
			f["layer_types"] = append(types, c.types...)
		}
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), must[[]byte](t)(json.Marshal(f)), 0o666))
		main, err := model.LoadConfig(dir)
		require.NoError(t, err)
		assert.Equal(t, c.cfg.Layers, main.Layers)
		all, err := model.LoadConfigWithDrafts(dir, "")
		if c.want < 0 {
			assert.ErrorIs(t, err, model.ErrConfig)
			continue
		}
		require.NoError(t, err)
		require.Len(t, all.Layers, len(main.Layers)+c.want)
		for i, l := range all.Layers {
			assert.Equal(t, i >= len(main.Layers), l.Draft)
			assert.Equal(t, i, l.EntriesOf)
		}
	}
}

// DeepSeek-V4-Flash-0731 and V4-Flash-DSpark have one draft block in mtp.0 to mtp.2, whose keys are
// of the target's states, and say num_nextn_predict_layers 1. It is never read as layers of MTP.
func TestDSparkOfV4(t *testing.T) {
	want := fakemodel.Config(0, 4).WithDrafts(3)
	want.DraftTargets = []int{0, 1}
	want.Quantization = "fp8"
	all := model.CheckpointOptions{Layers: []int{0, 1, 2, 3, 4}}
	assert.Equal(t, 5, want.DraftBlock)
	for name, change := range map[string]func(f map[string]any, outer map[string]any){
		"as released":        func(f, _ map[string]any) {},
		"the ratios of one":  func(f, _ map[string]any) { f["compress_ratios"] = []int{0, 4, 0} },
		"no more ratios":     func(f, _ map[string]any) { f["compress_ratios"] = []int{0, 4} },
		"of the inner model": func(_, outer map[string]any) { outer["model_type"] = "deepseek_v4_vl" },
	} {
		m := fake(t, fakemodel.Options{Config: want})
		inner, outer := m.Config, map[string]any{}
		if change(inner, outer); len(outer) > 0 {
			outer["text_config"], m.Config = inner, outer
		}
		c, err := openFake(t, m, 1, all)
		require.NoError(t, err, name)
		assert.Equal(t, want, c.Config, name)
		assert.Len(t, c.Layers, 5, name)
		c, err = openFake(t, m, 1, model.CheckpointOptions{})
		require.NoError(t, err, name)
		assert.Equal(t, want.Layers[:2], c.Config.Layers, "the target alone")
	}
	for message, keys := range map[string]map[string]any{
		"dspark_block_size: got absent":                         {"dspark_block_size": nil},
		"dspark_block_size: got 65, want 1 to 64":               {"dspark_block_size": 65},
		"dspark_block_size: got -1, want 1 to 64":               {"dspark_block_size": -1},
		"compress_ratios: got 4 for layer 3, want 0":            {"compress_ratios": []int{0, 4, 0, 4, 0}},
		"dspark_target_layer_ids: got [0 2], want numbers of":   {"dspark_target_layer_ids": []int{0, 2}},
		"dspark_target_layer_ids: got [1 0], want numbers of":   {"dspark_target_layer_ids": []int{1, 0}},
		"dspark_target_layer_ids: got [-1], want numbers of":    {"dspark_target_layer_ids": []int{-1}},
		"Layers: got 5, want each of 0 to 4 at most once":       {},
		"compress_ratios: got 2 ratios, want 0 for each layer ": {"num_hidden_layers": 2, "compress_ratios": []int{0, 4}},
	} {
		m, o := fake(t, fakemodel.Options{Config: want}), all
		maps.Copy(m.Config, keys)
		switch {
		case len(keys) == 0:
			o.Layers = []int{5}
		case len(keys) == 2: // a configuration alone
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), must[[]byte](t)(json.Marshal(m.Config)), 0o666))
			_, err := model.LoadConfigWithDrafts(dir, "")
			assert.ErrorContains(t, err, message)
			continue
		}
		_, err := openFake(t, m, 1, o)
		require.Error(t, err, message)
		assert.ErrorContains(t, err, message)
	}
	m := fake(t, fakemodel.Options{Config: drafted()})
	m.Config["num_nextn_predict_layers"], m.Config["dspark_block_size"] = 2, nil
	c, err := openFake(t, m, 1, model.CheckpointOptions{Layers: []int{3}})
	require.NoError(t, err, "layers of MTP")
	assert.Equal(t, drafted().Layers, c.Config.Layers)
	m = fake(t, fakemodel.Options{Config: want})
	m.Config["dspark_target_layer_ids"] = nil
	c, err = openFake(t, m, 1, model.CheckpointOptions{Layers: []int{2}})
	require.NoError(t, err, "targets that the configuration does not name")
	assert.Nil(t, c.Config.DraftTargets)
}

// A tensor that only a DSpark block has makes its layers one, with as many targets as it reads.
func TestDSparkProjection(t *testing.T) {
	cfg := fakemodel.Config(0, 4).WithDrafts(1)
	cfg.DraftTargets = []int{0, 1}
	h := cfg.Hidden
	none := map[string]any{"dspark_block_size": nil, "dspark_target_layer_ids": nil, "compress_ratios": []int{0, 4, 0}}
	empty := map[string]any{"dspark_block_size": 0, "dspark_target_layer_ids": []int{}, "compress_ratios": []int{0, 4, 0}}
	const foreign = ": got a tensor of a DSpark block, want dspark_block_size in config.json"
	for _, c := range []struct {
		tensor string
		width  int
		keys   map[string]any
		layer  int
		want   string // "": it is read
	}{
		{"mtp.0.main_proj.weight", 2 * h, nil, 2, ""},
		{"mtp.0.main_proj.weight", 3 * h, nil, 0, ""},
		{"mtp.0.main_proj.weight", 3 * h, map[string]any{"dspark_target_layer_ids": nil}, 2, ""},
		{"mtp.0.main_proj.weight", 3 * h, nil, 2, fmt.Sprintf("mtp.0.main_proj.weight: got BF16 [%d, %d], want shape [%d %d]", h, 3*h, h, 2*h)},
		{"model.layers.2.main_proj.weight", h, nil, 2, "model.layers.2.main_proj.weight: got BF16"},
		{"mtp.0.main_norm.weight", h, none, 2, ""},
		{"mtp.0.main_proj.weight", 2 * h, none, 0, ""},
		{"mtp.0.main_proj.weight", 2 * h, none, 2, "mtp.0.main_proj.weight" + foreign},
		{"mtp.0.main_proj.weight", 2 * h, empty, 2, "mtp.0.main_proj.weight" + foreign},
		{"mtp.0.main_proj.weight_packed", h, none, 2, "mtp.0.main_proj.weight_packed" + foreign},
	} {
		m := fake(t, fakemodel.Options{Config: cfg})
		m.Add(c.tensor, safetensors.BF16, h, c.width)
		maps.Copy(m.Config, c.keys)
		_, err := openFake(t, m, 2, model.CheckpointOptions{Layers: []int{c.layer}})
		if c.want == "" {
			assert.NoError(t, err, "%+v", c)
			continue
		}
		assert.ErrorIs(t, err, model.ErrCheckpoint, "%+v", c)
		assert.ErrorContains(t, err, c.want)
	}
}

// A text model inside another.
func TestTextConfig(t *testing.T) {
	type m = map[string]any
	inner := released(model.FlashConfig())
	quant := inner["quantization_config"]
	delete(inner, "quantization_config")
	for name, c := range map[string]struct {
		file  m
		field string // that the error names; "": none
	}{
		"nested": {m{"model_type": "deepseek_v4_vl", "text_config": inner, "quantization_config": quant}, ""},
		"repeated": {m{"text_config": inner, "quantization_config": quant, "hidden_size": 4096, "vision_config": m{"hidden_size": 1}},
			""},
		"contradicted":   {m{"text_config": inner, "hidden_size": 1024}, "text_config.hidden_size"},
		"ratios":         {m{"text_config": inner, "compress_ratios": []int{0}}, "text_config.compress_ratios"},
		"only outside":   {m{"text_config": m{"model_type": "deepseek_v4"}, "hidden_size": 1024}, "hidden_size"},
		"twice nested":   {m{"text_config": m{"text_config": inner}}, "text_config.text_config"},
		"not an object":  {m{"text_config": 3}, "text_config"},
		"another inside": {m{"model_type": "deepseek_v4", "text_config": m{"model_type": "llama"}}, "model_type"},
	} {
		got, err := parse(t, c.file)
		if c.field == "" {
			require.NoError(t, err, name)
			assert.Equal(t, model.FlashConfig(), got, name)
			continue
		}
		var ce *model.ConfigError
		require.ErrorAs(t, err, &ce, name)
		assert.Equal(t, c.field, ce.Field, name)
	}
}

// TestImages holds that a model which also sees images says so, in one file or several, and opens
// as its text does.
func TestImages(t *testing.T) {
	for name, images := range map[string]bool{
		"vision.patch_embed.weight": true, "model.aligner.fc1.weight": true, "language_model.vision.norm.weight": true,
		"layers.1.vision.weight": false, "visions.weight": false, "head.weight": false,
	} {
		for shards := range 2 {
			m := fakemodel.New(fakemodel.Options{Config: drafted()})
			m.Add(name, safetensors.BF16, 8, 8)
			dir := t.TempDir()
			require.NoError(t, m.Write(dir, 1+shards))
			c := must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{}))
			assert.Equal(t, images, c.Images, name)
			assert.Len(t, c.Layers, 3)
			require.NoError(t, c.Close())
		}
	}
}
