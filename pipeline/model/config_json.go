package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/files"
)

const (
	configName = "config.json"
	maxConfig  = 16 << 20 // bytes of a config.json; real ones have a few thousand
)

var (
	configBounds   = files.Bounds{Depth: 32, Values: 1 << 16, Unique: true} // real ones have 200 values
	errLargeConfig = &ConfigError{configName, "a longer file", fmt.Sprintf("at most %d bytes", maxConfig)}
)

// LoadConfig reads config.json of a model's folder, or the metadata of a GGUF file or of a folder
// with one, as Open does.
//
// A config.json comes in either spelling: that of the released checkpoints (compress_ratios,
// rope_theta, compress_rope_theta, rope_scaling) or that of newer versions of transformers
// (layer_types, compress_rates, rope_parameters with "main" and "compress"). Where both are present
// they have to agree. A rope_theta in a rope_scaling or rope_parameters without names has to equal
// rope_theta or compress_rope_theta. Lists may go on beyond num_hidden_layers, for layers that only
// predict ahead; LoadConfigWithDrafts reads these.
//
// Where there is a text_config, the model is described there. What stands beside it under the same
// name has to agree; quantization_config may stand in either place.
//
// Fields that do not concern attention are ignored. Those that do are never guessed: an absent one
// is an error, unless every model has the same value.
//
// DeepSeek-V4.1 is read as it was released, text_config and all, and by the names of the
// inference/config.json beside it. Its layers follow from V41Layers.
//
// Source: configuration_deepseek_v4.py in transformers, and config.json of the released
// checkpoints.
//
// Errors: *ConfigError (ErrConfig), which names the field; *ForeignError (ErrForeign, ErrConfig)
// for a model of another kind that is known; *CheckpointError (ErrCheckpoint) for a malformed GGUF
// file; vk.ErrArgument for a file in the place of its folder; the file system's, fs.ErrInvalid
// where config.json is anything but a regular file.
func LoadConfig(dir string) (Config, error) { return loadConfig(dir, false) }

// LoadConfigWithDrafts does what LoadConfig does, and adds the layers that only predict ahead to
// Config.Layers. They are those of the GGUF file `drafts`, see CheckpointOptions. Without one, "",
// they are those that compress_ratios or layer_types list after the model's own; a model in GGUF
// has none. Where the configuration of a DeepSeek-V4 has dspark_block_size or
// dspark_target_layer_ids, they are a DraftBlock each, as in V4.1, else layers of MTP. As such
// configurations may list fewer than there are, the checkpoint's tensors mtp.N count, too.
//
// Errors: those of LoadConfig and, for drafts, of Open.
func LoadConfigWithDrafts(dir, drafts string) (Config, error) {
	if drafts == "" {
		return loadConfig(dir, true)
	}
	c, err := loadConfig(dir, false)
	if err != nil {
		return c, err
	}
	d, err := openDrafts(dir, drafts)
	if err != nil {
		return Config{}, err
	}
	c, err = d.config(c)
	return c, errors.Join(err, d.Close())
}

func loadConfig(dir string, drafts bool) (Config, error) {
	if file, err := ggufOf(dir); err != nil || file != "" {
		return loadGGUFConfig(file, err)
	}
	data, err := files.Read(filepath.Join(dir, configName), maxConfig)
	if explained := foreignFolder(dir, err); explained != err {
		return Config{}, explained
	}
	if errors.Is(err, files.ErrLarge) {
		return Config{}, errLargeConfig
	}
	if err != nil {
		return Config{}, fmt.Errorf("model: config: want a folder with config.json and safetensors, or a .gguf file: %w", err)
	}
	if files.IsPointer(data) {
		return Config{}, &ForeignError{configName, "", files.PointerWhat}
	}
	if !drafts {
		return parseConfig(data, nil)
	}
	return parseConfig(data, func(main int) int { return stagesIn(dir, main) })
}

// stagesIn returns the number of layers that a checkpoint has after its first `main` ones, 0 for a
// folder without one that can be read.
func stagesIn(dir string, main int) (n int) {
	m, err := openSource(dir, attentionPart)
	if err != nil {
		return 0
	}
	defer m.Close()
	for _, stored := range m.Names() {
		s, ok := m.attentionName(stored)
		if s.stack == stackDrafts {
			s.number += main
		}
		if ok {
			n = max(n, min(s.number+1, maxLayers)-main)
		}
	}
	return n
}

// parseConfig reads a config.json, with the layers that only predict ahead unless stages is nil: it
// counts those that a checkpoint has after its first `main` layers.
func parseConfig(data []byte, stages func(main int) int) (Config, error) {
	if len(data) > maxConfig {
		return Config{}, errLargeConfig
	}
	if err := configBounds.Check(data); err != nil {
		return Config{}, &ConfigError{configName, err.Error(), "an object that says each thing once"}
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
	if r.inference(data); r.err == nil {
		r.foreign()
	}
	if r.err == nil {
		r.nested()
	}
	c := r.config(stages)
	if r.err != nil {
		return Config{}, r.err
	}
	if err := c.Check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// configFile is the part of config.json that concerns attention. Absent fields are nil.
type configFile struct {
	ModelType *string     `json:"model_type"`
	Names     []string    `json:"architectures"`
	Text      *configFile `json:"text_config"`
	OldDim    *int        `json:"dim"` // of DeepSeek's own inference code, in place of hidden_size
	OldLayers *int        `json:"n_layers"`

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

	Ratios list[int]      `json:"compress_ratios"`
	Types  list[string]   `json:"layer_types"`
	Rates  map[string]int `json:"compress_rates"`

	Theta         *float64   `json:"rope_theta"`
	CompressTheta *float64   `json:"compress_rope_theta"`
	Scaling       *ropeNamed `json:"rope_scaling"`
	RopeSets      *ropeNamed `json:"rope_parameters"`

	Quant *quantFile `json:"quantization_config"`

	// Of DeepSeek-V4.1.
	Entries     list[int] `json:"kv_source_layer_ids"`
	Picks       list[int] `json:"index_source_layer_ids"`
	Candidates  *int      `json:"candidate_source_layer_id"`
	Blocks      *int      `json:"candidate_topk_blocks"`
	BlockSize   *int      `json:"candidate_block_size"`
	DraftLayers *int      `json:"num_nextn_predict_layers"`
	DraftBlock  *int      `json:"dspark_block_size"`
	Targets     list[int] `json:"dspark_target_layer_ids"`
}

// dspark reports whether the layers that draft are those of one DSpark block.
func (f *configFile) dspark() bool { return or(f.DraftBlock, 0) != 0 || len(f.Targets) > 0 }

type quantFile struct {
	Method string    `json:"quant_method"`
	Block  list[int] `json:"weight_block_size"`
}

// list is a list without null, which encoding/json takes for a zero.
type list[T any] []T

func (l *list[T]) UnmarshalJSON(data []byte) error {
	var all []*T
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	*l = nil
	if all != nil {
		*l = make(list[T], 0, len(all))
	}
	for _, v := range all {
		if v == nil {
			return &json.UnmarshalTypeError{Value: "null", Type: reflect.TypeFor[T]()}
		}
		*l = append(*l, *v)
	}
	return nil
}

// ropeFile is one set of rope_scaling or rope_parameters.
type ropeFile struct {
	Type      *string  `json:"rope_type"`
	OldType   *string  `json:"type"`
	Theta     *float64 `json:"rope_theta"`
	Factor    *float64 `json:"factor"`
	BetaFast  *float64 `json:"beta_fast"`
	BetaSlow  *float64 `json:"beta_slow"`
	Original  *int     `json:"original_max_position_embeddings"`
	Attention *float64 `json:"attention_factor"`
	Scale     *float64 `json:"mscale"`
	ScaleAll  *float64 `json:"mscale_all_dim"`
	Truncate  *bool    `json:"truncate"`
	Part      *float64 `json:"partial_rotary_factor"`
}

// ropeNamed is rope_scaling or rope_parameters: either two named sets, as transformers writes
// rope_parameters, or one set without a name, as released checkpoints have rope_scaling.
type ropeNamed struct {
	ropeFile
	Main     *ropeFile `json:"main"`
	Compress *ropeFile `json:"compress"`
}

// layerTypes are transformers' names of the kinds of layers.
var layerTypes = map[string]LayerSpec{
	"sliding_attention":            Window,
	"compressed_sparse_attention":  C4A,
	"heavily_compressed_attention": C128A,
}

// configReader makes a Config of a configFile. It remembers the first error.
type configReader struct {
	f       configFile
	spelled map[string]string // names of fields as the file has them, where these are others
	dspark  bool
	err     error
}

func (r *configReader) bad(field string, got any, want string, a ...any) {
	if r.err == nil {
		field = cmp.Or(r.spelled[field], field)
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

// foreign refuses what is known to be something else.
func (r *configReader) foreign() {
	f := r.f
	if f.OldDim != nil && f.OldLayers != nil && f.Hidden == nil && f.Text == nil {
		r.err = &ForeignError{configName, "dim", "the configuration of DeepSeek's own inference code"}
	}
}

// ownNames lists what a configuration and its text_config each have for themselves.
var ownNames = []string{"model_type", "architectures", "text_config"}

// nested puts text_config in the place of the whole, if there is one.
func (r *configReader) nested() {
	outer, inner := r.f, r.f.Text
	r.dspark = outer.dspark()
	if inner == nil {
		return
	}
	r.dspark = r.dspark || inner.dspark()
	if inner.Text != nil {
		r.bad("text_config.text_config", "an object", "one text_config")
	}
	a, b := reflect.ValueOf(outer), reflect.ValueOf(*inner)
	for i := range a.NumField() {
		name := a.Type().Field(i).Tag.Get("json")
		x, y := a.Field(i), b.Field(i)
		if !slices.Contains(ownNames, name) && !x.IsNil() && !y.IsNil() && !reflect.DeepEqual(x.Interface(), y.Interface()) {
			r.bad("text_config."+name, "another value than "+name, "the same in both places")
		}
	}
	r.f = *inner
	if inner.Quant == nil {
		r.f.Quant = outer.Quant
	}
	if inner.ModelType == nil {
		r.f.ModelType = outer.ModelType
	}
	r.f.Names = outer.Names
}

// modelTypes are the names of the model, and of the text model inside another.
var modelTypes = []string{"deepseek_v4", "deepseek_v4_text"}

func (r *configReader) config(stages func(main int) int) Config {
	f, v41 := r.f, r.isV41()
	types := modelTypes
	if v41 {
		types = v41Types
	}
	if m := or(f.ModelType, types[0]); !slices.Contains(types, m) {
		r.bad("model_type", fmt.Sprintf("%.60q", m), "%s or %s", modelTypes[0], v41Types[0])
	}
	if !v41 {
		r.notV41()
	}
	r.fixed("num_key_value_heads", f.KVHeads, 1)
	r.fixed("head_dim", f.HeadDim, cache.D)
	r.fixed("qk_rope_head_dim", f.RopeDim, ropeDim)
	r.fixed("index_head_dim", f.IndexDim, cache.IndexDim)
	r.rotated("partial_rotary_factor", f.RopePart)
	if or(f.Bias, false) {
		r.bad("attention_bias", true, "false: no linear layer of attention has a bias")
	}
	c := Config{
		Hidden: need(r, "hidden_size", f.Hidden), Heads: need(r, "num_attention_heads", f.Heads),
		QRank: need(r, "q_lora_rank", f.QRank), ORank: need(r, "o_lora_rank", f.ORank), Groups: need(r, "o_groups", f.Groups),
		Window: need(r, "sliding_window", f.Window), MaxPositions: need(r, "max_position_embeddings", f.MaxPos),
	}
	if v41 {
		r.v41(&c, stages != nil)
	} else {
		r.v4(&c, stages)
	}
	if c.indexes() {
		c.IndexHeads, c.TopK = need(r, "index_n_heads", f.IndexHeads), need(r, "index_topk", f.TopK)
	}
	c.Main, c.Compress = r.ropes(slices.ContainsFunc(c.Layers, func(l Layer) bool { return l.Ratio > 0 }))
	if q := f.Quant; q != nil {
		side := c.weightBlock()
		c.Quantization = q.Method
		if q.Block != nil && (len(q.Block) != 2 || q.Block[0] != side || q.Block[1] != side) {
			r.bad("quantization_config.weight_block_size", q.Block, "[%d %d]", side, side)
		}
	}
	return c
}

// v4 reads what is DeepSeek-V4's own.
func (r *configReader) v4(c *Config, stages func(main int) int) {
	c.Eps, c.Layers = float32(or(r.f.Eps, 1e-6)), V4Layers(r.ratios()...)
	switch {
	case stages == nil || r.err != nil:
	case r.dspark:
		ratios := r.draftRatios()
		if more := stages(len(c.Layers)) - len(ratios); more > 0 {
			ratios = append(ratios, make([]int, more)...)
		}
		if len(ratios) == 0 {
			r.bad("compress_ratios", fmt.Sprintf("%d ratios", len(c.Layers)), "0 for each layer that drafts, or its tensors beside it")
		}
		r.drafts(c, ratios)
	default:
		c.Layers = appendLayers(c.Layers, true, r.draftRatios())
	}
}

// rotated checks the fraction of a head that is rotated.
func (r *configReader) rotated(field string, part *float64) {
	if part != nil && *part*cache.D != ropeDim {
		r.bad(field, *part, "%v: the last %d of %d", float64(ropeDim)/cache.D, ropeDim, cache.D)
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
		if want, known := layerTypes[name]; !known || rate != want.Ratio {
			r.bad("compress_rates", fmt.Sprintf("%q: %d", name, rate),
				"4 for compressed_sparse_attention and 128 for heavily_compressed_attention")
		}
	}
	if r.err != nil {
		return nil
	}
	list := make([]int, n)
	for i := range list {
		list[i] = r.ratio(i)
	}
	return list
}

// draftRatios returns the ratio of each layer after the model's own.
func (r *configReader) draftRatios() (list []int) {
	n := max(len(r.f.Ratios), len(r.f.Types))
	if n > maxLayers {
		r.bad("compress_ratios", fmt.Sprintf("%d ratios", n), "at most %d", maxLayers)
	}
	for i := or(r.f.Layers, n); i < n && r.err == nil; i++ {
		list = append(list, r.ratio(i))
	}
	return list
}

// ratio returns the ratio of a layer that at least one of the lists reaches.
func (r *configReader) ratio(i int) int {
	f, ratio := r.f, -1
	if i < len(f.Ratios) {
		ratio = f.Ratios[i]
		if ratio == 1 { // both mean that there are no entries
			ratio = 0
		}
	}
	if i >= len(f.Types) {
		return ratio
	}
	spec, known := layerTypes[f.Types[i]]
	switch {
	case !known:
		r.bad("layer_types", fmt.Sprintf("%.60q for layer %d", f.Types[i], i),
			"sliding_attention, compressed_sparse_attention or heavily_compressed_attention")
	case i < len(f.Ratios) && spec.Ratio != ratio:
		r.bad("layer_types", fmt.Sprintf("%s for layer %d", f.Types[i], i), "what compress_ratios says, %d", f.Ratios[i])
	}
	return spec.Ratio
}

// ropeSaid is a rotation as one field of config.json gives it.
type ropeSaid struct {
	field string
	theta *float64 // nil if it does not say
	Rope
}

// ropes returns the rotations of layers without and with compressed entries. If there are none of
// the latter (compressed is false), theirs may be absent.
func (r *configReader) ropes(compressed bool) (main, compress Rope) {
	var mains, compresses, unnamed []ropeSaid
	for _, x := range []struct {
		field string
		sets  *ropeNamed
	}{{"rope_parameters", r.f.RopeSets}, {"rope_scaling", r.f.Scaling}} {
		switch s := x.sets; {
		case s == nil:
		case (s.Main == nil) != (s.Compress == nil):
			r.bad(x.field, "one of main and compress", "both or neither")
		case s.Main != nil: // anything beside the two is ignored, as in transformers
			mains = append(mains, r.rope(x.field+".main", *s.Main))
			compresses = append(compresses, r.rope(x.field+".compress", *s.Compress))
		case s.ropeFile == ropeFile{}:
			r.bad(x.field, "an object that says nothing", `a rotation, {"rope_type": "default"} for no scaling`)
		default: // a set without a name belongs to the layers with compressed entries
			said := r.rope(x.field, s.ropeFile)
			if said.theta != nil {
				unnamed = append(unnamed, said)
			}
			said.theta = nil
			compresses = append(compresses, said)
		}
	}
	if compressed && len(compresses) == 0 {
		r.bad("rope_scaling", "absent, as is rope_parameters", `the scaling of layers with a compressor, {"rope_type": "default"} for none`)
	}
	main = r.agreed(mains, "rope_theta", r.f.Theta, plainRope().Theta)
	compress = r.agreed(compresses, "compress_rope_theta", r.f.CompressTheta, yarnRope().Theta)
	// In a set without a name theta may be either: transformers writes that of all layers there,
	// others write the one that is scaled.
	for _, s := range unnamed {
		if *s.theta != main.Theta && *s.theta != compress.Theta {
			r.bad(s.field+".rope_theta", *s.theta, "%v or %v, as rope_theta and compress_rope_theta have it", main.Theta, compress.Theta)
		}
	}
	return main, compress
}

// agreed returns the one rotation that all of the list give. Its theta is theirs, that of the field
// called name, or else the usual one.
func (r *configReader) agreed(list []ropeSaid, name string, theta *float64, usual float64) Rope {
	rope, by := Rope{Factor: 1}, name
	for i, s := range list {
		if i == 0 {
			rope = s.Rope
		} else {
			r.same(list[0], s)
		}
		switch {
		case s.theta == nil:
		case theta == nil:
			theta, by = s.theta, s.field
		case *s.theta != *theta && by == name:
			r.bad(name, *theta, "what %s says, %v", s.field, *s.theta)
		case *s.theta != *theta:
			r.bad(s.field+".rope_theta", *s.theta, "what %s says, %v", by, *theta)
		}
	}
	rope.Theta = or(theta, usual)
	return rope
}

// same checks that b scales as a does.
func (r *configReader) same(a, b ropeSaid) {
	for _, x := range []struct {
		name string
		a, b float64
	}{
		{"factor", a.Factor, b.Factor}, {"beta_fast", a.BetaFast, b.BetaFast}, {"beta_slow", a.BetaSlow, b.BetaSlow},
		{"original_max_position_embeddings", float64(a.Original), float64(b.Original)},
	} {
		if x.a != x.b && (a.Scaled() || b.Scaled()) {
			r.bad(b.field+"."+x.name, x.b, "what %s says, %v", a.field, x.a)
		}
	}
}

// rope returns the rotation of a set without Rope.Theta, which other fields give, too.
func (r *configReader) rope(field string, f ropeFile) ropeSaid {
	r.rotated(field+".partial_rotary_factor", f.Part)
	if a := or(f.Attention, 1); a != 1 {
		r.bad(field+".attention_factor", a, "1: the model's rotation keeps lengths")
	}
	// Without attention_factor the quotient of these two counts.
	if m, all := or(f.Scale, 0), or(f.ScaleAll, 0); f.Attention == nil && m != all {
		r.bad(field+".mscale", m, "mscale_all_dim, %v: the model's rotation keeps lengths", all)
	}
	if !or(f.Truncate, true) {
		r.bad(field+".truncate", false, "true: the ends of the ramp are whole pairs")
	}
	if f.Type != nil && f.OldType != nil && !strings.EqualFold(*f.Type, *f.OldType) {
		r.bad(field+".type", fmt.Sprintf("%.60q", *f.OldType), "what rope_type says, %.60q", *f.Type)
	}
	said := ropeSaid{field, f.Theta, Rope{Factor: 1}}
	switch t := strings.ToLower(or(f.Type, or(f.OldType, "default"))); {
	case t == "yarn":
		said.Rope = Rope{Factor: need(r, field+".factor", f.Factor), BetaFast: or(f.BetaFast, 32), BetaSlow: or(f.BetaSlow, 1),
			Original: need(r, field+".original_max_position_embeddings", f.Original)}
		if !(said.Factor >= 1) {
			r.bad(field+".factor", said.Factor, "at least 1")
		}
	case t != "default":
		r.bad(field+".type", fmt.Sprintf("%.60q", t), "default or yarn")
	case f.Type == nil && f.OldType == nil && or(f.Factor, 1) != 1:
		r.bad(field+".type", "absent", "yarn, or default without a factor")
	}
	return said
}
