package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	configName = "config.json"
	maxConfig  = 16 << 20 // bytes of a config.json; real ones have a few thousand
)

// LoadConfig reads config.json of a model's folder. See ParseConfig.
//
// Errors: *ConfigError (ErrConfig), or the file system's.
func LoadConfig(dir string) (Config, error) {
	f, err := os.Open(filepath.Join(dir, configName))
	if err != nil {
		return Config{}, fmt.Errorf("pipeline: config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return Config{}, fmt.Errorf("pipeline: config: %w", err)
	}
	return ParseConfig(data)
}

// ParseConfig reads a config.json in either spelling: that of the released
// checkpoints (compress_ratios, rope_theta, compress_rope_theta, rope_scaling) or
// that of newer versions of transformers (layer_types, compress_rates,
// rope_parameters with "main" and "compress"). Where both stand they have to agree.
// Lists may go on beyond num_hidden_layers, for layers that only predict ahead.
//
// Fields that do not concern attention are not looked at. Those that do are not
// guessed: one that is absent is an error, unless every model has the same value.
//
// Errors: *ConfigError (ErrConfig), which names the field.
//
// Source: configuration_deepseek_v4.py in transformers, and config.json of the
// released checkpoints.
func ParseConfig(data []byte) (Config, error) {
	if len(data) > maxConfig {
		return Config{}, &ConfigError{configName, "a longer file", fmt.Sprintf("at most %d bytes", maxConfig)}
	}
	var f configFile
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&f); err != nil {
		return Config{}, jsonError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Config{}, &ConfigError{configName, "more than one value", "one JSON object"}
	}
	r := &configReader{f: f}
	c := r.config()
	if r.err != nil {
		return Config{}, r.err
	}
	if err := c.Check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func jsonError(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) && typ.Field != "" {
		return &ConfigError{typ.Field, "a " + typ.Value, "a value that fits " + typ.Type.String()}
	}
	return &ConfigError{configName, err.Error(), "a JSON object"}
}

// configFile is config.json as far as attention goes. Pointers tell what is absent.
type configFile struct {
	ModelType  *string  `json:"model_type"`
	Hidden     *int     `json:"hidden_size"`
	Layers     *int     `json:"num_hidden_layers"`
	Heads      *int     `json:"num_attention_heads"`
	KVHeads    *int     `json:"num_key_value_heads"`
	HeadDim    *int     `json:"head_dim"`
	RopeDim    *int     `json:"qk_rope_head_dim"`
	RopePart   *float64 `json:"partial_rotary_factor"`
	QRank      *int     `json:"q_lora_rank"`
	ORank      *int     `json:"o_lora_rank"`
	Groups     *int     `json:"o_groups"`
	IndexHeads *int     `json:"index_n_heads"`
	IndexDim   *int     `json:"index_head_dim"`
	TopK       *int     `json:"index_topk"`
	Window     *int     `json:"sliding_window"`
	MaxPos     *int     `json:"max_position_embeddings"`
	Eps        *float64 `json:"rms_norm_eps"`
	Bias       *bool    `json:"attention_bias"`

	Ratios []int          `json:"compress_ratios"`
	Types  []string       `json:"layer_types"`
	Rates  map[string]int `json:"compress_rates"`

	Theta         *float64   `json:"rope_theta"`
	CompressTheta *float64   `json:"compress_rope_theta"`
	Scaling       *ropeFile  `json:"rope_scaling"`
	RopeSets      *ropeNamed `json:"rope_parameters"`

	Quant *struct {
		Method string `json:"quant_method"`
		Block  []int  `json:"weight_block_size"`
	} `json:"quantization_config"`
}

// ropeFile is a rope_scaling, or one set of rope_parameters.
type ropeFile struct {
	Type      *string  `json:"rope_type"`
	OldType   *string  `json:"type"`
	Theta     *float64 `json:"rope_theta"`
	Factor    *float64 `json:"factor"`
	BetaFast  *float64 `json:"beta_fast"`
	BetaSlow  *float64 `json:"beta_slow"`
	Original  *int     `json:"original_max_position_embeddings"`
	Attention *float64 `json:"attention_factor"`
	Part      *float64 `json:"partial_rotary_factor"`
}

// ropeNamed is rope_parameters: two named sets, or, as some versions write it, the
// fields of a rope_scaling.
type ropeNamed struct {
	ropeFile
	Main     *ropeFile `json:"main"`
	Compress *ropeFile `json:"compress"`
}

// layerTypes are transformers' names of the ratios.
var layerTypes = map[string]int{
	"sliding_attention":            RatioWindow,
	"compressed_sparse_attention":  RatioC4A,
	"heavily_compressed_attention": RatioC128A,
}

// configReader remembers the first thing that is wrong.
type configReader struct {
	f   configFile
	err error
}

func (r *configReader) bad(field string, got any, want string, a ...any) {
	if r.err == nil {
		r.err = &ConfigError{field, fmt.Sprint(got), fmt.Sprintf(want, a...)}
	}
}

func need[T any](r *configReader, field string, v *T) T {
	if v == nil {
		r.bad(field, "absent", "a value")
		return *new(T)
	}
	return *v
}

func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}

// fixed checks a field that has the same value in every model.
func (r *configReader) fixed(field string, v *int, want int) {
	if v != nil && *v != want {
		r.bad(field, *v, "%d", want)
	}
}

func (r *configReader) config() Config {
	f := r.f
	if m := or(f.ModelType, "deepseek_v4"); m != "deepseek_v4" {
		r.bad("model_type", m, "deepseek_v4")
	}
	r.fixed("num_key_value_heads", f.KVHeads, 1)
	r.fixed("head_dim", f.HeadDim, headDim)
	r.fixed("qk_rope_head_dim", f.RopeDim, ropeDim)
	r.fixed("index_head_dim", f.IndexDim, indexDim)
	r.rotated("partial_rotary_factor", f.RopePart)
	if or(f.Bias, false) {
		r.bad("attention_bias", true, "false: no linear layer of attention has a bias")
	}
	c := Config{
		Hidden: need(r, "hidden_size", f.Hidden), Heads: need(r, "num_attention_heads", f.Heads),
		QRank: need(r, "q_lora_rank", f.QRank), ORank: need(r, "o_lora_rank", f.ORank), Groups: need(r, "o_groups", f.Groups),
		Window: need(r, "sliding_window", f.Window), MaxPositions: need(r, "max_position_embeddings", f.MaxPos),
		Eps: float32(or(f.Eps, 1e-6)), Ratios: r.ratios(),
	}
	for _, ratio := range c.Ratios {
		if ratio == RatioC4A {
			c.IndexHeads, c.TopK = need(r, "index_n_heads", f.IndexHeads), need(r, "index_topk", f.TopK)
		}
	}
	c.Main, c.Compress = r.ropes(slices.ContainsFunc(c.Ratios, func(ratio int) bool { return ratio != RatioWindow }))
	if q := f.Quant; q != nil {
		c.Quantization = q.Method
		if q.Block != nil && (len(q.Block) != 2 || q.Block[0] != blockSide || q.Block[1] != blockSide) {
			r.bad("quantization_config.weight_block_size", q.Block, "[%d %d]", blockSide, blockSide)
		}
	}
	return c
}

// rotated checks the fraction of a head that is rotated.
func (r *configReader) rotated(field string, part *float64) {
	if part != nil && *part*headDim != ropeDim {
		r.bad(field, *part, "%v: the last %d of %d", float64(ropeDim)/headDim, ropeDim, headDim)
	}
}

// ratios returns the ratio of each layer.
func (r *configReader) ratios() []int {
	f, n := r.f, need(r, "num_hidden_layers", r.f.Layers)
	if f.Ratios == nil && f.Types == nil {
		r.bad("compress_ratios", "absent, as is layer_types", "a ratio for each layer")
	}
	if n < 1 || n > maxLayers {
		r.bad("num_hidden_layers", n, "1 to %d", maxLayers)
	}
	if f.Ratios != nil && len(f.Ratios) < n {
		r.bad("compress_ratios", fmt.Sprintf("%d ratios", len(f.Ratios)), "one for each of %d layers", n)
	}
	if f.Types != nil && len(f.Types) < n {
		r.bad("layer_types", fmt.Sprintf("%d types", len(f.Types)), "one for each of %d layers", n)
	}
	for name, rate := range f.Rates {
		if want, known := layerTypes[name]; !known || rate != want {
			r.bad("compress_rates", fmt.Sprintf("%q: %d", name, rate), "4 for compressed_sparse_attention and 128 for heavily_compressed_attention")
		}
	}
	if r.err != nil {
		return nil
	}
	list := make([]int, n)
	for i := range list {
		if f.Ratios != nil {
			list[i] = max(f.Ratios[i], 1)
			if f.Ratios[i] < 0 {
				r.bad("compress_ratios", fmt.Sprintf("%d for layer %d", f.Ratios[i], i), "0, 1, 4 or 128")
			}
		}
		if f.Types == nil {
			continue
		}
		ratio, known := layerTypes[f.Types[i]]
		switch {
		case !known:
			r.bad("layer_types", fmt.Sprintf("%.60q for layer %d", f.Types[i], i), "sliding_attention, compressed_sparse_attention or heavily_compressed_attention")
		case f.Ratios != nil && ratio != list[i]:
			r.bad("layer_types", fmt.Sprintf("%s for layer %d", f.Types[i], i), "what compress_ratios says, %d", f.Ratios[i])
		}
		list[i] = ratio
	}
	return list
}

// ropes returns the rotations of layers without and with a compressor. Without any
// of the latter (compressed is false) theirs may be absent.
func (r *configReader) ropes(compressed bool) (main, compress Rope) {
	f := r.f
	sets := or(f.RopeSets, ropeNamed{})
	if (sets.Main == nil) != (sets.Compress == nil) {
		r.bad("rope_parameters", "one of main and compress", "both or neither")
	}
	theta := func(own, plain *float64, field string, otherwise float64) float64 {
		if own != nil && plain != nil && *own != *plain {
			r.bad(field, *plain, "what rope_parameters says, %v", *own)
		}
		if own != nil {
			return *own
		}
		return or(plain, otherwise)
	}
	if sets.Main != nil && sets.Compress != nil {
		main = r.rope("rope_parameters.main", *sets.Main)
		compress = r.rope("rope_parameters.compress", *sets.Compress)
		main.Theta = theta(sets.Main.Theta, f.Theta, "rope_theta", plainRope().Theta)
		compress.Theta = theta(sets.Compress.Theta, f.CompressTheta, "compress_rope_theta", yarnRope().Theta)
		return main, compress
	}
	// Without names the scaling belongs to the layers with a compressor.
	main = Rope{Theta: or(f.Theta, plainRope().Theta), Factor: 1}
	switch {
	case f.Scaling != nil:
		compress = r.rope("rope_scaling", *f.Scaling)
	case f.RopeSets != nil:
		compress = r.rope("rope_parameters", sets.ropeFile)
	case !compressed:
		compress.Factor = 1
	default:
		r.bad("rope_scaling", "absent, as is rope_parameters", "the scaling of layers with a compressor")
	}
	compress.Theta = or(f.CompressTheta, yarnRope().Theta)
	return main, compress
}

func (r *configReader) rope(field string, f ropeFile) Rope {
	r.rotated(field+".partial_rotary_factor", f.Part)
	if a := or(f.Attention, 1); a != 1 {
		r.bad(field+".attention_factor", a, "1: the model's rotation keeps lengths")
	}
	switch t := strings.ToLower(or(f.Type, or(f.OldType, "default"))); t {
	case "default":
		return Rope{Factor: 1}
	case "yarn":
		return Rope{Factor: need(r, field+".factor", f.Factor), BetaFast: or(f.BetaFast, 32), BetaSlow: or(f.BetaSlow, 1),
			Original: need(r, field+".original_max_position_embeddings", f.Original)}
	default:
		r.bad(field+".type", fmt.Sprintf("%.60q", t), "default or yarn")
		return Rope{}
	}
}
