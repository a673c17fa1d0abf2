package pipeline

import (
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
)

// Output is the layer's result: [T, Hidden] bf16, or f32 partial sums where the weights are one
// rank's part (model.CheckpointOptions.Rank). Padding rows are undefined, as is all of it where a
// layer that drafts got no block (Chunk.Draft). With EngineOptions.LayerByLayer or Between the next
// layer overwrites it.
func (st *Step) Output(layer int) tensor.Tensor { return st.tensor(&st.b.out, layer) }

// LSE is the logarithm of what a layer's softmax divides by: [T, H] f32, for each token and head
//
//	lse = ln sum_j exp(q . k_j / sqrt(512))
//
// over the rows k_j that the token attends: its window and its entries, those of the cache, so FP8.
// The sink is not in it; it is +inf where there are no rows, as in padding. With it, attention to
// parts of a sequence can be joined, and lse - sink says how much of its weight a head gave to
// rows. It is a zero tensor without EngineOptions.KeepLSE, and for an unknown layer.
//
// Source: lse of FlashMLA's flash_mla_with_kvcache, which counts no sink either.
func (st *Step) LSE(layer int) tensor.Tensor { return st.tensor(&st.b.lse, layer) }

// TopK are the picks of the layer's indexer: [T, TopK] i32, compressed entries in ascending order,
// then -1. It is a zero tensor without EngineOptions.KeepTopK and for layers without an indexer.
func (st *Step) TopK(layer int) tensor.Tensor {
	if layer < 0 || layer >= len(st.b.layers) || st.e.layers[layer].spec.Picks != model.PickOwn {
		return tensor.Tensor{}
	}
	return st.tensor(&st.b.topK, layer)
}

func (st *Step) tensor(h *hiddenStates, layer int) tensor.Tensor {
	if layer < 0 || layer >= len(st.b.layers) {
		return tensor.Tensor{}
	}
	return h.of(layer)
}
