package verify

import (
	"fmt"
	"maps"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/projection"
)

// FloorTokens is up to how many tokens products are timed beside launches that only read: with
// more they multiply longer than they wait for their weights.
const FloorTokens = 128

// WeightFormats are the formats that products are timed with, and the first three those of layers.
// The projections of the compressors and the indexer's weights of heads are bf16 in all of them, as
// in released checkpoints.
var WeightFormats = []string{"bf16", "fp8", "nvfp4", "q8_0", "q4_k"}

// TimedFormats are the WeightFormats by their names.
var TimedFormats = map[string]projection.Format{
	"bf16": projection.FormatBF16, "fp8": projection.FormatFP8, "nvfp4": projection.FormatNVFP4, "q8_0": projection.FormatQ8_0,
	"q4_k": projection.FormatQ4K,
}

// linearSizes returns the products that the options name, in all formats.
func linearSizes(o SizeOptions) (all []Size) {
	weights := o.Weights
	if weights == nil {
		weights = WeightFormats
	}
	for _, p := range o.Products {
		for _, w := range weights {
			if block := TimedFormats[w].BlockValues(); block > 0 && p.K%block != 0 {
				continue // rows of a small model are shorter than a block
			}
			for _, t := range o.pick(o.Batches, []int{1, 4, 16, 4096}, []int{1, 5}) {
				if t > 64 && w == "nvfp4" && o.Batches == nil {
					continue
				}
				all = append(all, p.size(w, t))
			}
		}
	}
	return all
}

func (p Product) size(weights string, t int) Size {
	rows := p.N * p.Groups
	is := TimedFormats[weights].Shapes(rows, p.K)
	bytes := int(is.Data.Bytes() + is.Scale.Bytes())
	return Size{
		Name:    fmt.Sprintf("matrix=%s/model=%s/weights=%s/tokens=%d", p.Matrix, p.Model, weights, t),
		Work:    Work{float64(bytes + 2*t*(p.Groups*p.K+rows)), 2 * float64(t) * float64(rows) * float64(p.K)},
		Touched: bytes, Floor: t <= FloorTokens,
		Make: func(rng *rand.Rand) Case {
			f := TimedFormats[weights]
			c := Case{Params: map[string]any{"tokens": t, "groups": p.Groups, "n": p.N, "k": p.K, "weights": int(f)},
				In: Arrays{"x": normalBF16(rng, 1, t, p.Groups, p.K)}}
			largeWeights(rng, c.In, f, rows, p.K)
			return c
		},
	}
}

// differentRows counts the rows of a large matrix that differ; the others repeat them. The prime
// keeps them from repeating at distances that a wrong index might have.
const differentRows = 131

// largeWeights makes a random matrix quickly.
func largeWeights(rng *rand.Rand, in Arrays, f projection.Format, rows, k int) {
	few := min(rows, differentRows)
	randomWeights(rng, linearShape{groups: 1, n: few, k: k}, f, in)
	for _, name := range []string{"w", "w_scale", "row_scale"} {
		switch a := in[name]; {
		case a.IsZero():
		case name == "w_scale" && f.ScaleRows() > 1: // scales of blocks of rows, and different
			a = vectors.New(a.Type, (rows+projection.ScaleBlock-1)/projection.ScaleBlock, a.Dim(1))
			for i := range a.Data {
				a.Data[i] = byte(113 + rng.UintN(2))
			}
			in[name] = a
		default:
			all := vectors.New(a.Type, append([]int{rows}, a.Shape[1:]...)...)
			repeat(all.Data, a.Data)
			in[name] = all
		}
	}
}

// sampleLinear takes rows of the first and of the last block of scales, for two tokens.
func sampleLinear(c Case) (all []Piece) {
	in := c.Input()
	groups, n := in.Int("groups"), in.Int("n")
	tokens := Some(2, in.Int("tokens"))
	total := groups * n
	for _, first := range []int{0, (total - 1) / projection.ScaleBlock * projection.ScaleBlock} {
		group := first / n
		rows := indices(first, min(24, (group+1)*n-first))
		p := Piece{Case: c, Out: map[string][][]int{"y": {tokens, rows}}}
		p.Case.Params = maps.Clone(c.Params)
		p.Case.In = Arrays{"x": Take(c.In["x"], [][]int{tokens, {group}}), "w": Take(c.In["w"], [][]int{rows})}
		p.Case.Params["tokens"], p.Case.Params["groups"], p.Case.Params["n"] = len(tokens), 1, len(rows)
		if a, ok := c.In["row_scale"]; ok {
			p.Case.In["row_scale"] = Take(a, [][]int{rows})
			p.Case.In["w_scale"] = Take(c.In["w_scale"], [][]int{rows})
		} else if a, ok := c.In["w_scale"]; ok {
			p.Case.In["w_scale"] = Take(a, [][]int{{first / projection.ScaleBlock}})
		}
		all = append(all, p)
	}
	return all
}
