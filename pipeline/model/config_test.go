package model_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline/model"
)

// released is a config.json in the spelling of the released checkpoints.
func released(cfg model.Config) map[string]any { return fakemodel.ConfigFile(cfg) }

// spelledAnew turns a released configuration into transformers' spelling.
func spelledAnew(f map[string]any) map[string]any {
	f = maps.Clone(f)
	types := []string{}
	for _, r := range f["compress_ratios"].([]int)[:f["num_hidden_layers"].(int)] {
		types = append(types, map[int]string{0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}[r])
	}
	f["layer_types"] = types
	f["compress_rates"] = map[string]int{"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
	yarn := maps.Clone(f["rope_scaling"].(map[string]any))
	yarn["rope_type"], yarn["rope_theta"], yarn["attention_factor"], yarn["partial_rotary_factor"] = "yarn", 160000.0, 1.0, 0.125
	f["rope_parameters"] = map[string]any{"main": map[string]any{"rope_type": "default", "rope_theta": 10000.0}, "compress": yarn}
	f["partial_rotary_factor"] = 0.125
	for _, old := range []string{"compress_ratios", "rope_scaling", "qk_rope_head_dim", "rope_theta", "compress_rope_theta"} {
		delete(f, old)
	}
	return f
}

func parse(t *testing.T, f map[string]any) (model.Config, error) {
	t.Helper()
	data, err := json.Marshal(f)
	require.NoError(t, err)
	return model.ParseConfig(data)
}

func TestParseConfig(t *testing.T) {
	for name, want := range map[string]model.Config{"flash": model.FlashConfig(), "pro": model.ProConfig()} {
		old := released(want)
		flat := spelledAnew(old) // rope_parameters without names
		flat["rope_parameters"], flat["rope_theta"], flat["compress_rope_theta"] = old["rope_scaling"], 10000, 160000
		for spelling, f := range map[string]map[string]any{"released": old, "transformers": spelledAnew(old), "flat": flat} {
			got, err := parse(t, f)
			assert.NoError(t, err, "%s, %s", name, spelling)
			assert.Equal(t, want, got, "%s, %s", name, spelling)
		}
	}
	f, p := model.FlashConfig(), model.ProConfig()
	require.Len(t, f.Layers, 43, "layers of the released models")
	assert.True(t, f.Layers[42].Ratio == 4 && f.Layers[41].Ratio == 128 && f.Layers[1].Ratio == 0 &&
		len(p.Layers) == 61 && p.Layers[60].Ratio == 4 && p.Layers[0].Ratio == 128 && p.Layers[2].Ratio == 4 &&
		p.HeadsPerGroup() == 8, "layers of the released models")
	c := model.FlashConfig()
	assert.False(t, c.Rope(0) != (model.Rope{Theta: 10000, Factor: 1}) || c.Rope(2).Theta != 160000 ||
		!c.Rope(3).Scaled() || c.Rope(1).Scaled(), "rotation of layers")
	assert.Equal(t, 0, (model.Config{}).HeadsPerGroup(), "no groups, layers that are not there")
	require.Equal(t, model.Rope{}, c.Rope(-1), "no groups, layers that are not there")
	assert.Equal(t, model.Rope{}, c.Rope(43), "no groups, layers that are not there")
}

func TestParseConfigErrors(t *testing.T) {
	type m = map[string]any
	set := func(f m, path string, v any) {
		keys := strings.Split(path, ".")
		for _, k := range keys[:len(keys)-1] {
			inner := maps.Clone(f[k].(m))
			f[k] = inner
			f = inner
		}
		if v == nil {
			delete(f, keys[len(keys)-1])
		} else {
			f[keys[len(keys)-1]] = v
		}
	}
	for _, c := range []struct {
		anew  bool
		field string // that is changed
		v     any    // nil removes it
		named string // in the error, "" if it is field
	}{
		{false, "model_type", "llama", ""},
		{false, "hidden_size", nil, ""},
		{false, "hidden_size", 0, ""},
		{false, "hidden_size", -4096, ""},
		{false, "hidden_size", 4097, ""},
		{false, "hidden_size", 1 << 40, ""},
		{false, "hidden_size", 4096.5, ""},
		{false, "hidden_size", "4096", ""},
		{false, "hidden_size", 1e300, ""},
		{false, "num_hidden_layers", 0, ""},
		{false, "num_hidden_layers", 1 << 50, ""},
		{false, "num_hidden_layers", 45, "compress_ratios"},
		{false, "num_attention_heads", 129, ""},
		{false, "num_attention_heads", nil, ""},
		{false, "num_key_value_heads", 8, ""},
		{false, "head_dim", 128, ""},
		{false, "qk_rope_head_dim", 128, ""},
		{false, "partial_rotary_factor", 0.25, ""},
		{false, "index_head_dim", 64, ""},
		{false, "index_n_heads", nil, ""},
		{false, "index_topk", 0, ""},
		{false, "index_topk", 2049, ""},
		{false, "q_lora_rank", -8, ""},
		{false, "o_lora_rank", nil, ""},
		{false, "o_groups", 7, ""},
		{false, "o_groups", 0, ""},
		{false, "sliding_window", 0, ""},
		{false, "max_position_embeddings", nil, ""},
		{false, "rms_norm_eps", -1, ""},
		{false, "attention_bias", true, ""},
		{false, "compress_ratios", nil, ""},
		{false, "compress_ratios", append(make([]int, 42), 8), ""},
		{false, "compress_ratios", append(make([]any, 42), 4), ""}, // null
		{false, "compress_ratios", append(make([]int, 42), -4), ""},
		{false, "layer_types", strings.Split(strings.Repeat("sliding_attention ", 43), " "), ""},
		{false, "rope_theta", -1, ""},
		{false, "rope_scaling", nil, ""},
		{false, "rope_scaling.type", "longrope", ""},
		{false, "rope_scaling.factor", nil, ""},
		{false, "rope_scaling.factor", 0.5, ""},
		{false, "rope_scaling.factor", 0, ""},
		{false, "rope_scaling.factor", math.Copysign(0, -1), ""},
		{false, "rope_scaling", m{}, ""},
		{false, "rope_scaling.attention_factor", 1.2, ""},
		{false, "rope_scaling.beta_fast", 0.5, ""},
		{false, "rope_scaling.original_max_position_embeddings", nil, ""},
		{false, "rope_scaling.original_max_position_embeddings", -1, ""},
		{false, "quantization_config.weight_block_size", []int{64, 128}, ""},
		{false, "quantization_config.weight_block_size", []int{128}, ""},
		{true, "layer_types", []string{"sliding_attention"}, ""},
		{true, "layer_types", strings.Split(strings.Repeat("full_attention ", 43), " "), ""},
		{true, "compress_rates", map[string]int{"compressed_sparse_attention": 8}, ""},
		{true, "compress_rates", map[string]int{"linear_attention": 8}, ""},
		{true, "rope_parameters.main", nil, "rope_parameters"},
		{true, "rope_parameters.compress.partial_rotary_factor", 1, ""},
		{true, "rope_theta", 20000, ""},
		// The rotation is given in several places, and not in all of them the same.
		{true, "compress_rope_theta", 10000, ""},
		{true, "rope_scaling", m{"type": "yarn", "factor": 4, "original_max_position_embeddings": 65536}, "rope_scaling.factor"},
		{true, "rope_scaling", m{"type": "yarn", "factor": 16, "original_max_position_embeddings": 4096}, "rope_scaling.original_max_position_embeddings"},
		{true, "rope_scaling", m{"type": "yarn", "factor": 16, "beta_fast": 16, "original_max_position_embeddings": 65536}, "rope_scaling.beta_fast"},
		{true, "rope_scaling", m{"type": "default"}, "rope_scaling.factor"},
		{true, "rope_scaling", m{"main": m{}}, "rope_scaling"},
		{true, "rope_scaling", m{"main": m{"rope_theta": 5}, "compress": m{}}, "rope_scaling.main.rope_theta"},
		{false, "rope_parameters", m{"type": "yarn", "factor": 4, "original_max_position_embeddings": 65536}, "rope_scaling.factor"},
		{false, "rope_parameters", m{"type": "yarn", "rope_theta": 50000, "factor": 16, "original_max_position_embeddings": 65536}, "rope_parameters.rope_theta"},
		{false, "rope_scaling.rope_theta", 50000, ""},
		{false, "rope_scaling.rope_type", "default", "rope_scaling.type"},
		{false, "rope_scaling.type", nil, ""},
		{false, "rope_scaling.mscale", 0.707, ""},
		{false, "rope_scaling.truncate", false, ""},
	} {
		f := released(model.FlashConfig())
		if c.anew {
			f = spelledAnew(f)
		}
		set(f, c.field, c.v)
		_, err := parse(t, f)
		var ce *model.ConfigError
		if want := c.named; !errors.Is(err, model.ErrConfig) || !errors.As(err, &ce) {
			t.Errorf("%s = %v: %v", c.field, c.v, err)
		} else if want == "" && ce.Field != c.field || want != "" && ce.Field != want {
			t.Errorf("%s = %v: error names %s: %v", c.field, c.v, ce.Field, err)
		}
	}
	for _, text := range []string{"", "null", "[]", "{} {}", `{"hidden_size":`, "\x00", fmt.Sprintf(`{"compress_ratios":%q}`, "x")} {
		_, err := model.ParseConfig([]byte(text))
		assert.ErrorIs(t, err, model.ErrConfig, "%q", text)
	}
}

// What says the same twice, or says what every model has, changes nothing.
// What JSON has of another type is named in its words.
func TestParseConfigTypes(t *testing.T) {
	for want, file := range map[string]string{
		"hidden_size: got an array, want a whole number":     `{"hidden_size": [4096]}`,
		"hidden_size: got a number 1.5, want a whole number": `{"hidden_size": 1.5}`,
		"compress_ratios: got a string, want numbers":        `{"compress_ratios": "4"}`,
		"compress_ratios: got an object, want numbers":       `{"compress_ratios": {}}`,
		"compress_ratios: got null, want a whole number":     `{"compress_ratios": [null]}`,
		"layer_types: got a bool, want strings":              `{"layer_types": true}`,
		"rms_norm_eps: got a string, want a number":          `{"rms_norm_eps": "1e-6"}`,
		"attention_bias: got an object, want true or false":  `{"attention_bias": {}}`,
		"model_type: got an array, want a string":            `{"model_type": []}`,
		"quantization_config: got an array, want an object":  `{"quantization_config": []}`,
		"compress_rates: got an array, want an object":       `{"compress_rates": []}`,
		"rope_scaling.factor: got a bool, want a number":     `{"rope_scaling": {"factor": true}}`,
	} {
		_, err := model.ParseConfig([]byte(file))
		assert.EqualError(t, err, "model: config: "+want)
	}
}

func TestParseConfigRopes(t *testing.T) {
	type m = map[string]any
	yarn := func(more m) m {
		f := m{"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
		maps.Copy(f, more)
		return f
	}
	named := m{"main": m{"rope_theta": 10000}, "compress": yarn(m{"rope_theta": 160000}), "rope_theta": 10000, "rope_type": "default"}
	for name, more := range map[string]m{
		"theta of all layers":    {"rope_scaling": yarn(m{"rope_theta": 10000})},
		"theta of scaled layers": {"rope_scaling": yarn(m{"rope_theta": 160000})},
		"no theta elsewhere":     {"rope_scaling": yarn(m{"rope_theta": 10000}), "rope_theta": nil, "compress_rope_theta": nil},
		"twice":                  {"rope_parameters": yarn(nil)},
		"in both spellings":      {"rope_parameters": named},
		"names in rope_scaling":  {"rope_scaling": named},
		"one length":             {"rope_scaling": yarn(m{"mscale": 1, "mscale_all_dim": 1, "truncate": true, "type": "YaRN"})},
		"length overridden":      {"rope_scaling": yarn(m{"mscale": 1, "attention_factor": 1})},
	} {
		f := released(model.FlashConfig())
		maps.Copy(f, more)
		c, err := parse(t, f)
		assert.NoError(t, err, name)
		assert.Equal(t, model.FlashConfig(), c, name)
	}
}

// A model without compressors needs neither an indexer nor a scaling.
func TestParseConfigWindowOnly(t *testing.T) {
	f := released(model.FlashConfig())
	f["compress_ratios"] = make([]int, 43)
	for _, name := range []string{"index_n_heads", "index_topk", "rope_scaling"} {
		delete(f, name)
	}
	c, err := parse(t, f)
	assert.NoError(t, err, "%+v", c)
	assert.Equal(t, float64(10000), c.Rope(5).Theta, "%+v", c)
}

func TestLoadConfig(t *testing.T) {
	_, err := model.LoadConfig(t.TempDir())
	assert.ErrorIs(t, err, os.ErrNotExist)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "config.json"), 0o777))
	_, err = model.LoadConfig(dir)
	assert.ErrorIs(t, err, os.ErrInvalid)
	dir = t.TempDir()
	data, err := json.Marshal(released(model.ProConfig()))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), data, 0o666)
	}
	require.NoError(t, err)
	c, err := model.LoadConfig(dir)
	assert.NoError(t, err)
	assert.Equal(t, model.ProConfig(), c)
}

func FuzzParseConfig(f *testing.F) {
	v41 := released(fakemodel.V41())
	flat := maps.Clone(text(v41))
	flat["model_type"], flat["quantization_config"] = "deepseek_v41", v41["quantization_config"]
	for _, m := range []map[string]any{released(model.FlashConfig()), spelledAnew(released(model.FlashConfig())),
		released(model.ProConfig()), spelledAnew(released(model.ProConfig())), v41, flat, inferenceFile(v41)} {
		data, err := json.Marshal(m)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := model.ParseConfig(data)
		switch {
		case err != nil && !errors.Is(err, model.ErrConfig):
			t.Errorf("untyped error %v", err)
		case err == nil && c.Check() != nil:
			t.Errorf("%+v was accepted: %v", c, c.Check())
		}
	})
}

// The error about an absent scaling says how to write that there is none.
func TestConfigWithoutScaling(t *testing.T) {
	f := released(model.FlashConfig())
	delete(f, "rope_scaling")
	said := `{"rope_type": "default"} for none`
	_, err := parse(t, f)
	assert.ErrorContains(t, err, said)
	f["rope_scaling"] = map[string]any{"rope_type": "default"}
	c, err := parse(t, f)
	assert.NoError(t, err)
	assert.Equal(t, model.Rope{Theta: 160000, Factor: 1}, c.Compress)
}
