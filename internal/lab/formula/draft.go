package formula

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
)

// Draft computes a layer of a draft block of DeepSeek-V4 for a block of hidden states after those
// of its context, [T, Hidden] each, and returns [T of the block][Hidden]. Keys of the context are
// of what the model made of its tokens (see States). Every token of the block attends the window
// that ends with the context, and the whole block.
//
// Source: DSparkAttention, get_dspark_topk_idxs in DeepSeek-V4-Flash-DSpark's inference/model.py.
func Draft(cfg model.Config, layer int, values map[string][]float32, in Inputs, context, block []float32) [][]float64 {
	of := func(hidden []float32) *formula {
		f := newFormula(cfg, layer, values, in, hidden)
		f.stem = fmt.Sprintf("mtp.%d.attn.", layer-slices.IndexFunc(cfg.Layers, func(l model.Layer) bool { return l.Draft }))
		return f
	}
	past, f := of(context), of(block)
	n := len(past.rows)
	rows := slices.Concat(past.window(0)[max(n-cfg.Window, 0):], f.window(n))
	return f.outputs(n, func(int) [][]float64 { return rows })
}

// States returns what all layers of a draft block get of the tokens of their context, [T][Hidden]:
// the norm of the projection of states one after another, [T][Hidden] each. In DeepSeek-V4 they are
// the states after the layers that dspark_target_layer_ids names, each the mean of its streams.
//
// Source: Transformer.forward and DSparkBlock.forward_embed in inference/model.py.
func States(eps float32, project, norm []float32, states ...[][]float64) (main [][]float64) {
	for t := range states[0] {
		var x []float64
		for _, s := range states {
			x = append(x, s[t]...)
		}
		var y []float64
		for row := range slices.Chunk(project, len(x)) {
			y = append(y, dot(widened(row), x))
		}
		f := formula{cfg: model.Config{Eps: eps}}
		main = append(main, f.norm(y, widened(norm)))
	}
	return main
}

func widened(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
