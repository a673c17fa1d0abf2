package weights

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/pipeline/model"
)

// ggufKeys begins the keys of a model's configuration, ggufTokens has its vocabulary.
const (
	ggufKeys   = "deepseek4."
	ggufTokens = "tokenizer.ggml.tokens"
)

// loadGGUFConfig reads the keys of a GGUF file. Vocab is that of its embedding.
func loadGGUFConfig(file string, attention model.Config) (c Config, err error) {
	m, err := gguf.Open(file)
	if err != nil {
		return Config{}, fmt.Errorf("weights: load config: %w", err)
	}
	defer m.Close()
	err = gguf.Guard(func() error {
		r := ggufReader{keys: m.Keys}
		c = r.config(attention)
		embed, there := m.Tensor("token_embd.weight")
		if !there || len(embed.Shape) != 2 {
			return &model.CheckpointError{Tensor: "token_embd.weight", Got: "absent, or no matrix", Want: "the tensor"}
		}
		c.Vocab = embed.Shape[0]
		if n := m.Keys[ggufTokens].Len(); n > c.Vocab {
			r.bad(ggufTokens, n, "at most one for each of the %d rows of token_embd.weight", c.Vocab)
		}
		check := configReader{spelled: ggufSpelled}
		check.check(&c)
		return errors.Join(r.err, check.err)
	})
	return c, err
}

// ggufSpelled are fields of config.json by the keys that GGUF has for them.
var ggufSpelled = map[string]string{
	"vocab_size":            "token_embd.weight",
	"eos_token_id":          "tokenizer.ggml.eos_token_id",
	"hc_mult":               ggufKeys + "hyper_connection.count",
	"hc_sinkhorn_iters":     ggufKeys + "hyper_connection.sinkhorn_iterations",
	"n_routed_experts":      ggufKeys + "expert_count",
	"num_experts_per_tok":   ggufKeys + "expert_used_count",
	"moe_intermediate_size": ggufKeys + "expert_feed_forward_length",
	"swiglu_limit":          ggufKeys + "swiglu_clamp_exp",
}

// ggufReader remembers the first thing that is wrong.
type ggufReader struct {
	keys map[string]gguf.Value
	err  error
}

func (r *ggufReader) bad(key string, got any, want string, a ...any) {
	if r.err == nil {
		r.err = &model.ConfigError{Field: key, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
	}
}

func (r *ggufReader) value(key string) gguf.Value {
	v, there := r.keys[key]
	if !there {
		r.bad(key, "absent", "a value")
	}
	return v
}

func (r *ggufReader) whole(key string) int {
	v := r.value(key)
	n, ok := v.Int()
	if !ok || n < math.MinInt32 || n > math.MaxInt32 {
		r.bad(key, v, "a whole number of 32 bits")
	}
	return int(n)
}

func (r *ggufReader) number(key string) float32 {
	v := r.value(key)
	x, ok := v.Float()
	if !ok || math.IsNaN(x) || math.IsInf(x, 0) {
		r.bad(key, v, "a finite f32")
	}
	return float32(x)
}

// gatingSqrtSoftplus is DeepSeek-V4's value of expert_gating_func.
const gatingSqrtSoftplus = 4

func (r *ggufReader) config(attention model.Config) Config {
	of := func(key string) string { return ggufKeys + key }
	c := Config{
		Config: attention, Streams: r.whole(of("hyper_connection.count")),
		SinkhornSteps: r.whole(of("hyper_connection.sinkhorn_iterations")), HyperEps: r.number(of("hyper_connection.epsilon")),
		Experts: r.whole(of("expert_count")), PerToken: r.whole(of("expert_used_count")),
		Width: r.whole(of("expert_feed_forward_length")), Scoring: "sqrtsoftplus", Factor: r.number(of("expert_weights_scale")),
	}
	if n := r.whole(of("expert_gating_func")); n != gatingSqrtSoftplus {
		r.bad(of("expert_gating_func"), n, "%d, the root of softplus", gatingSqrtSoftplus)
	}
	if n := r.whole(of("expert_shared_count")); n != 1 {
		r.bad(of("expert_shared_count"), n, "1")
	}
	normalise, ok := r.value(of("expert_weights_norm")).Bool()
	if c.Normalise = normalise; !ok {
		r.bad(of("expert_weights_norm"), r.keys[of("expert_weights_norm")], "a bool")
	}
	c.Hash = make([]bool, len(attention.Layers))
	first := r.whole(of("hash_layer_count"))
	if first < 0 {
		r.bad(of("hash_layer_count"), first, "at least 0")
	}
	for i := range min(first, len(c.Hash)) {
		c.Hash[i] = true
	}
	c.Limit = r.limit(of("swiglu_clamp_exp"), len(c.Hash))
	if _, there := r.keys[of("swiglu_clamp_shexp")]; there { // without it the other counts for both
		if shared := r.limit(of("swiglu_clamp_shexp"), len(c.Hash)); shared != c.Limit {
			r.bad(of("swiglu_clamp_shexp"), shared, "that of the other experts, %v", c.Limit)
		}
	}
	if _, there := r.keys["tokenizer.ggml.eos_token_id"]; there {
		c.EOS = []int32{int32(r.whole("tokenizer.ggml.eos_token_id"))}
	}
	return c
}

// limit reads a number for all layers, or one for each, which have to be equal.
func (r *ggufReader) limit(key string, n int) float32 {
	v := r.value(key)
	if !v.IsArray() {
		return r.number(key)
	}
	if v.Len() < n || n == 0 {
		r.bad(key, v, "one for each of %d layers", n)
		return 0
	}
	var limit float32
	for i, e := range v.All() {
		x, ok := e.Float()
		switch {
		case i >= n:
		case !ok || i > 0 && float32(x) != limit:
			r.bad(key, fmt.Sprintf("%v of layer %d", x, i), "the same f32 for all layers")
		default:
			limit = float32(x)
		}
	}
	return limit
}

// ggufEnds are the tensors in front of the layers and after them, as GGUF and as released
// checkpoints call them.
var ggufEnds = gguf.Names{
	{"token_embd.", "embed."},
	{"output.", "head."},
	{"output_norm.", "norm."},
	{"output_hc_fn.weight", "hc_head_fn"},
	{"output_hc_base.weight", "hc_head_base"},
	{"output_hc_scale.weight", "hc_head_scale"},
}

// ggufLayer are those of a layer, without attention's, and of a draft block. Those of experts hold
// all of a layer.
var ggufLayer = gguf.Names{
	{"hc_attn_fn.weight", "hc_attn_fn"},
	{"hc_attn_base.weight", "hc_attn_base"},
	{"hc_attn_scale.weight", "hc_attn_scale"},
	{"hc_ffn_fn.weight", "hc_ffn_fn"},
	{"hc_ffn_base.weight", "hc_ffn_base"},
	{"hc_ffn_scale.weight", "hc_ffn_scale"},
	{"hc_head_fn.weight", "hc_head_fn"},
	{"hc_head_base.weight", "hc_head_base"},
	{"hc_head_scale.weight", "hc_head_scale"},
	{"attn_norm.", "attn_norm."},
	{"ffn_norm.", "ffn_norm."},
	{"exp_probs_b.bias", "ffn.gate.bias"},
	{"ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"},
	{"ffn_gate_inp.", "ffn.gate."},
	{"ffn_gate_exps.", "ffn.experts.w1."},
	{"ffn_up_exps.", "ffn.experts.w3."},
	{"ffn_down_exps.", "ffn.experts.w2."},
	{"ffn_gate_shexp.", "ffn.shared_experts.w1."},
	{"ffn_up_shexp.", "ffn.shared_experts.w3."},
	{"ffn_down_shexp.", "ffn.shared_experts.w2."},
	{"main_proj.", "main_proj."},
	{"main_norm.", "main_norm."},
	{"norm.", "norm."},
	{"markov_head.", "markov_head."},
}

// ggufStacks stand in front of the numbers of layers.
var ggufStacks = gguf.Names{{"blk.", "layers."}, {draftStack, draftStack}}

// draftStack begins the names of layers that draft.
const draftStack = "mtp."

// ggufOther spells a name of GGUF, column 0, as released, column 1, or the other way round. ok is
// false for a name that is none, such as that of attention's.
func ggufOther(name string, from int) (other string, ok bool) {
	if other, ok = ggufEnds.Other(name, from); ok {
		return other, true
	}
	stack, ok := ggufStacks.Other(name, from)
	dots := strings.SplitN(stack, ".", 3)
	if !ok || len(dots) < 3 {
		return "", false
	}
	leaf, ok := ggufLayer.Other(dots[2], from)
	return dots[0] + "." + dots[1] + "." + leaf, ok
}

// ggufReleased maps released names to those in a GGUF file.
func ggufReleased(stored []string) map[string]string {
	names := make(map[string]string, len(stored))
	for _, s := range stored {
		if name, ok := ggufOther(s, 0); ok {
			names[name] = s
		}
	}
	return names
}

// inGGUF returns GGUF's name of the tensor with a released name.
func inGGUF(released string) string { name, _ := ggufOther(released, 1); return name }

// blocks makes a matrix of blocks, whose numbers all have a further factor.
func blocks(t model.Tensor, n, k int, factor float32) (Matrix, error) {
	f := gguf.FormatNamed(t.DType)
	if f == nil || !f.Decodes() {
		return Matrix{}, wrong(t, "one of %s", gguf.Decoded())
	}
	return Matrix{Name: t.Name, Format: Blocks, N: n, K: k, Data: t.Data, Stored: f, Factor: factor}, nil
}

// stacked reads the matrices of all experts of a layer from one tensor [E, n, k].
func (r *reader) stacked(stem string, n, k int) []Matrix {
	e := r.m.Config.Experts
	t := r.shaped(stem+".weight", e, n, k)
	factors := slices.Repeat([]float32{1}, e)
	if r.m.released[stem+".scale"] != "" {
		factors = r.factors(stem+".scale", e)
	}
	var list []Matrix
	for i := 0; i < e && r.err == nil; i++ {
		part, size := t, len(t.Data)/e
		part.Data = t.Data[i*size:][:size:size]
		list = append(list, r.floats(part, n, k, factors[min(i, len(factors)-1)]))
	}
	return list
}

// factors reads one number for all of n matrices, or one for each.
func (r *reader) factors(name string, n int) []float32 {
	t := r.tensor(name)
	if r.err == nil && !slices.Equal(t.Shape, []int{1}) && !slices.Equal(t.Shape, []int{n}) {
		r.err = wrong(t, "shape [1] or [%d]", n)
	}
	if r.err != nil {
		return []float32{1}
	}
	var v []float32
	v, r.err = floats(t)
	return append(v, 1)[:max(len(v), 1)]
}

// floats makes a matrix of a tensor of floats or blocks.
func (r *reader) floats(t model.Tensor, n, k int, factor float32) (m Matrix) {
	switch {
	case r.err != nil:
	case (t.DType == "BF16" || t.DType == "F32") && factor == 1:
		m, r.err = plain(t, n, k)
	default:
		m, r.err = blocks(t, n, k, factor)
	}
	return m
}
