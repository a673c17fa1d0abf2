package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Models are the names of the models that layers and steps can be timed of. The small ones have
// everything that the others have, for a look at a slow device.
var Models = []string{"flash", "pro", "v41-flash", "small", "v41-small"}

// drafting has the number of layers that draft, by model. V4's are those of its draft block.
var drafting = map[string]int{"flash": 3, "pro": 3, "v41-flash": 3, "small": 1, "v41-small": 1}

// mostDrafted is the largest number of drafted tokens of a sequence that a step verifies.
const mostDrafted = 5

// drafted divides the name of a model in the suites layer and step. MODEL+N is the model with its
// layers that draft, in steps that verify N drafted tokens of each sequence after its newest one.
// n is -1 where a name says nothing of drafts.
func drafted(name string) (model string, n int) {
	for n := range mostDrafted + 1 {
		if model, ok := strings.CutSuffix(name, fmt.Sprint("+", n)); ok {
			return model, n
		}
	}
	return name, -1
}

// undrafted returns the names of models without what they say of drafts.
func undrafted(names []string) (models []string) {
	for _, name := range names {
		model, _ := drafted(name)
		models = append(models, model)
	}
	return models
}

// The models that are timed by default: on a GPU, on a GPU by the suite linear, and on a slow
// device.
var (
	usualModels   = []string{"flash"}
	productModels = []string{"flash", "pro"}
	slowModels    = []string{"small"}
)

// modelConfig returns the configuration of a model.
func modelConfig(name string) model.Config {
	if of, n := drafted(name); n >= 0 {
		return modelConfig(of).WithDrafts(drafting[of])
	}
	switch name {
	case "pro":
		return model.ProConfig()
	case "v41-flash":
		return model.FlashV41Config()
	case "small":
		c := narrow(model.FlashConfig())
		c.Layers = model.V4Layers(0, 4, 128)
		return c
	case "v41-small":
		c := narrow(model.FlashV41Config())
		c.CandidateBlocks = 16
		c.Layers = model.V41Layers(model.Sources{Entries: []int{1, 3}, Picks: []int{1, 3, 5}, Candidates: 3}, 0, 2, 2, 1, 1, 1, 1)
		return c
	}
	return model.FlashConfig()
}

// narrow makes the layers of a model small.
func narrow(c model.Config) model.Config {
	c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 256, 8, 128, 64, 2, 8, 64
	return c
}

// Kinds are the kinds of layers of all models.
var Kinds = KindsOf(append(slices.Clone(Models), "v41-flash+0")...)

// KindsOf lists the kinds of layers of some models, each once, in the order in which they come.
func KindsOf(models ...string) (kinds []string) {
	for _, name := range models {
		for _, l := range modelConfig(name).Layers {
			if k := kindOf(l.LayerSpec); !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

// kindOf returns the name of a kind of layer.
func kindOf(s model.LayerSpec) string { return strings.ToLower(s.Name) }

// layerOf returns the first layer of a kind, or -1.
func layerOf(c model.Config, kind string) int {
	return slices.IndexFunc(c.Layers, func(l model.Layer) bool { return kindOf(l.LayerSpec) == kind })
}

// firstOfKinds returns the first layer of each kind, and those that they take from, in order.
func firstOfKinds(c model.Config) (list []int) {
	for i, l := range c.Layers {
		if layerOf(c, kindOf(l.LayerSpec)) == i {
			list = append(list, append(sourcesOf(c, i), i)...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// sourcesOf returns the layers that a layer takes from, and those that these take from, in order.
func sourcesOf(c model.Config, layer int) (list []int) {
	for _, from := range c.Layers[layer].From() {
		if from != layer {
			list = append(list, append(sourcesOf(c, from), from)...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// onlyLayers returns a model of these layers of another, those among them that others take from.
func onlyLayers(c model.Config, layers ...int) model.Config {
	var list []model.Layer
	for i, l := range layers {
		x := c.Layers[l]
		for _, from := range []*int{&x.EntriesOf, &x.PicksOf, &x.CandidatesOf} {
			if *from == l {
				*from = i
			} else {
				*from = slices.Index(layers, *from)
			}
		}
		list = append(list, x)
	}
	c.Layers = list
	return c
}

// WeightFormats are the formats that products can be timed with, layerFormats those of layers.
var (
	WeightFormats = verify.WeightFormats
	layerFormats  = WeightFormats[:3]
)

// productsOf returns the matrix products of a model's layers, by the names of their weights.
func productsOf(name string) []verify.Product {
	c := modelConfig(name)
	return []verify.Product{
		{Model: name, Matrix: "wq_a_wkv", N: c.QRank + 512, K: c.Hidden, Groups: 1},
		{Model: name, Matrix: "wq_b", N: c.Heads * 512, K: c.QRank, Groups: 1},
		{Model: name, Matrix: "wo_a", N: c.ORank, K: c.HeadsPerGroup() * 512, Groups: c.Groups},
		{Model: name, Matrix: "wo_b", N: c.Hidden, K: c.Groups * c.ORank, Groups: 1},
	}
}
