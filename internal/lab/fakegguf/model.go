package fakegguf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Keys are those of a model's attention.
func Keys(c model.Config) []Key {
	ratios := make([]int32, 0, len(c.Layers)+1)
	for _, l := range c.Layers {
		ratios = append(ratios, int32(l.Ratio))
	}
	ratios = append(ratios, 0) // of a layer that predicts ahead and is not there
	list := []Key{{"general.architecture", "deepseek4"}, {"general.type", "model"}}
	for _, k := range []Key{
		{"block_count", uint32(len(c.Layers))}, {"context_length", uint32(c.MaxPositions)}, {"embedding_length", uint32(c.Hidden)},
		{"attention.head_count", uint32(c.Heads)}, {"attention.head_count_kv", uint32(1)},
		{"attention.key_length", uint32(512)}, {"attention.value_length", uint32(512)},
		{"attention.layer_norm_rms_epsilon", c.Eps}, {"attention.q_lora_rank", uint32(c.QRank)},
		{"attention.sliding_window", uint32(c.Window)}, {"rope.dimension_count", uint32(64)},
		{"rope.freq_base", float32(c.Main.Theta)}, {"rope.scaling.type", "yarn"}, {"rope.scaling.factor", float32(c.Compress.Factor)},
		{"rope.scaling.original_context_length", uint32(c.Compress.Original)},
		{"rope.scaling.yarn_beta_fast", float32(c.Compress.BetaFast)}, {"rope.scaling.yarn_beta_slow", float32(c.Compress.BetaSlow)},
		{"attention.compress_rope_freq_base", float32(c.Compress.Theta)}, {"attention.compress_ratios", ratios},
		{"attention.indexer.head_count", uint32(c.IndexHeads)}, {"attention.indexer.key_length", uint32(128)},
		{"attention.indexer.top_k", uint32(c.TopK)}, {"attention.output_group_count", uint32(c.Groups)},
		{"attention.output_lora_rank", uint32(c.ORank)},
	} {
		list = append(list, Key{"deepseek4." + k.Name, k.Value})
	}
	return list
}

// Attention are a model's tensors of attention, of random numbers. format says how one is stored,
// by its name within its block.
func Attention(c model.Config, seed uint64, format func(name string) string) []Tensor {
	rng := rand.New(rand.NewPCG(seed, 41))
	var list []Tensor
	for i, l := range c.Layers {
		add := func(name string, shape ...int) {
			list = append(list, Random(rng, fmt.Sprintf("blk.%d.%s", i, name), format(name), shape...))
		}
		add("attn_q_a.weight", c.QRank, c.Hidden)
		add("attn_q_a_norm.weight", c.QRank)
		add("attn_q_b.weight", c.Heads*512, c.QRank)
		add("attn_kv.weight", 512, c.Hidden)
		add("attn_kv_a_norm.weight", 512)
		add("attn_sinks.weight", c.Heads)
		add("attn_output_a.weight", c.Groups*c.ORank, c.HeadsPerGroup()*512)
		add("attn_output_b.weight", c.Hidden, c.Groups*c.ORank)
		compressor := func(stem string, dim int) {
			channels := dim
			if l.Overlap {
				channels = 2 * dim
			}
			add(stem+"_kv.weight", channels, c.Hidden)
			add(stem+"_gate.weight", channels, c.Hidden)
			add(stem+"_ape.weight", l.Ratio, channels)
			add(stem+"_norm.weight", dim)
		}
		if l.Ratio > 0 {
			compressor("attn_compressor", 512)
		}
		if l.Picks == model.PickOwn {
			add("indexer.attn_q_b.weight", c.IndexHeads*128, c.QRank)
			add("indexer.proj.weight", c.IndexHeads, c.Hidden)
			compressor("indexer_compressor", 128)
		}
	}
	return list
}

var le = binary.LittleEndian

// halves lists the places of the 16-bit numbers in a block, by which all others are multiplied.
var halves = map[string][]int{"F16": {0}, "BF16": {0}, "Q8_0": {0}, "Q4_0": {0}, "Q5_0": {0}, "IQ4_NL": {0}, "Q2_K": {80, 82},
	"Q3_K": {108}, "Q4_K": {0, 2}, "Q5_K": {0, 2}, "Q6_K": {208}, "IQ1_S": {0}, "IQ2_XXS": {0}, "IQ2_XS": {0}, "IQ2_S": {0},
	"IQ3_XXS": {0}, "IQ3_S": {0}, "IQ4_XS": {0}}

// Random makes a tensor of random bits whose numbers are small.
func Random(rng *rand.Rand, name, format string, shape ...int) Tensor {
	f, n := gguf.FormatNamed(format), 1
	for _, d := range shape {
		n *= d
	}
	t := Tensor{Name: name, Format: format, Shape: shape, Data: make([]byte, f.Size(n))}
	for i := range t.Data {
		t.Data[i] = byte(rng.Uint32())
	}
	for at := 0; at < len(t.Data); at += f.Bytes {
		b := t.Data[at:][:f.Bytes]
		switch format {
		case "F32":
			le.PutUint32(b, uint32(numfmt.BF16Encode(float32(rng.NormFloat64())/8))<<16)
		case "BF16":
			le.PutUint16(b, numfmt.BF16Encode(float32(rng.NormFloat64())/8))
		case "MXFP4":
			b[0] = byte(118 + rng.IntN(6))
		case "NVFP4":
			for i := range 4 {
				b[i] &= 0x3F
			}
		case "IQ1_M":
			d := numfmt.F16Encode(float32(rng.Float64()) / 256)
			for i := range 4 {
				b[49+2*i] = b[49+2*i]&15 | byte(d>>(4*i)<<4)
			}
		default:
			for _, h := range halves[format] {
				le.PutUint16(b[h:], numfmt.F16Encode(float32(rng.Float64())/256))
			}
		}
	}
	return t
}
