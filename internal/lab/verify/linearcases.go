package verify

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
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

func scaleBlocks(n int) int { return (n + projection.ScaleBlock - 1) / projection.ScaleBlock }

// largeWeights makes a matrix whose outputs are about as large as its inputs.
func largeWeights(rng *rand.Rand, in Arrays, f projection.Format, rows, k int) {
	size := 1 / math.Sqrt(float64(k))
	pattern := make([]byte, distinct)
	switch f {
	case projection.FormatBF16:
		in["w"] = normalBF16(rng, size, rows, k)
		return
	case projection.FormatFP8:
		const deviation = 96
		for i := range pattern {
			pattern[i] = numfmt.E4M3Encode(float32(rng.NormFloat64() * deviation))
		}
		in["w"], in["w_scale"] = vectors.New(vectors.U8, rows, k), vectors.New(vectors.U8, scaleBlocks(rows), scaleBlocks(k))
		for i := range in["w_scale"].Data { // about the scale, and different
			in["w_scale"].Data[i] = byte(127 + int(math.Round(math.Log2(size/deviation))) + i%2)
		}
	case projection.FormatQ8_0:
		const deviation = 111 // of the codes, times scales of 1 to 2
		for i := range pattern {
			pattern[i] = byte(rng.Uint32())
		}
		in["w"], in["w_scale"] = vectors.New(vectors.U8, rows, k), vectors.New(vectors.U16, rows, k/32)
		for i := range in["w_scale"].Data {
			if in["w_scale"].Data[i] = byte(rng.Uint32()); i%2 == 1 {
				in["w_scale"].Data[i] = 0x3C | in["w_scale"].Data[i]&3
			}
		}
		in["row_scale"] = vectors.FromF32(slices.Repeat([]float32{float32(size / deviation)}, rows), rows)
	case projection.FormatQ4K:
		const deviation = 222 // of codes 0 to 15, less 7.5, times scales of 32 to 63
		for i := range pattern {
			pattern[i] = byte(rng.Uint32())
		}
		in["w"], in["w_scale"] = vectors.New(vectors.U8, rows, k/2), vectors.New(vectors.U32, rows, k/64)
		for words := in["w_scale"].Data; len(words) > 0; words = words[16:] {
			copy(words, []byte{0, 0x3C, 0x80, 0x47}) // f16: 1, and 7.5
			for i := range 8 {
				words[4+i] = 0x11 * byte(rng.UintN(16))
			}
			for i := range 4 {
				words[12+i] = [2]byte{0xAA, 0xFF}[rng.UintN(2)]
			}
		}
		in["row_scale"] = vectors.FromF32(slices.Repeat([]float32{float32(size / deviation)}, rows), rows)
	default:
		const deviation = 3.1 // of the codes
		for i := range pattern {
			pattern[i] = byte(rng.Uint32())
		}
		in["w"], in["w_scale"] = vectors.New(vectors.U8, rows, k/2), vectors.New(vectors.U8, rows, k/16)
		for i := range in["w_scale"].Data { // 0.5 to 2
			in["w_scale"].Data[i] = byte(0x30 + rng.UintN(16))
		}
		scales := make([]float32, rows)
		for i := range scales {
			scales[i] = float32(size / deviation)
		}
		in["row_scale"] = vectors.FromF32(scales, rows)
	}
	repeat(in["w"].Data, pattern)
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
