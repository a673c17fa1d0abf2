package pipeline

import (
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
)

// Output is the layer's result: [T, Hidden] bf16, or f32 partial sums where the weights are one
// rank's part (model.CheckpointOptions.Rank). Padding rows are undefined, as is all of it where a
// layer that drafts got no block (Chunk.Draft). With EngineOptions.LayerByLayer or Between the next
// layer overwrites it.
func (st *Step) Output(layer int) tensor.Tensor { return st.b.Out(layer) }

// TopK are the picks of the layer's indexer: [T, TopK] i32, compressed entries in ascending order,
// then -1. It is a zero tensor without EngineOptions.KeepTopK and for layers without an indexer.
func (st *Step) TopK(layer int) tensor.Tensor {
	if layer < 0 || layer >= len(st.e.layers) || st.e.layers[layer].Spec.Picks != model.PickOwn {
		return tensor.Tensor{}
	}
	return st.b.TopK(layer)
}
