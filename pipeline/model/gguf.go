package model

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/gguf"
)

// architecture is that of DeepSeek-V4 in GGUF. Its keys begin with it.
const architecture = "deepseek4"

// ggufOf returns the GGUF file that a path means, "" for none.
func ggufOf(path string) (string, error) {
	file, err := gguf.Find(path)
	if err != nil {
		return "", &CheckpointError{Tensor: "model", err: err}
	}
	return file, nil
}

// foreignGGUF explains a GGUF file that is not read.
func foreignGGUF(e *gguf.ForeignError) error {
	what := e.What
	switch {
	case olderLayout(e.Name):
		what = olderWhat
	case what == "a tensor of type 42":
		what = "a tensor of type 42, Q2_0 of llama.cpp or F8_E4M3_B128 of a fork"
	}
	return &ForeignError{e.File, e.Name, what}
}

// olderWhat is a layout that a fork had before llama.cpp read the model.
const olderWhat = "an older layout of DeepSeek-V4 in GGUF"

var olderNames = []string{".attn_kv_latent.", ".attn_kv_a_mqa.", ".attn_compress_", ".indexer.compress_"}

func olderLayout(name string) bool {
	return slices.ContainsFunc(olderNames, func(part string) bool { return strings.Contains(name, part) })
}

// checkArchitecture refuses files of other models and other kinds of files.
func checkArchitecture(m *gguf.Model, file string) error {
	r := ggufReader{keys: m.Keys}
	return r.guard(func() {
		arch, kind := ggufText(&r, "general.architecture"), "model"
		if _, there := m.Keys["general.type"]; there {
			kind = ggufText(&r, "general.type")
		}
		name := filepath.Base(file)
		switch {
		case r.err != nil:
		case arch == "deepseek41":
			r.err = &ForeignError{name, "general.architecture", "DeepSeek-V4.1 in GGUF, whose layout is not settled " +
				"(converters disagree about engram tables, and none says which layer makes candidates)"}
		case isDraftFile(arch):
			r.bad("general.architecture", arch+", a draft block", "a model's file, with the draft block's beside it")
		case arch != architecture:
			r.err = &ForeignError{name, "general.architecture", fmt.Sprintf("a model of architecture %.60q", arch)}
		case kind != "model":
			r.err = &ForeignError{name, "general.type", fmt.Sprintf("a file of type %.60q", kind)}
		}
		if r.err != nil {
			return
		}
		for _, t := range m.Names() {
			if olderLayout(t) {
				x, _ := m.Tensor(t)
				r.err = &ForeignError{x.File, t, olderWhat}
				return
			}
		}
	})
}

// ggufReader reads keys. It remembers the first error.
type ggufReader struct {
	keys map[string]gguf.Value
	err  error
}

// guard runs f, which reads keys, and returns the first error.
func (r *ggufReader) guard(f func()) error {
	err := gguf.Guard(func() error { f(); return r.err })
	if errors.Is(err, gguf.ErrFormat) {
		return fileError(err)
	}
	return err
}

func (r *ggufReader) bad(key string, got any, want string) {
	if r.err == nil {
		r.err = &ConfigError{key, fmt.Sprint(got), want}
	}
}

// ggufInt returns a whole number, nil for a key that is not there.
func ggufInt(r *ggufReader, key string) *int {
	v, there := r.keys[key]
	if !there {
		return nil
	}
	n, ok := v.Int()
	if !ok || n > math.MaxInt32 || n < math.MinInt32 {
		r.bad(key, v, "a whole number of 32 bits")
	}
	i := int(n)
	return &i
}

// ggufFloat returns a number, nil for a key that is not there.
func ggufFloat(r *ggufReader, key string) *float64 {
	v, there := r.keys[key]
	if !there {
		return nil
	}
	x, ok := v.Float()
	if !ok {
		r.bad(key, v, "f32")
	}
	// The number that was meant, which f32 came nearest to: 1e-6 rather than 9.99999997e-7.
	if s, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', -1, 32), 64); err == nil && float32(s) == float32(x) {
		x = s
	}
	return &x
}

func ggufText(r *ggufReader, key string) string {
	v, there := r.keys[key]
	s, ok := v.Text()
	switch {
	case !there:
		r.bad(key, "absent", "a string")
	case !ok:
		r.bad(key, v, "a string")
	}
	return s
}

// ggufInts returns a list of at most `most` whole numbers.
func ggufInts(r *ggufReader, key string, most int) []int {
	v, there := r.keys[key]
	if !there {
		return nil
	}
	if !v.IsArray() || v.Len() > most {
		r.bad(key, v, fmt.Sprintf("an array of at most %d i32", most))
		return nil
	}
	list := make([]int, 0, v.Len())
	for _, e := range v.All() {
		n, ok := e.Int()
		if !ok || n > math.MaxInt32 || n < math.MinInt32 {
			r.bad(key, v, "an array of i32")
			return nil
		}
		list = append(list, int(n))
	}
	return list
}

// ggufSpelled are fields of config.json by the keys that GGUF has for them.
var ggufSpelled = map[string]string{
	"hidden_size":             architecture + ".embedding_length",
	"num_hidden_layers":       architecture + ".block_count",
	"num_attention_heads":     architecture + ".attention.head_count",
	"num_key_value_heads":     architecture + ".attention.head_count_kv",
	"head_dim":                architecture + ".attention.key_length",
	"qk_rope_head_dim":        architecture + ".rope.dimension_count",
	"q_lora_rank":             architecture + ".attention.q_lora_rank",
	"o_lora_rank":             architecture + ".attention.output_lora_rank",
	"o_groups":                architecture + ".attention.output_group_count",
	"index_n_heads":           architecture + ".attention.indexer.head_count",
	"index_head_dim":          architecture + ".attention.indexer.key_length",
	"index_topk":              architecture + ".attention.indexer.top_k",
	"sliding_window":          architecture + ".attention.sliding_window",
	"max_position_embeddings": architecture + ".context_length",
	"rms_norm_eps":            architecture + ".attention.layer_norm_rms_epsilon",
	"compress_ratios":         architecture + ".attention.compress_ratios",
	"rope_theta":              architecture + ".rope.freq_base",
	"compress_rope_theta":     architecture + ".attention.compress_rope_freq_base",

	"rope_scaling":        architecture + ".rope.scaling.type",
	"rope_scaling.type":   architecture + ".rope.scaling.type",
	"rope_scaling.factor": architecture + ".rope.scaling.factor",
	"rope_scaling.original_max_position_embeddings": architecture + ".rope.scaling.original_context_length",
	"rope_scaling.beta_fast":                        architecture + ".rope.scaling.yarn_beta_fast",
	"rope_scaling.attention_factor":                 architecture + ".rope.scaling.attn_factor",
}

// loadGGUFConfig reads the configuration of a GGUF file, unless finding it failed.
func loadGGUFConfig(file string, err error) (Config, error) {
	if err != nil {
		return Config{}, err
	}
	m, err := openGGUF(file)
	if err != nil {
		return Config{}, err
	}
	defer m.Close()
	return m.(ggufModel).config()
}

// config reads the configuration from the keys. All are needed that a layer is made of.
func (m ggufModel) config() (c Config, err error) {
	keys := ggufReader{keys: m.Keys}
	r := &configReader{spelled: ggufSpelled}
	err = keys.guard(func() {
		r.f = keys.fields()
		m.trunk(r.f.Layers)
		if keys.err == nil {
			c = r.config(nil)
			keys.err = r.err
		}
		if keys.err == nil {
			keys.err = c.Check()
		}
	})
	var bad *ConfigError
	if errors.As(err, &bad) {
		if key, known := ggufSpelled[bad.Field]; known {
			bad.Field = key
		}
	}
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

// trunk takes blocks of MTP off the number of layers. Newer converters count them, and they are the
// last; files that only promise them do not.
//
// Source: pull request 25642 of llama.cpp.
func (m ggufModel) trunk(layers *int) {
	for _, name := range m.Names() {
		rest, found := strings.CutPrefix(name, ggufStack)
		number, tensor, _ := strings.Cut(rest, ".")
		n, err := strconv.Atoi(number)
		if layers != nil && found && err == nil && n >= 0 && strings.HasPrefix(tensor, "nextn.") {
			*layers = min(*layers, n)
		}
	}
}

// fields are the keys as fields of config.json.
func (r *ggufReader) fields() (f configFile) {
	whole := func(field string) *int { return ggufInt(r, ggufSpelled[field]) }
	number := func(field string) *float64 { return ggufFloat(r, ggufSpelled[field]) }
	f = configFile{
		Hidden: whole("hidden_size"), Layers: whole("num_hidden_layers"), Heads: whole("num_attention_heads"),
		KVHeads: whole("num_key_value_heads"), HeadDim: whole("head_dim"), RopeDim: whole("qk_rope_head_dim"),
		QRank: whole("q_lora_rank"), ORank: whole("o_lora_rank"), Groups: whole("o_groups"), IndexHeads: whole("index_n_heads"),
		IndexDim: whole("index_head_dim"), TopK: whole("index_topk"), Window: whole("sliding_window"),
		MaxPos: whole("max_position_embeddings"), Eps: number("rms_norm_eps"),
		Ratios: ggufInts(r, ggufSpelled["compress_ratios"], 2*maxLayers), Theta: number("rope_theta"),
		CompressTheta: number("compress_rope_theta"),
	}
	for field, there := range map[string]bool{"rms_norm_eps": f.Eps != nil, "rope_theta": f.Theta != nil,
		"compress_rope_theta": f.CompressTheta != nil, "compress_ratios": f.Ratios != nil, "head_dim": f.HeadDim != nil} {
		if !there {
			r.bad(ggufSpelled[field], "absent", "a value")
		}
	}
	if v := ggufInt(r, architecture+".attention.value_length"); v != nil && *v != cache.D {
		r.bad(architecture+".attention.value_length", *v, strconv.Itoa(cache.D))
	}
	if _, there := r.keys[ggufSpelled["rope_scaling"]]; there {
		kind := ggufText(r, ggufSpelled["rope_scaling"])
		if kind == "none" {
			kind = "default"
		}
		s := ropeFile{Type: &kind, Factor: number("rope_scaling.factor"), BetaFast: number("rope_scaling.beta_fast"),
			BetaSlow: ggufFloat(r, architecture+".rope.scaling.yarn_beta_slow"), Attention: number("rope_scaling.attention_factor"),
			Original: whole("rope_scaling.original_max_position_embeddings")}
		f.Scaling = &ropeNamed{ropeFile: s}
	}
	return f
}
