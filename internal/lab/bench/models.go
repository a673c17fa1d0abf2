package bench

import (
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Models are the names of the models that layers and steps can be timed of; small is
// one with everything that the others have, for a look at a slow device.
var Models = []string{"flash", "pro", "small"}

// modelConfig is the configuration of a model.
func modelConfig(name string) model.Config {
	switch name {
	case "pro":
		return model.ProConfig()
	case "small":
		c := model.FlashConfig()
		c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 256, 8, 128, 64, 2, 8, 64
		c.Layers = model.V4Layers(0, 4, 128)
		return c
	}
	return model.FlashConfig()
}

// Kinds are the kinds of layers, by what they attend.
var Kinds = []string{kindOf(model.Window), kindOf(model.C4A), kindOf(model.C128A)}

// kindOf is the name of a kind of layer.
func kindOf(s model.LayerSpec) string { return strings.ToLower(s.Name) }

// layerOf is the first layer of a kind, or -1.
func layerOf(c model.Config, kind string) int {
	return slices.IndexFunc(c.Layers, func(l model.Layer) bool { return kindOf(l.LayerSpec) == kind })
}

// onlyLayers is a model of these layers of another.
func onlyLayers(c model.Config, layers ...int) model.Config {
	var list []model.Layer
	for i, l := range layers {
		x := c.Layers[l]
		x.EntriesOf, x.PicksOf = i, i
		list = append(list, x)
	}
	c.Layers = list
	return c
}

// WeightFormats are the formats that layers can be timed with.
var WeightFormats = verify.WeightFormats

// formatNamed is the format of a name of WeightFormats.
func formatNamed(weights string) model.Format {
	return map[string]model.Format{"bf16": model.FormatBF16, "fp8": model.FormatFP8, "nvfp4": model.FormatNVFP4}[weights]
}

// productsOf are the matrix products of a model's layers, by the names of their weights.
func productsOf(name string) []verify.Product {
	c := modelConfig(name)
	return []verify.Product{
		{Model: name, Matrix: "wq_a_wkv", N: c.QRank + 512, K: c.Hidden, Groups: 1},
		{Model: name, Matrix: "wq_b", N: c.Heads * 512, K: c.QRank, Groups: 1},
		{Model: name, Matrix: "wo_a", N: c.ORank, K: c.HeadsPerGroup() * 512, Groups: c.Groups},
		{Model: name, Matrix: "wo_b", N: c.Hidden, K: c.Groups * c.ORank, Groups: 1},
	}
}
