package pipelines

import (
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// InspectLayer is Inspect with listings for all that a C4A layer of V4-Flash launches for 1 token
// and for 4096, each operation by itself: no product norms, and none joins what is before it.
//
// Errors: as Inspect's.
func InspectLayer(a *vk.Adapter, profile string) ([]Choice, error) {
	open, inspect := inspector(a, profile, true)
	return chooseOf(layer(model.FlashConfig()), open, inspect)
}

func layer(c model.Config) (list []choice) {
	known := map[string]choice{}
	for _, x := range choices(c) {
		known[x.op] = x
	}
	for _, tokens := range []int{1, 4096} {
		attends := map[int]string{1: "decode", 4096: "prefill"}[tokens]
		for _, op := range []string{"product wkv_gate", "q and kv norms", "compressor c4a", "compressor keys", "selection", "product wq_b",
			"q insert", attends, "inverse rope", "product wo_a"} {
			list = append(list, choice{op, []int{tokens}, known[op].ask})
		}
		for _, x := range layerProducts(c) {
			x.tokens = []int{tokens}
			list = append(list, x.choice())
		}
	}
	return list
}

// layerProducts are the products of a C4A layer that products leaves out.
func layerProducts(c model.Config) []product {
	fp8, bf16 := projection.FormatFP8, projection.FormatBF16
	return []product{
		{"product wq_a|wkv", nil, projection.LinearConfig{N: c.QRank + model.HeadDim, K: c.Hidden, Weights: fp8, Out: tensor.BF16}},
		{"product wo_b", nil, projection.LinearConfig{N: c.Hidden, K: c.Groups * c.ORank, Weights: fp8, Out: tensor.BF16}},
		{"product indexer wq_b", nil,
			projection.LinearConfig{N: c.IndexHeads * model.IndexDim, K: c.QRank, Weights: fp8, Out: tensor.BF16}},
		{"product indexer wkv_gate", nil, projection.LinearConfig{N: 4 * model.IndexDim, K: c.Hidden, Weights: bf16, Out: tensor.F32}},
		{"product weights_proj", nil, projection.LinearConfig{N: c.IndexHeads, K: c.Hidden, Weights: bf16, Out: tensor.BF16}},
	}
}

// LayerText sums estimates of the choices of a layer for the GPU of the adapter's chip.
func LayerText(a *vk.Adapter, layer []Choice) string {
	var s strings.Builder
	for _, g := range GPUs {
		if !g.is(a) {
			continue
		}
		var tokens []int
		least, most := map[int]float64{}, map[int]float64{}
		for i := range layer {
			c := &layer[i]
			if _, ok := least[c.Tokens]; !ok {
				tokens = append(tokens, c.Tokens)
			}
			for j := range c.Kernels {
				if e, ok := g.estimate(c, &c.Kernels[j]); ok {
					from, to := g.micros(e)
					least[c.Tokens], most[c.Tokens] = least[c.Tokens]+from, most[c.Tokens]+to
				}
			}
		}
		for _, t := range tokens {
			fmt.Fprintf(&s, "a C4A layer of %d tokens: %.0f to %.0f us\n", t, least[t], most[t])
		}
	}
	return s.String()
}
