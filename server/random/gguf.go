package random

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/weights"
)

// recipe says how the tensors of a GGUF file are stored, by what their names have in common.
type recipe struct {
	fileType                                           uint32 // general.file_type
	embed, head, attention, shared, router, hyper      string
	compressor, positions, indexerQ, indexer, up, down string
	ds4                                                bool // keys as antirez/ds4 writes and demands them
}

// recipes are of files that people have, by the name of their experts' format.
var recipes = map[string]recipe{
	"q2_k_s": {fileType: 21, embed: "Q8_0", head: "Q6_K", attention: "Q8_0", shared: "Q8_0", router: "BF16", hyper: "Q8_0",
		compressor: "Q8_0", positions: "Q8_0", indexerQ: "Q8_0", indexer: "Q8_0", up: "Q2_K", down: "Q2_K"},
	"iq2_xxs": {fileType: 19, embed: "F16", head: "Q8_0", attention: "Q8_0", shared: "Q8_0", router: "F16", hyper: "F16",
		compressor: "F16", positions: "F16", indexerQ: "F16", indexer: "F16", up: "IQ2_XXS", down: "Q2_K", ds4: true},
	"mxfp4": {fileType: 38, embed: "BF16", head: "BF16", attention: "Q8_0", shared: "Q8_0", router: "BF16", hyper: "F32",
		compressor: "BF16", positions: "F32", indexerQ: "Q8_0", indexer: "BF16", up: "MXFP4", down: "MXFP4"},
}

// draftFolder is the folder in a model's for the file of its draft block.
const draftFolder = "draft"

// WriteGGUF writes a model in GGUF: in parts, with keys and what is not of a layer in the first,
// then a layer each, or in one file for ds4, which reads no parts. A draft block gets a file in the
// folder draft, as ds4 has it. kind is one of q2_k_s, iq2_xxs, mxfp4. It returns the bytes, and is
// as Write else.
//
// Errors: as Write; fs.ErrExist where the folder has a file of it already.
func WriteGGUF(ctx context.Context, dir, kind string, c weights.Config, seed uint64) (size int64, err error) {
	r, there := recipes[kind]
	if !there {
		return 0, fmt.Errorf("random: write: kind of GGUF: got %q, want %s", kind, strings.Join(slices.Sorted(maps.Keys(recipes)), ", "))
	}
	if err := c.Check(); err != nil {
		return 0, fmt.Errorf("random: write: %w", err)
	}
	whole := 1 // numbers of the longest block
	for _, format := range []string{r.head, r.attention, r.up, r.down} {
		whole = max(whole, gguf.FormatNamed(format).Values)
	}
	if k := c.Hidden | c.Width; k%whole != 0 {
		return 0, fmt.Errorf("random: write: got widths %d and %d, want multiples of %d in GGUF, as small has", c.Hidden, c.Width, whole)
	}
	lists := []tensors{r.ends(&c)}
	for i := range c.Own() {
		lists = append(lists, r.layer(&c, i))
	}
	all := 0
	for _, l := range lists {
		all += len(l)
	}
	var keys gguf.Header
	r.keys(&keys, &c)
	w := writer{dir: dir, seed: seed}
	w.group, w.ctx = errgroup.WithContext(ctx)
	w.group.SetLimit(runtime.GOMAXPROCS(0))
	err = os.MkdirAll(dir, 0o777)
	if r.ds4 && err == nil {
		err = w.gguf("model.gguf", &keys, lists)
	}
	for i := 0; i < len(lists) && err == nil && !r.ds4; i++ {
		keys.Key("split.no", uint16(i))
		keys.Key("split.count", uint16(len(lists)))
		keys.Key("split.tensors.count", int32(all))
		err = w.gguf(fmt.Sprintf("model-%05d-of-%05d.gguf", i+1, len(lists)), &keys, lists[i:i+1])
		keys = gguf.Header{}
	}
	if err == nil && c.Own() < len(c.Layers) {
		err = w.draft(&r, &c)
	}
	if waiting := w.group.Wait(); err == nil || waiting != nil {
		err = waiting
	}
	if err != nil {
		return w.size, fmt.Errorf("random: write: %w", err)
	}
	return w.size, nil
}

// draft writes the file of a draft block.
func (w *writer) draft(r *recipe, c *weights.Config) error {
	if err := os.MkdirAll(filepath.Join(w.dir, draftFolder), 0o777); err != nil {
		return err
	}
	own, n := c.Own(), len(c.Layers)
	var targets []int32
	for _, t := range c.DraftTargets {
		targets = append(targets, int32(t))
	}
	var keys gguf.Header
	for _, k := range []struct {
		name  string
		value any
	}{
		{"general.architecture", "deepseek4-dspark"}, {"general.name", "random"}, {"dspark.block_size", uint32(c.DraftBlock)},
		{"dspark.markov_rank", uint32(c.MarkovRank)}, {"dspark.n_layers", uint32(n - own)}, {"dspark.stage_count", uint32(n - own)},
		{"dspark.noise_token_id", uint32(c.Noise)}, {"dspark.target_layer_ids", targets},
	} {
		keys.Key(k.name, k.value)
	}
	l := tensors{}
	for i := own; i < n; i++ {
		l = append(l, r.layer(c, i)...)
	}
	first, last := "mtp.0.", fmt.Sprintf("mtp.%d.", n-own-1)
	l.linear(first+"main_proj.weight", r.attention, c.Hidden, len(targets)*c.Hidden)
	l.norm(first+"main_norm.weight", "F32", c.Hidden)
	l.norm(last+"norm.weight", "F32", c.Hidden)
	r.hyperOf(&l, last+"hc_head", c.Streams, 1, c)
	l.add(last+"markov_head.markov_w1.weight", "F16", numbers{spread: 1}, c.Vocab, c.MarkovRank)
	l.linear(last+"markov_head.markov_w2.weight", "F16", c.Vocab, c.MarkovRank)
	l.linear(last+"confidence_head.proj.weight", "F32", 1, c.Hidden+c.MarkovRank)
	return w.gguf(filepath.Join(draftFolder, "draft.gguf"), &keys, []tensors{l})
}

// gguf writes a file, each list of its tensors on one core.
func (w *writer) gguf(name string, h *gguf.Header, lists []tensors) error {
	at := int64(0)
	for _, t := range slices.Concat(lists...) {
		h.Tensor(t.name, t.dtype, t.size, t.shape...)
		at += h.Padded(t.size)
	}
	head := h.Bytes()
	head = append(head, make([]byte, h.Padded(int64(len(head)))-int64(len(head)))...)
	w.size += int64(len(head)) + at
	path := filepath.Join(w.dir, name)
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("%s: want a folder without: %w", path, fs.ErrExist)
	}
	if err := os.WriteFile(path, head, 0o666); err != nil {
		return err
	}
	at = int64(len(head))
	for _, list := range lists {
		from := at
		for _, t := range list {
			at += h.Padded(t.size)
		}
		w.group.Go(func() error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			to := io.NewOffsetWriter(f, from)
			for i := 0; i < len(list) && err == nil; i++ {
				if err = w.tensor(to, &list[i]); err == nil {
					_, err = to.Write(make([]byte, h.Padded(list[i].size)-list[i].size))
				}
			}
			return errors.Join(err, f.Close())
		})
	}
	return nil
}

// keys are those of a model and its tokenizer.
func (r *recipe) keys(k *gguf.Header, c *weights.Config) {
	hash, n := 0, c.Own()
	for hash < n && c.Hash[hash] {
		hash++
	}
	ratios := make([]int32, n, n+1)
	for i := range ratios {
		ratios[i] = int32(c.Layers[i].Ratio)
	}
	limits := slices.Repeat([]float32{c.Limit}, n)
	k.Key("general.architecture", "deepseek4")
	k.Key("general.type", "model")
	k.Key("general.name", "random")
	k.Key("general.file_type", r.fileType)
	k.Key("general.quantization_version", uint32(2))
	for _, x := range []struct {
		name  string
		value any
	}{
		{"block_count", uint32(n)}, {"context_length", uint32(c.MaxPositions)}, {"embedding_length", uint32(c.Hidden)},
		{"attention.head_count", uint32(c.Heads)}, {"attention.head_count_kv", uint32(1)},
		{"attention.key_length", uint32(512)}, {"attention.value_length", uint32(512)},
		{"attention.layer_norm_rms_epsilon", c.Eps}, {"attention.q_lora_rank", uint32(c.QRank)},
		{"attention.sliding_window", uint32(c.Window)}, {"rope.dimension_count", uint32(64)},
		{"rope.freq_base", float32(c.Main.Theta)}, {"rope.scaling.type", "yarn"}, {"rope.scaling.factor", float32(c.Compress.Factor)},
		{"rope.scaling.original_context_length", uint32(c.Compress.Original)},
		{"rope.scaling.yarn_beta_fast", float32(c.Compress.BetaFast)}, {"rope.scaling.yarn_beta_slow", float32(c.Compress.BetaSlow)},
		{"attention.compress_rope_freq_base", float32(c.Compress.Theta)}, {"attention.compress_ratios", append(ratios, 0)},
		{"attention.indexer.head_count", uint32(c.IndexHeads)}, {"attention.indexer.key_length", uint32(128)},
		{"attention.indexer.top_k", uint32(c.TopK)}, {"attention.output_group_count", uint32(c.Groups)},
		{"attention.output_lora_rank", uint32(c.ORank)},
		{"hyper_connection.count", uint32(c.Streams)}, {"hyper_connection.sinkhorn_iterations", uint32(c.SinkhornSteps)},
		{"hyper_connection.epsilon", c.HyperEps}, {"hash_layer_count", uint32(hash)},
		{"expert_count", uint32(c.Experts)}, {"expert_used_count", uint32(c.PerToken)}, {"expert_shared_count", uint32(1)},
		{"expert_feed_forward_length", uint32(c.Width)}, {"expert_gating_func", uint32(4)},
		{"expert_weights_scale", c.Factor}, {"expert_weights_norm", c.Normalise}, {"swiglu_clamp_exp", limits},
	} {
		k.Key("deepseek4."+x.name, x.value)
	}
	if r.ds4 {
		k.Key("deepseek4.vocab_size", uint32(c.Vocab))
		k.Key("deepseek4.nextn_predict_layers", uint32(1))
	} else {
		k.Key("deepseek4.swiglu_clamp_shexp", limits)
	}
	tokenizer(k, c.Vocab)
}

// tokenizer adds a tokenizer of bytes with a few merges. Its further tokens are in no text.
func tokenizer(k *gguf.Header, vocab int) {
	const control, normal, unused = 3, 1, 5
	tokens := append(slices.Clone(marks), "<｜▁pad▁｜>")
	types := slices.Repeat([]int32{control}, len(tokens))
	next := rune(256) // bytes that are not printed have letters from here on
	for b := range 256 {
		letter := rune(b)
		if b < '!' || b > '~' && b < 0xA1 || b == 0xAD {
			letter, next = next, next+1
		}
		tokens, types = append(tokens, string(letter)), append(types, normal)
	}
	merges := []string{"t h", "h e", "i n", "e r"}
	for _, m := range merges {
		tokens, types = append(tokens, strings.ReplaceAll(m, " ", "")), append(types, normal)
	}
	for i := len(tokens); i < vocab; i++ {
		tokens, types = append(tokens, fmt.Sprintf("<unused%d>", i)), append(types, unused)
	}
	k.Key("tokenizer.ggml.model", "gpt2")
	k.Key("tokenizer.ggml.pre", "joyai-llm")
	k.Key("tokenizer.ggml.tokens", tokens[:vocab])
	k.Key("tokenizer.ggml.token_type", types[:vocab])
	k.Key("tokenizer.ggml.merges", merges)
	k.Key("tokenizer.ggml.bos_token_id", uint32(0))
	k.Key("tokenizer.ggml.eos_token_id", uint32(1))
	k.Key("tokenizer.ggml.padding_token_id", uint32(len(marks)))
	k.Key("tokenizer.ggml.add_bos_token", true)
}

// ends lists the tensors in front of the layers and after them.
func (r *recipe) ends(c *weights.Config) (l tensors) {
	l.add("token_embd.weight", r.embed, numbers{spread: 1}, c.Vocab, c.Hidden)
	l.linear("output.weight", r.head, c.Vocab, c.Hidden)
	l.norm("output_norm.weight", "F32", c.Hidden)
	r.hyperOf(&l, "output_hc", c.Streams, 1, c)
	return l
}

func (r *recipe) hyperOf(l *tensors, name string, rows, scales int, c *weights.Config) {
	l.linear(name+"_fn.weight", r.hyper, rows, c.Streams*c.Hidden)
	l.add(name+"_base.weight", "F32", numbers{spread: 1. / 2}, rows)
	l.norm(name+"_scale.weight", "F32", scales)
}

// layer are the tensors of a layer.
func (r *recipe) layer(c *weights.Config, i int) (l tensors) {
	at, a := fmt.Sprintf("blk.%d.", i), &c.Layers[i]
	if own := c.Own(); i >= own {
		at = fmt.Sprintf("mtp.%d.", i-own)
	}
	rows := (2 + c.Streams) * c.Streams
	r.hyperOf(&l, at+"hc_attn", rows, 3, c)
	r.hyperOf(&l, at+"hc_ffn", rows, 3, c)
	for name, n := range map[string]int{"attn_norm": c.Hidden, "ffn_norm": c.Hidden, "attn_q_a_norm": c.QRank, "attn_kv_a_norm": 512,
		"attn_sinks": c.Heads} {
		l.norm(at+name+".weight", "F32", n)
	}
	slices.SortFunc(l, func(a, b tensor) int { return strings.Compare(a.name, b.name) }) // the same bytes every time
	l.linear(at+"attn_q_a.weight", r.attention, c.QRank, c.Hidden)
	l.linear(at+"attn_q_b.weight", r.attention, c.Heads*512, c.QRank)
	l.linear(at+"attn_kv.weight", r.attention, 512, c.Hidden)
	l.linear(at+"attn_output_a.weight", r.attention, c.Groups*c.ORank, c.HeadsPerGroup()*512)
	l.linear(at+"attn_output_b.weight", r.attention, c.Hidden, c.Groups*c.ORank)
	if a.Compresses() {
		r.compressorOf(&l, at+"attn_compressor", c, a, 512)
	}
	if a.Picks == model.PickOwn {
		l.linear(at+"indexer.attn_q_b.weight", r.indexerQ, c.IndexHeads*128, c.QRank)
		l.linear(at+"indexer.proj.weight", r.indexer, c.IndexHeads, c.Hidden)
		r.compressorOf(&l, at+"indexer_compressor", c, a, 128)
	}
	l.linear(at+"ffn_gate_inp.weight", r.router, c.Experts, c.Hidden)
	if c.Hash[i] {
		l.add(at+"ffn_gate_tid2eid.weight", "I32", numbers{most: c.Experts}, c.Vocab, c.PerToken)
	} else {
		l.add(at+"exp_probs_b.bias", "F32", numbers{spread: 1. / 64}, c.Experts)
	}
	for _, x := range []struct {
		name, format string
		n, k         int
	}{{"gate", r.up, c.Width, c.Hidden}, {"up", r.up, c.Width, c.Hidden}, {"down", r.down, c.Hidden, c.Width}} {
		spread := numbers{spread: 1 / math.Sqrt(float64(x.k))}
		l.add(at+"ffn_"+x.name+"_exps.weight", x.format, spread, c.Experts, x.n, x.k)
		l.add(at+"ffn_"+x.name+"_shexp.weight", r.shared, spread, x.n, x.k)
	}
	return l
}

func (r *recipe) compressorOf(l *tensors, at string, c *weights.Config, a *model.Layer, dim int) {
	channels := a.Compression(dim).Channels()
	l.linear(at+"_kv.weight", r.compressor, channels, c.Hidden)
	l.linear(at+"_gate.weight", r.compressor, channels, c.Hidden)
	l.linear(at+"_ape.weight", r.positions, a.Ratio, channels)
	l.norm(at+"_norm.weight", "F32", dim)
}

// block makes a block of random codes whose numbers have a spread.
func block(format string, spread float64, rng *rand.Rand) []byte {
	b := make([]byte, gguf.FormatNamed(format).Bytes)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	half := func(at int, x float64) { binary.LittleEndian.PutUint16(b[at:], numfmt.F16Encode(float32(x))) }
	switch format {
	case "Q8_0":
		half(0, spread/74)
	case "Q2_K": // minima are 3/2 of scales, and codes 3/2 in the middle
		for i := range 16 {
			b[i] = 0x11 * (8 + b[i]&7)
		}
		half(80, spread/13)
		half(82, spread/13*1.5)
	case "Q6_K":
		for i := range 16 {
			b[192+i] = 32 + b[192+i]&31
		}
		half(208, spread/888)
	case "IQ2_XXS":
		half(0, spread/50)
	case "MXFP4":
		b[0] = byte(127 + math.Round(math.Log2(spread/2.9)))
	}
	return b
}
