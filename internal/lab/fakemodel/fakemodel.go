// Package fakemodel makes checkpoints of small DeepSeek-V4 models with random weights,
// in every spelling and format that package model reads, for tests.
package fakemodel

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Storage names a way to store the linear layers that released checkpoints quantise.
type Storage string

// Storages. The others name their tensors as vLLM or compressed-tensors do.
const (
	BF16        Storage = "bf16"
	F16         Storage = "f16"
	F32         Storage = "f32"
	FP8         Storage = "fp8"          // UE8M0 scales, .scale
	FP8F32      Storage = "fp8-f32"      // f32 scales, .weight_scale_inv
	FP8BF16     Storage = "fp8-bf16"     // bf16 scales, .weight_scale
	FP8Rows     Storage = "fp8-rows"     // a f32 scale a row, .weight_scale [N, 1]
	FP8One      Storage = "fp8-one"      // a f32 scale for all, .weight_scale []
	NVFP4       Storage = "nvfp4"        // .weight_scale_2
	NVFP4Packed Storage = "nvfp4-packed" // .weight_packed, .weight_global_scale
)

// Storages lists all of them.
func Storages() []Storage {
	return []Storage{BF16, F16, F32, FP8, FP8F32, FP8BF16, FP8Rows, FP8One, NVFP4, NVFP4Packed}
}

// Naming names a spelling of tensors' names.
type Naming int

// Namings: layers.0.attn.wq_a, with model. before it (and norm for kv_norm), and by
// the names of transformers' modules; then names that converters renamed in part: all
// but where the indexer stands, and with the indexer's compressor inside it, under either
// name.
const (
	Released Naming = iota
	Prefixed
	Modules
	Moved
	Nested
	NestedModules
)

// Namings lists all of them.
func Namings() []Naming { return []Naming{Released, Prefixed, Modules, Moved, Nested, NestedModules} }

// Options describe a model.
type Options struct {
	Config  model.Config
	Storage Storage // "": BF16
	Naming  Naming
	Prefix  string // in front of all names, and of what Naming puts there
	Seed    uint64

	// Weights gives the values of a tensor by its released name, before they are rounded as
	// they are stored; where it gives nil, or is nil, they are random.
	Weights func(name string, shape []int) []float32
}

// Config returns a small configuration: a layer of each ratio, and sizes that are not
// multiples of each other. The layers have the given ratios.
func Config(ratios ...int) model.Config {
	c := model.FlashConfig()
	c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 192, 4, 128, 64, 2, 8, 16
	c.Layers = model.V4Layers(ratios...)
	return c
}

// Tiny returns a configuration as small as the operations permit, for tests of what goes on around
// them. A window is shorter than a group of C128A.
func Tiny(ratios ...int) model.Config {
	c := Config(ratios...)
	c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK, c.Window = 64, 2, 64, 32, 1, 2, 8, 16
	return c
}

// V41 returns a small configuration of DeepSeek-V4.1 with layers of all roles; the last one drafts.
// Widths are no multiples of a block of weights. From 25 tokens on not all entries are candidates.
func V41() model.Config {
	c := model.FlashV41Config()
	c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 112, 2, 80, 32, 2, 2, 8
	c.CandidateBlocks, c.Window = 3, 24
	s := model.Sources{Entries: []int{1, 3, 4}, Picks: []int{1, 3, 4, 6, 8}, Candidates: 4}
	c.Layers = model.V41Layers(s, 0, 2, 2, 2, 1, 1, 1, 1, 1)
	return c.WithDrafts(1)
}

// TinyV41 returns a configuration of DeepSeek-V4.1 as small as the operations permit, with a layer
// of each role but drafts. From 25 tokens on not all entries are candidates.
func TinyV41() model.Config {
	c := V41()
	c.Hidden, c.QRank, c.Window = 64, 64, 16
	s := model.Sources{Entries: []int{1, 3}, Picks: []int{1, 3, 4}, Candidates: 3}
	c.Layers = model.V41Layers(s, 0, 2, 2, 1, 1, 1)
	return c
}

// Tensor is a tensor of a model in memory.
type Tensor = safetensors.Tensor

// Model is a checkpoint in memory, to be changed and written.
type Model struct {
	Config  map[string]any // of config.json
	Tensors []*Tensor
	// Values hold what the stored weights of linear layers and the elements of small
	// tensors mean, by released name (layers.0.attn.wq_a.weight), f32 and row-major.
	Values map[string][]float32
}

// New makes a model. It also has a tensor outside of attention.
func New(o Options) *Model {
	c := o.Config
	m := &Model{Config: ConfigFile(c), Values: map[string][]float32{}}
	b := builder{m: m, o: o, rng: rand.New(rand.NewPCG(o.Seed, 7))}
	b.float("embed.weight", BF16, 16, c.Hidden)
	drafts := 0
	for i, l := range c.Layers {
		b.layer = fmt.Sprintf("layers.%d.attn.", i)
		if l.Draft {
			b.layer = fmt.Sprintf("mtp.%d.attn.", drafts)
			drafts++
		}
		b.linear("wq_a", c.QRank, c.Hidden)
		b.linear("wkv", 512, c.Hidden)
		b.linear("wq_b", c.Heads*512, c.QRank)
		b.linear("wo_a", c.Groups*c.ORank, c.HeadsPerGroup()*512)
		b.linear("wo_b", c.Hidden, c.Groups*c.ORank)
		b.small("q_norm.weight", BF16, c.QRank)
		b.small("kv_norm.weight", F32, 512)
		b.small("attn_sink", F32, c.Heads)
		if l.Compresses() {
			b.compressor("compressor", &l.LayerSpec, 512)
		}
		if l.Picks == model.PickOwn {
			b.linear("indexer.wq_b", c.IndexHeads*128, c.QRank)
			b.small("indexer.weights_proj.weight", BF16, c.IndexHeads, c.Hidden)
			switch {
			case l.LatentKeys:
				b.small("indexer.wk.weight", BF16, 128, 512)
				b.small("indexer.k_norm.weight", BF16, 128)
			case l.Compresses():
				b.compressor("indexer.compressor", &l.LayerSpec, 128)
			}
		}
	}
	return m
}

// builder adds tensors to a model.
type builder struct {
	m     *Model
	o     Options
	rng   *rand.Rand
	layer string // what stands before a tensor's name
}

func (b *builder) compressor(stem string, spec *model.LayerSpec, dim int) {
	c := spec.Compression(dim)
	channels := c.Channels()
	b.small(stem+".wkv.weight", BF16, channels, b.o.Config.Hidden)
	if spec.Gated() {
		b.small(stem+".wgate.weight", BF16, channels, b.o.Config.Hidden)
	}
	if !spec.Unplaced {
		b.small(stem+".ape", F32, c.Ratio, channels)
	}
	b.small(stem+".norm.weight", BF16, dim)
}

// values returns the values of a tensor: given ones, or random ones whose sums over the last
// dimension have a length of about 1. Random norms and sinks are near 1.
func (b *builder) values(name string, shape []int) []float32 {
	if b.o.Weights != nil {
		if v := b.o.Weights(name, shape); v != nil {
			return v
		}
	}
	n := 1
	for _, d := range shape {
		n *= d
	}
	v, near, length := make([]float32, n), 0.0, math.Sqrt(float64(shape[len(shape)-1]))
	if len(shape) == 1 {
		near, length = 1, 8
	}
	for i := range v {
		v[i] = float32(near + b.rng.NormFloat64()/length)
	}
	return v
}

func (b *builder) put(name string, d safetensors.DType, data []byte, shape ...int) {
	b.m.Tensors = append(b.m.Tensors, &Tensor{Name: b.name(name), DType: d, Shape: shape, Data: data})
}

func (b *builder) small(name string, s Storage, shape ...int) { b.float(b.layer+name, s, shape...) }

// float adds a tensor of floats.
func (b *builder) float(name string, s Storage, shape ...int) {
	v := b.values(name, shape)
	var data []byte
	d := safetensors.BF16
	for i, x := range v {
		switch s {
		case F32:
			d, data = safetensors.F32, binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
		case F16:
			h := numfmt.F16Encode(x)
			d, data, v[i] = safetensors.F16, binary.LittleEndian.AppendUint16(data, h), numfmt.F16Decode(h)
		default:
			data, v[i] = binary.LittleEndian.AppendUint16(data, numfmt.BF16Encode(x)), numfmt.BF16Round(x)
		}
	}
	b.m.Values[name] = v
	b.put(name, d, data, shape...)
}

// linear adds a linear layer in the model's storage.
func (b *builder) linear(stem string, n, k int) {
	full := b.layer + stem
	s := b.o.Storage
	switch s {
	case "", BF16, F16, F32:
		b.small(stem+".weight", s, n, k)
		return
	}
	v := b.values(full+".weight", []int{n, k})
	b.m.Values[full+".weight"] = v
	if s == NVFP4 || s == NVFP4Packed {
		b.nvfp4(full, v, n, k)
		return
	}
	if s == FP8Rows || s == FP8One {
		b.fp8Rows(full, v, n, k)
		return
	}
	side := cmp.Or(b.o.Config.WeightBlock, 128)
	data, scales := fp8(v, n, k, side, s == FP8)
	b.put(full+".weight", safetensors.F8E4M3, data, n, k)
	blocks := []int{(n + side - 1) / side, (k + side - 1) / side}
	var raw []byte
	for i, x := range scales {
		switch s {
		case FP8:
			raw = append(raw, byte(math.Float32bits(x)>>23))
		case FP8BF16:
			raw, scales[i] = binary.LittleEndian.AppendUint16(raw, numfmt.BF16Encode(x)), numfmt.BF16Round(x)
		default:
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
	}
	switch s {
	case FP8:
		b.put(full+".scale", safetensors.F8E8M0, raw, blocks...)
	case FP8BF16:
		b.put(full+".weight_scale", safetensors.BF16, raw, blocks...)
	default:
		b.put(full+".weight_scale_inv", safetensors.F32, raw, blocks...)
	}
	for row := range n {
		of := scales[row/side*blocks[1]:]
		for c := range k {
			v[row*k+c] = numfmt.E4M3Decode(data[row*k+c]) * of[c/side]
		}
	}
}

// inputScale returns the factor of the activations of a matrix of NVFP4: those of numbers up to
// about 2688 times as much, and not the same for all matrices.
func inputScale(name string) float32 { return 0x1p-9 * float32(1+len(name)%3) }

// fp8Rows stores E4M3 with one scale for each row, or for all.
func (b *builder) fp8Rows(full string, v []float32, n, k int) {
	shape, each := []int{n, 1}, k
	if b.o.Storage == FP8One {
		shape, each = []int{}, n*k
	}
	var data, raw []byte
	for at := 0; at < len(v); at += each {
		scale := largest(v[at:at+each]) / 448
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(scale))
		for i := at; i < at+each; i++ {
			code := numfmt.E4M3Encode(v[i] / scale)
			data, v[i] = append(data, code), numfmt.E4M3Decode(code)*scale
		}
	}
	b.put(full+".weight", safetensors.F8E4M3, data, n, k)
	b.put(full+".weight_scale", safetensors.F32, raw, shape...)
}

func (b *builder) nvfp4(full string, v []float32, n, k int) {
	amax := largest(v)
	if strings.HasSuffix(full, "wq_a") || strings.HasSuffix(full, "wkv") {
		amax = 2 // so that both have the same factor
	}
	data, scales, global := nvfp4(v, amax)
	weight, factor, stored := ".weight", ".weight_scale_2", global
	input, inputScale := ".input_scale", inputScale(full)
	if b.o.Storage == NVFP4Packed {
		weight, factor, stored = ".weight_packed", ".weight_global_scale", 1/global
		input, inputScale = ".input_global_scale", 1/inputScale
		global = 1 / stored
	}
	b.put(full+weight, safetensors.U8, data, n, k/2)
	b.put(full+".weight_scale", safetensors.F8E4M3, scales, n, k/16)
	b.put(full+factor, safetensors.F32, binary.LittleEndian.AppendUint32(nil, math.Float32bits(stored)))
	b.put(full+input, safetensors.F32, binary.LittleEndian.AppendUint32(nil, math.Float32bits(inputScale)))
	for i := range v {
		e, o := numfmt.E2M1Unpack(data[i/2])
		v[i] = numfmt.E2M1Decode([]byte{e, o}[i%2]) * numfmt.E4M3Decode(scales[i/16]) * global
	}
}

// moduleNames are transformers' names of modules, in the order they are replaced.
var moduleNames = strings.NewReplacer(
	"indexer.compressor.ape", "compressor.indexer.position_bias", "indexer.compressor.wkv", "compressor.indexer.kv_proj",
	"indexer.compressor.wgate", "compressor.indexer.gate_proj", "indexer.compressor.norm", "compressor.indexer.kv_norm",
	"indexer.wq_b", "compressor.indexer.q_b_proj", "indexer.weights_proj", "compressor.indexer.scorer.weights_proj",
	"compressor.ape", "compressor.position_bias", "compressor.wkv", "compressor.kv_proj", "compressor.wgate", "compressor.gate_proj",
	"compressor.norm", "compressor.kv_norm", "q_norm", "q_a_norm", "wq_a", "q_a_proj", "wq_b", "q_b_proj", "wkv", "kv_proj",
	"wo_a", "o_a_proj", "wo_b", "o_b_proj", "attn_sink", "sinks",
)

// movedNames leave the indexer inside the compressor, where transformers has it.
var movedNames = strings.NewReplacer("indexer.compressor.", "compressor.indexer.", "indexer.", "compressor.indexer.")

func (b *builder) name(released string) string { return b.o.Prefix + b.spelled(released) }

func (b *builder) spelled(released string) string {
	stem, rest, found := strings.Cut(released, ".attn.")
	switch b.o.Naming {
	case Moved, Nested, NestedModules:
		switch {
		case !found:
			return released
		case b.o.Naming == Moved:
			rest = movedNames.Replace(rest)
		case b.o.Naming == Nested:
			rest = strings.Replace(rest, "indexer.", "compressor.indexer.", 1)
		case strings.HasPrefix(rest, "indexer.compressor."):
			leaf := strings.TrimPrefix(rest, "indexer.")
			rest = "compressor.indexer." + moduleNames.Replace(leaf)
		default:
			rest = moduleNames.Replace(rest)
		}
		return stem + ".self_attn." + rest
	case Prefixed:
		return "model." + strings.ReplaceAll(released, ".attn.kv_norm.", ".attn.norm.")
	case Modules:
		layer, rest, _ := strings.Cut(released, ".attn.")
		if rest == "" {
			return "model." + released
		}
		return "model." + layer + ".self_attn." + moduleNames.Replace(rest)
	}
	return released
}

// Find returns the tensor of that name as stored, nil without one.
func (m *Model) Find(name string) *Tensor {
	for _, t := range m.Tensors {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Remove removes the tensor of that name as stored.
func (m *Model) Remove(name string) {
	m.Tensors = slices.DeleteFunc(m.Tensors, func(t *Tensor) bool { return t.Name == name })
}

// Add adds a tensor of zeros.
func (m *Model) Add(name string, d safetensors.DType, shape ...int) {
	n := d.Bits()
	for _, dim := range shape {
		n *= dim
	}
	m.Tensors = append(m.Tensors, &Tensor{Name: name, DType: d, Shape: shape, Data: make([]byte, n/8)})
}

// Write writes config.json and the tensors, as a single file, or, with shards above 1,
// as several with an index.
func (m *Model) Write(dir string, shards int) error {
	config, err := json.Marshal(m.Config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666); err != nil {
		return err
	}
	if shards <= 1 {
		return save(filepath.Join(dir, safetensors.SingleName), m.Tensors)
	}
	where := map[string]string{}
	for i := range shards {
		file := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		var list []*Tensor
		for j, t := range m.Tensors {
			if j%shards == i {
				list, where[t.Name] = append(list, t), file
			}
		}
		if err := save(filepath.Join(dir, file), list); err != nil {
			return err
		}
	}
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 0}, "weight_map": where})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, safetensors.IndexName), index, 0o666)
}

func save(path string, list []*Tensor) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var tensors []safetensors.Tensor
	for _, t := range list {
		tensors = append(tensors, *t)
	}
	if err := safetensors.Write(f, tensors...); err != nil {
		return err
	}
	return f.Close()
}

// ConfigFile returns a config.json in the spelling of the released checkpoints.
func ConfigFile(cfg model.Config) map[string]any {
	ratios, main := []int{}, 0
	for _, l := range cfg.Layers {
		ratios = append(ratios, l.Ratio)
		if !l.Draft {
			main++
		}
	}
	yarn := cfg.Compress
	f := map[string]any{
		"hidden_size": cfg.Hidden, "num_hidden_layers": main, "num_attention_heads": cfg.Heads, "num_key_value_heads": 1, "head_dim": 512,
		"qk_rope_head_dim": 64, "q_lora_rank": cfg.QRank, "o_lora_rank": cfg.ORank, "o_groups": cfg.Groups,
		"index_n_heads": cfg.IndexHeads, "index_head_dim": 128, "index_topk": cfg.TopK, "sliding_window": cfg.Window,
		"rope_theta": cfg.Main.Theta, "compress_rope_theta": yarn.Theta, "max_position_embeddings": cfg.MaxPositions,
		"rope_scaling": map[string]any{"type": "yarn", "factor": yarn.Factor, "beta_fast": yarn.BetaFast, "beta_slow": yarn.BetaSlow,
			"original_max_position_embeddings": yarn.Original},
		"compress_ratios": ratios,
	}
	if cfg.PlainQueries {
		return configFileV41(cfg, f, len(ratios)-main)
	}
	if main == len(ratios) {
		f["compress_ratios"] = append(ratios, 0) // the layer that predicts ahead
	}
	maps.Copy(f, map[string]any{
		"architectures": []string{"DeepseekV4ForCausalLM"}, "model_type": "deepseek_v4", "rms_norm_eps": 1e-6,
		"quantization_config": map[string]any{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": []int{128, 128}, "scale_fmt": "ue8m0"},
		"torch_dtype":         "bfloat16", "n_routed_experts": 256,
	})
	if slices.ContainsFunc(cfg.Layers, func(l model.Layer) bool { return l.Block }) {
		f["num_nextn_predict_layers"], f["dspark_block_size"], f["dspark_target_layer_ids"] = 1, cfg.DraftBlock, cfg.DraftTargets
	}
	return f
}

// configFileV41 is that of DeepSeek-V4.1, whose text configuration has more than DeepSeek-V4's.
func configFileV41(cfg model.Config, text map[string]any, drafts int) map[string]any {
	s := model.SourcesOf(cfg.Layers)
	maps.Copy(text, map[string]any{
		"model_type": "deepseek_v41_text", "rms_norm_eps": cfg.Eps,
		"kv_source_layer_ids": s.Entries, "index_source_layer_ids": s.Picks, "candidate_source_layer_id": s.Candidates,
		"candidate_topk_blocks": cfg.CandidateBlocks, "candidate_block_size": cfg.CandidateBlock,
		"num_nextn_predict_layers": drafts, "dspark_block_size": cfg.DraftBlock, "dspark_target_layer_ids": cfg.DraftTargets,
	})
	return map[string]any{
		"architectures": []string{"DeepseekV41ForCausalLM"}, "model_type": "deepseek_v41", "torch_dtype": "bfloat16", "text_config": text,
		"quantization_config": map[string]any{"quant_method": "fp8", "activation_scheme": "dynamic",
			"weight_block_size": []int{cfg.WeightBlock, cfg.WeightBlock}, "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
	}
}
