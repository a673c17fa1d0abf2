package weights

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Config describes a model: what the library reads about attention, and the rest.
type Config struct {
	model.Config

	Vocab         int     // vocab_size, V
	Streams       int     // hc_mult, n
	SinkhornSteps int     // hc_sinkhorn_iters, rows and columns each
	HyperEps      float32 // hc_eps
	Experts       int     // n_routed_experts, E
	PerToken      int     // num_experts_per_tok, k
	Width         int     // moe_intermediate_size, F
	Hash          []bool  // of each layer: experts are chosen by token id
	Scoring       string  // scoring_func: sqrtsoftplus, sigmoid or softmax
	Normalise     bool    // norm_topk_prob: weights of a token's experts add up to Factor
	Factor        float32 // routed_scaling_factor
	Limit         float32 // swiglu_limit; 0: none
	EOS           []int32 // eos_token_id

	// Of a DSpark block, whose layers are the last: see OpenWithDrafts.
	Noise      int32 `json:",omitempty"` // dspark_noise_token_id, the tokens of a block but the first
	MarkovRank int   `json:",omitempty"` // dspark_markov_rank
}

// Own returns the number of layers of the model itself, without those that draft.
func (c *Config) Own() (n int) {
	for _, l := range c.Layers {
		if !l.Draft {
			n++
		}
	}
	return n
}

// LoadConfig reads config.json of a model's folder, or the keys of a GGUF file.
//
// Errors: those of model.LoadConfig; *model.ConfigError for a field of the rest.
func LoadConfig(dir string) (Config, error) { return loadConfig(dir, false, "") }

// loadConfig reads a configuration, with the checkpoint's own draft block or that of a GGUF file.
func loadConfig(dir string, with bool, drafts string) (c Config, err error) {
	if drafts == "" {
		return loadOwn(dir, with)
	}
	if c, err = loadOwn(dir, false); err != nil {
		return Config{}, err
	}
	if c.Config, err = model.LoadConfigWithDrafts(dir, drafts); err != nil {
		return Config{}, err
	}
	err = c.addDrafts(drafts)
	return c, err
}

func loadOwn(dir string, drafts bool) (Config, error) {
	load := model.LoadConfig
	if drafts {
		load = func(dir string) (model.Config, error) { return model.LoadConfigWithDrafts(dir, "") }
	}
	attention, err := load(dir)
	if err != nil {
		return Config{}, err
	}
	if file, err := gguf.Find(dir); err != nil || file != "" {
		if err == nil && drafts {
			err = &model.ConfigError{Field: "--drafts", Got: "a GGUF file", Want: "--draft beside it, the file of its draft block"}
		}
		if err != nil {
			return Config{}, err
		}
		return loadGGUFConfig(file, attention)
	}
	if attention.PlainQueries {
		return Config{}, &model.ConfigError{Field: "model_type", Got: "deepseek_v41",
			Want: "deepseek_v4: of DeepSeek-V4.1 only the attention is computed, by package pipeline"}
	}
	data, err := files.Read(filepath.Join(dir, "config.json"), 64<<20) // it was read once within bounds
	if err != nil {
		return Config{}, fmt.Errorf("weights: load config: %w", err)
	}
	var fields map[string]json.RawMessage
	if err = json.Unmarshal(data, &fields); err == nil && fields["text_config"] != nil {
		err = json.Unmarshal(fields["text_config"], &fields) // the model's own fields win
	}
	if err != nil {
		return Config{}, fmt.Errorf("weights: load config: %w", err)
	}
	r := configReader{fields: fields}
	c := Config{
		Config:        attention,
		Vocab:         need[int](&r, "vocab_size"),
		Streams:       or(&r, 4, "hc_mult"),
		SinkhornSteps: or(&r, 20, "hc_sinkhorn_iters"),
		HyperEps:      or[float32](&r, 1e-6, "hc_eps"),
		Experts:       need[int](&r, "n_routed_experts"),
		PerToken:      need[int](&r, "num_experts_per_tok", "n_activated_experts"),
		Width:         need[int](&r, "moe_intermediate_size", "moe_inter_dim"),
		Scoring:       or(&r, "sqrtsoftplus", "scoring_func", "score_func"),
		Normalise:     or(&r, true, "norm_topk_prob"),
		Factor:        need[float32](&r, "routed_scaling_factor", "route_scale"),
		Limit:         or[float32](&r, 0, "swiglu_limit"),
	}
	c.Hash = r.hashLayers(c.Own())
	c.EOS = r.eos()
	if drafts {
		r.drafts(&c)
	}
	r.check(&c)
	return c, r.err
}

// maxRank is the most of dspark_markov_rank.
const maxRank = 1 << 16

// drafts reads what a DSpark block needs, and refuses models without one.
func (r *configReader) drafts(c *Config) {
	own := c.Own()
	switch {
	case own == len(c.Layers):
		r.bad("dspark_block_size", "absent", "a model with a DSpark block, for --drafts")
	case !c.Layers[own].Block:
		r.bad("dspark_block_size", "absent, with layers of MTP", "a DSpark block, for --drafts")
	case len(c.DraftTargets) == 0:
		r.bad("dspark_target_layer_ids", "absent", "numbers of layers")
	}
	c.Noise, c.MarkovRank = need[int32](r, "dspark_noise_token_id"), need[int](r, "dspark_markov_rank")
	if c.Noise < 0 || int(c.Noise) >= c.Vocab {
		r.bad("dspark_noise_token_id", fmt.Sprint(c.Noise), "0 to %d", c.Vocab-1)
	}
	if c.MarkovRank < 1 || c.MarkovRank > maxRank {
		r.bad("dspark_markov_rank", fmt.Sprint(c.MarkovRank), "1 to %d", maxRank)
	}
	for _, name := range []string{"dspark_n_routed_experts", "dspark_n_activated_experts"} {
		if r.fields[name] != nil {
			r.bad(name, string(r.fields[name]), "none: layers that draft with the model's own numbers of experts")
		}
	}
	c.Hash = append(c.Hash, make([]bool, len(c.Layers)-own)...)
}

// check refuses what this program does not run.
func (r *configReader) check(c *Config) {
	positive := func(name string, n, most int) {
		if n < 1 || n > most {
			r.bad(name, fmt.Sprint(n), "1 to %d", most)
		}
	}
	positive("vocab_size", c.Vocab, 1<<24)
	positive("hc_mult", c.Streams, 16)
	positive("hc_sinkhorn_iters", c.SinkhornSteps, 1000)
	positive("n_routed_experts", c.Experts, 1<<16)
	positive("num_experts_per_tok", c.PerToken, c.Experts)
	positive("moe_intermediate_size", c.Width, 1<<20)
	for _, id := range c.EOS {
		if id < 0 || int(id) >= c.Vocab {
			r.bad("eos_token_id", fmt.Sprint(id), "0 to %d", c.Vocab-1)
		}
	}
	if !(c.Limit >= 0) {
		r.bad("swiglu_limit", fmt.Sprint(c.Limit), "at least 0")
	}
	if !(c.HyperEps > 0 && c.HyperEps < 1) {
		r.bad("hc_eps", fmt.Sprint(c.HyperEps), "a small positive number")
	}
	if !(c.Factor > 0) {
		r.bad("routed_scaling_factor", fmt.Sprint(c.Factor), "more than 0")
	}
	if !slices.Contains([]string{"sqrtsoftplus", "sigmoid", "softmax"}, c.Scoring) {
		r.bad("scoring_func", c.Scoring, "sqrtsoftplus, sigmoid or softmax")
	}
	for name, want := range map[string]any{"topk_method": "noaux_tc", "hidden_act": "silu",
		"n_shared_experts": 1.0, "tie_word_embeddings": false} {
		if got := or(r, want, name); got != want {
			r.bad(name, fmt.Sprint(got), "%v", want)
		}
	}
}

// configReader remembers the first thing that is wrong.
type configReader struct {
	fields  map[string]json.RawMessage
	spelled map[string]string // names of fields as another kind of file has them
	err     error
}

func (r *configReader) bad(field, got, want string, a ...any) {
	if r.err == nil {
		r.err = &model.ConfigError{Field: cmp.Or(r.spelled[field], field), Got: got, Want: fmt.Sprintf(want, a...)}
	}
}

// or reads a field that may be absent or null, by any of its names.
func or[T any](r *configReader, absent T, names ...string) T {
	for _, name := range names {
		raw := r.fields[name]
		if raw == nil || string(raw) == "null" {
			continue
		}
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			r.bad(name, fmt.Sprintf("%.60s", raw), "a value of type %T", v)
		}
		return v
	}
	return absent
}

// need reads a field that must be there, by any of its names.
func need[T any](r *configReader, names ...string) (v T) {
	there := func(name string) bool { return r.fields[name] != nil && string(r.fields[name]) != "null" }
	if !slices.ContainsFunc(names, there) {
		r.bad(names[0], "absent", "a number")
		return v
	}
	return or(r, v, names...)
}

// hashLayers reads which layers choose experts by token id: the first num_hash_layers, or those
// that mlp_layer_types names.
func (r *configReader) hashLayers(n int) []bool {
	hash := make([]bool, n)
	if kinds := or[[]string](r, nil, "mlp_layer_types"); kinds != nil {
		if len(kinds) < n {
			r.bad("mlp_layer_types", fmt.Sprintf("%d kinds", len(kinds)), "one for each of %d layers", n)
			return hash
		}
		for i := range hash {
			hash[i] = kinds[i] == "hash_moe"
			if !hash[i] && kinds[i] != "moe" {
				r.bad("mlp_layer_types", kinds[i], "moe or hash_moe")
			}
		}
		return hash
	}
	first := need[int](r, "num_hash_layers", "n_hash_layers")
	if first < 0 {
		r.bad("num_hash_layers", fmt.Sprint(first), "at least 0")
	}
	for i := range min(n, first) {
		hash[i] = true
	}
	return hash
}

// eos reads one end-of-sequence token, or a list of them.
func (r *configReader) eos() []int32 {
	raw := r.fields["eos_token_id"]
	if raw == nil || string(raw) == "null" {
		return nil
	}
	var one int32
	if json.Unmarshal(raw, &one) == nil {
		return []int32{one}
	}
	return or[[]int32](r, nil, "eos_token_id")
}
