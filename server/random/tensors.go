package random

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/weights"
)

// tensor is one to be written.
type tensor struct {
	name, dtype string
	shape       []int
	size        int64 // bytes
	numbers     numbers
}

// numbers say what is random about a tensor.
type numbers struct {
	mean, spread float64 // of bf16 and f32
	exponent     int     // of scales: 2^exponent, and half of it as often
	most         int     // of tables of experts
}

// bytesOf has the bytes of a number.
var bytesOf = map[string]int64{"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "I32": 4, "I64": 8}

// letter returns the bytes of what an alphabet has, a number or a block of GGUF, and its numbers.
func letter(dtype string) (bytes, values int64) {
	if n := bytesOf[dtype]; n > 0 {
		return n, 1
	}
	f := gguf.FormatNamed(dtype)
	return int64(f.Bytes), int64(f.Values)
}

// tensors collects tensors. Weights keep the length of what they multiply, about.
type tensors []tensor

func (l *tensors) add(name, dtype string, n numbers, shape ...int) {
	size, values := letter(dtype)
	for _, d := range shape {
		size *= int64(d)
	}
	size /= values
	*l = append(*l, tensor{name, dtype, shape, size, n})
}

// linear adds a matrix of bf16 or f32, with sums of about the length of an input's numbers.
func (l *tensors) linear(name, dtype string, n, k int) {
	l.add(name, dtype, numbers{spread: 1 / math.Sqrt(float64(k))}, n, k)
}

// norm adds numbers around 1.
func (l *tensors) norm(name, dtype string, n int) {
	l.add(name, dtype, numbers{mean: 1, spread: 1. / 8}, n)
}

// fp8 adds E4M3 codes and a scale for each block of 128 by 128.
func (l *tensors) fp8(stem string, n, k int) {
	l.add(stem+".weight", "F8_E4M3", numbers{}, n, k)
	l.add(stem+".scale", "F8_E8M0", numbers{exponent: exponent(k, spreadFP8)},
		(n+weights.FP8Block-1)/weights.FP8Block, (k+weights.FP8Block-1)/weights.FP8Block)
}

// mxfp4 adds E2M1 codes, two a byte, and a scale for each 32 of a row.
func (l *tensors) mxfp4(stem string, n, k int) {
	l.add(stem+".weight", "I8", numbers{}, n, k/2)
	l.add(stem+".scale", "F8_E8M0", numbers{exponent: exponent(k, spreadFP4)}, n, k/weights.MXBlock)
}

// exponent is that of the scale with which codes have a spread of about 1/sqrt(k).
func exponent(k int, spread float64) int {
	return int(math.Ceil(math.Log2(1 / (math.Sqrt(float64(k)) * spread))))
}

// ends lists the tensors in front of the layers and after them.
func ends(c *weights.Config) (l tensors) {
	l.add("embed.weight", "BF16", numbers{spread: 1}, c.Vocab, c.Hidden)
	l.linear("head.weight", "BF16", c.Vocab, c.Hidden)
	l.norm("norm.weight", "BF16", c.Hidden)
	l.hyper("hc_head", c.Streams, 1, c)
	return l
}

func (l *tensors) hyper(name string, rows, scales int, c *weights.Config) {
	l.linear(name+"_fn", "F32", rows, c.Streams*c.Hidden)
	l.add(name+"_base", "F32", numbers{spread: 1. / 2}, rows)
	l.norm(name+"_scale", "F32", scales)
}

// layer are the tensors of a layer.
func layer(c *weights.Config, i int) (l tensors) {
	at := fmt.Sprintf("layers.%d.", i)
	if own := c.Own(); i >= own {
		at = fmt.Sprintf("mtp.%d.", i-own)
		l.drafts(at, c, i == own, i == len(c.Layers)-1)
	}
	l.attention(at+"attn.", c, &c.Layers[i])
	rows := (2 + c.Streams) * c.Streams
	l.hyper(at+"hc_attn", rows, 3, c)
	l.hyper(at+"hc_ffn", rows, 3, c)
	l.norm(at+"attn_norm.weight", "BF16", c.Hidden)
	l.norm(at+"ffn_norm.weight", "BF16", c.Hidden)
	at += "ffn."
	l.linear(at+"gate.weight", "BF16", c.Experts, c.Hidden)
	if c.Hash[i] {
		l.add(at+"gate.tid2eid", "I64", numbers{most: c.Experts}, c.Vocab, c.PerToken)
	} else {
		l.add(at+"gate.bias", "F32", numbers{spread: 1. / 64}, c.Experts)
	}
	for e := range c.Experts {
		stem := fmt.Sprintf("%sexperts.%d.", at, e)
		l.mxfp4(stem+"w1", c.Width, c.Hidden)
		l.mxfp4(stem+"w3", c.Width, c.Hidden)
		l.mxfp4(stem+"w2", c.Hidden, c.Width)
	}
	l.fp8(at+"shared_experts.w1", c.Width, c.Hidden)
	l.fp8(at+"shared_experts.w3", c.Width, c.Hidden)
	l.fp8(at+"shared_experts.w2", c.Hidden, c.Width)
	return l
}

// drafts adds what the first and the last layer of a DSpark block have beside other layers.
func (l *tensors) drafts(at string, c *weights.Config, first, last bool) {
	if first {
		l.fp8(at+"main_proj", c.Hidden, len(c.DraftTargets)*c.Hidden)
		l.norm(at+"main_norm.weight", "BF16", c.Hidden)
	}
	if last {
		l.norm(at+"norm.weight", "BF16", c.Hidden)
		l.hyper(at+"hc_head", c.Streams, 1, c)
		l.add(at+"markov_head.markov_w1.weight", "BF16", numbers{spread: 1}, c.Vocab, c.MarkovRank)
		l.linear(at+"markov_head.markov_w2.weight", "BF16", c.Vocab, c.MarkovRank)
		l.linear(at+"confidence_head.proj.weight", "BF16", 1, c.Hidden+c.MarkovRank)
	}
}

func (l *tensors) attention(at string, c *weights.Config, a *model.Layer) {
	l.fp8(at+"wq_a", c.QRank, c.Hidden)
	l.norm(at+"q_norm.weight", "BF16", c.QRank)
	l.fp8(at+"wq_b", c.Heads*512, c.QRank)
	l.fp8(at+"wkv", 512, c.Hidden)
	l.norm(at+"kv_norm.weight", "BF16", 512)
	l.norm(at+"attn_sink", "F32", c.Heads)
	l.fp8(at+"wo_a", c.Groups*c.ORank, c.HeadsPerGroup()*512)
	l.fp8(at+"wo_b", c.Hidden, c.Groups*c.ORank)
	if a.Compresses() {
		l.compressor(at+"compressor.", c, a, 512)
	}
	if a.Picks == model.PickOwn {
		l.fp8(at+"indexer.wq_b", c.IndexHeads*128, c.QRank)
		l.linear(at+"indexer.weights_proj.weight", "BF16", c.IndexHeads, c.Hidden)
		l.compressor(at+"indexer.compressor.", c, a, 128)
	}
}

// compressor adds the tensors that make entries of dim numbers.
func (l *tensors) compressor(at string, c *weights.Config, a *model.Layer, dim int) {
	channels := a.Compression(dim).Channels()
	l.linear(at+"wkv.weight", "BF16", channels, c.Hidden)
	l.linear(at+"wgate.weight", "BF16", channels, c.Hidden)
	l.linear(at+"ape", "F32", a.Ratio, channels)
	l.norm(at+"norm.weight", "BF16", dim)
}
