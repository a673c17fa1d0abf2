package model

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

// Matrix is the weights of a linear layer, y = x W^T, as a checkpoint holds them.
// Sources: fp8 blocks: weight_dequant in DeepSeek's inference/kernel.py; NVFP4:
// NVIDIA's Model Optimizer, and compressed-tensors, whose global scales divide and are
// inverted here. Of stacked matrices the largest input_scale counts, as vLLM has it for the
// former.
type Matrix struct {
	Name      string // of the tensor, or of the stacked tensors with "|" between them
	Format    projection.Format
	N, K      int                               // rows (outputs) and columns (inputs)
	Data      Blob                              // row-major, as projection.Format.Shapes says, as are the next two
	Scales    Blob                              // absent if the format has none
	RowScales Blob                              // absent if the format has none, or Global is for all rows
	Global    float32                           // FormatNVFP4: factor of all weights
	Input     float32                           // FormatNVFP4: input_scale, unchecked; 0: there is none, NaN: not one f32
	values    func(r int, dst []float32, a int) // dst = row r from column a on, as f32
}

// Vector is a small tensor: the weights of a norm, sinks, positional terms.
type Vector struct {
	Name  string
	DType tensor.DType // F32; of a norm's weights F32 or BF16, as stored
	Shape []int
	Data  Blob
}

// LayerWeights are the weights of one layer's attention, the part of one rank. H and G below are
// its heads and groups: with Ranks ranks the model's divided by Ranks.
type LayerWeights struct {
	Layer int // of the model

	QKV    Matrix // [QRank+512, Hidden]: wq_a over wkv
	QNorm  Vector // [QRank]
	KVNorm Vector // [512]
	QB     Matrix // [H*512, QRank]: wq_b; divided by heads
	Sink   Vector // [H] f32: attn_sink; divided by heads
	OA     Matrix // [G*ORank, P*512]: wo_a; divided by groups
	OB     Matrix // [Hidden, G*ORank]: wo_b; divided by columns, so that ranks give partial sums

	Compressor *CompressorWeights // nil without one
	Indexer    *IndexerWeights    // nil without one

	stored map[string]safetensors.Tensor // whole, by released name
}

// CompressorWeights are the weights of a compressor to entries of d numbers, with
// C = d channels of a token, or 2 d where entries overlap.
type CompressorWeights struct {
	KVGate Matrix // [2*C, Hidden]: wkv over wgate; [C, Hidden], wkv alone, unless LayerSpec.Gated
	Ape    Vector // [Ratio, C] f32: positional term of the scores: 0 with LayerSpec.Unplaced, none unless Gated
	Norm   Vector // [d]
}

// IndexerWeights are the weights of an indexer. Ranks do not divide them.
type IndexerWeights struct {
	QB         Matrix             // [Hi*128, QRank]: wq_b
	Weights    Matrix             // [Hi, Hidden]: weights_proj
	Compressor *CompressorWeights // to keys of 128 numbers; nil where the layer borrows them or has Keys
	Keys       *KeyWeights        // of keys made of entries; nil without LayerSpec.LatentKeys
}

// KeyWeights make index keys of entries.
type KeyWeights struct {
	K    Matrix // [128, 512]: wk
	Norm Vector // [128]: k_norm
}

// matrices lists the linear layers of l that it has, in a fixed order.
func (l *LayerWeights) matrices() []*Matrix {
	list := []*Matrix{&l.QKV, &l.QB, &l.OA, &l.OB}
	if c := l.Compressor; c != nil {
		list = append(list, &c.KVGate)
	}
	if x := l.Indexer; x != nil {
		list = append(list, &x.QB, &x.Weights)
		if x.Compressor != nil {
			list = append(list, &x.Compressor.KVGate)
		}
		if x.Keys != nil {
			list = append(list, &x.Keys.K)
		}
	}
	return list
}

// vectors lists the small tensors of l that it has, in a fixed order.
func (l *LayerWeights) vectors() []*Vector {
	list := []*Vector{&l.QNorm, &l.KVNorm, &l.Sink}
	add := func(c *CompressorWeights) {
		switch {
		case c == nil:
		case c.Ape.Shape != nil:
			list = append(list, &c.Ape, &c.Norm)
		default:
			list = append(list, &c.Norm)
		}
	}
	add(l.Compressor)
	if x := l.Indexer; x != nil {
		add(x.Compressor)
		if x.Keys != nil {
			list = append(list, &x.Keys.Norm)
		}
	}
	return list
}

// Row writes row r as K f32 values to dst: what the stored weights mean, without another rounding.
// It is for checks; kernels read the stored weights. Errors: those of Blob.ReadAt; vk.ErrArgument
// for an unknown row or a dst that is too short.
func (m *Matrix) Row(r int, dst []float32) error {
	if r < 0 || r >= m.N || m.values == nil {
		return badArgument("model: weights", "r", r, "one of the %d rows of a checkpoint's matrix", m.N)
	}
	if len(dst) < m.K {
		return badArgument("model: weights", "dst", fmt.Sprintf("%d values", len(dst)), "%d for a row", m.K)
	}
	return guarded(func() { m.values(r, dst[:m.K], 0) })
}
