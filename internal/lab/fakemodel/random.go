package fakemodel

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// RandomV41 makes a checkpoint of DeepSeek-V4.1 in the released form, of random sizes and with
// random legal lists of sources. Nothing in it is neutral: blocks of weights differ in size by a
// factor of up to 64, norms and sinks are far from 1 and 0.
func RandomV41(rng *rand.Rand) (model.Config, *Model) {
	c := randomSizes(rng)
	if c.Layers = randomLayers(rng); model.SourcesOf(c.Layers).Candidates < 0 {
		c.CandidateBlocks, c.CandidateBlock = 0, 0
	}
	for range rng.IntN(3) {
		c = c.WithDrafts(1)
	}
	prefixes := []string{"", "", "model.", "model.language_model."}
	m := New(Options{Config: c, Storage: FP8, Seed: rng.Uint64(), Prefix: prefixes[rng.IntN(len(prefixes))],
		Weights: func(name string, shape []int) []float32 { return uneven(rng, name, shape) }})
	m.halve("kv_norm.weight")
	return c, m
}

// RandomDSpark makes a checkpoint of DeepSeek-V4 with a draft block, of random sizes and as uneven
// as RandomV41's, in the released form: num_nextn_predict_layers is 1 whatever the block's layers.
func RandomDSpark(rng *rand.Rand) (model.Config, *Model) {
	c, s := model.FlashConfig(), randomSizes(rng)
	c.Hidden, c.QRank, c.ORank = s.Hidden&^15, s.QRank&^15, s.ORank&^15 // as products with blocks of 128 demand
	c.Heads, c.Groups, c.Window = s.Heads, s.Groups, s.Window
	c.IndexHeads, c.TopK, c.MaxPositions, c.Main, c.Compress = s.IndexHeads, s.TopK, s.MaxPositions, s.Main, s.Compress
	n := 2 + rng.IntN(3)
	c.Layers, c.DraftBlock = model.V4Layers([]int{0, 4, 128, 0}[:n]...), oneOf(rng, 5, 5, 1+rng.IntN(9))
	c.DraftTargets = []int{n - 2, n - 1}
	c = c.WithDrafts(1 + rng.IntN(3))
	m := New(Options{Config: c, Storage: FP8, Seed: rng.Uint64(), Prefix: oneOf(rng, "", "", "model."),
		Weights: func(name string, shape []int) []float32 { return uneven(rng, name, shape) }})
	return c, m
}

func oneOf[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

func randomSizes(rng *rand.Rand) model.Config {
	c := model.FlashV41Config()
	c.Hidden, c.QRank, c.ORank = 32*(2+rng.IntN(10)), 32*(1+rng.IntN(5)), 32*(1+rng.IntN(3))
	if rng.IntN(4) == 0 { // no multiples of a block
		c.Hidden, c.QRank, c.ORank = c.Hidden+8*rng.IntN(4), c.QRank+8*rng.IntN(4), c.ORank+8*rng.IntN(4)
	}
	c.Heads = oneOf(rng, 8, 8, 8, 16, 16, 32, 64, 2, 4, 12, 24)
	c.Groups = oneOf(rng, 1, 2, 2)
	if c.Heads%4 == 0 && rng.IntN(4) == 0 {
		c.Groups = 4
	}
	c.IndexHeads = oneOf(rng, 8, 8, 16, 32, 64, 4, 12, 24, 1)
	c.TopK = oneOf(rng, 8+rng.IntN(48), 8+rng.IntN(48), 8+rng.IntN(48), 1+rng.IntN(8))
	c.CandidateBlock = oneOf(rng, 8, 8, 1, 2, 4, 16, 32, 64)
	if c.CandidateBlocks = (c.TopK+c.CandidateBlock-2)/c.CandidateBlock + 1 + rng.IntN(3); rng.IntN(6) == 0 {
		c.CandidateBlocks = 1 + rng.IntN(3) // candidates may be fewer than what is picked
	}
	c.Window = oneOf(rng, 128, 128, 128, 1+rng.IntN(16), 16+rng.IntN(150))
	c.Eps = oneOf[float32](rng, 1e-20, 1e-20, 1e-20, 1e-12, 1e-6)
	c.Main.Theta = oneOf(rng, 10000.0, 10000, 500, 2e6)
	c.Compress = model.Rope{Theta: oneOf(rng, 160000.0, 160000, 40000, 1e7), Factor: oneOf(rng, 16.0, 16, 4, 2.5, 40),
		BetaFast: oneOf(rng, 32.0, 32, 8), BetaSlow: oneOf(rng, 1.0, 1, 2), Original: oneOf(rng, 65536, 65536, 4096, 64, 100, 3)}
	c.MaxPositions = oneOf(rng, 1<<20, 4096)
	return c
}

// randomLayers are layers of random lists of sources: windows first and now and then, groups of
// ratio 2, groups of ratio 1, and a layer that makes candidates or none.
func randomLayers(rng *rand.Rand) []model.Layer {
	ratios, s := make([]int, rng.IntN(3)), model.Sources{Candidates: -1}
	var ones []int // layers of ratio 1 with an indexer, after which there is no other ratio
	for group := range 1 + rng.IntN(3) {
		ratio := 1 + rng.IntN(2)
		if group > 0 && rng.IntN(3) > 0 {
			ratio = 1
		}
		if ratio == 2 {
			ones = nil
		}
		for i := range 1 + rng.IntN(4) {
			n := len(ratios)
			if i == 0 {
				s.Entries = append(s.Entries, n)
			}
			if i == 0 || rng.IntN(2) == 0 {
				s.Picks = append(s.Picks, n)
				if ratio == 1 {
					ones = append(ones, n)
				}
			}
			if ratios = append(ratios, ratio); rng.IntN(6) == 0 {
				ratios = append(ratios, 0)
			}
		}
	}
	if len(ones) > 0 && rng.IntN(6) > 0 {
		s.Candidates = ones[rng.IntN(max(1, len(ones)-1))]
	}
	return model.V41Layers(s, ratios...)
}

// uneven gives values of a tensor, nil for the usual ones.
func uneven(rng *rand.Rand, name string, shape []int) []float32 {
	n := 1
	for _, d := range shape {
		n *= d
	}
	v := make([]float32, n)
	switch {
	case strings.HasSuffix(name, "norm.weight"): // what becomes codes may be below the least scale
		size := oneOf(rng, 0.0, 0, 0, 0, -6, -13, 1)
		for i := range v {
			v[i] = numfmt.BF16Round(float32(math.Exp2(size+rng.NormFloat64()/2)) * float32(1-2*(i%7/6)))
		}
	case strings.HasSuffix(name, "attn_sink"):
		for i := range v {
			v[i] = float32(2 * rng.NormFloat64())
		}
	default:
		k := shape[len(shape)-1]
		wide := (k + 31) / 32
		sizes := make([]float64, (n/k+31)/32*wide)
		for i := range sizes {
			sizes[i] = math.Exp2(6*rng.Float64()-3) / math.Sqrt(float64(k))
		}
		for i := range v {
			v[i] = float32(rng.NormFloat64() * sizes[i/k/32*wide+i%k/32])
		}
	}
	return v
}

// halve stores tensors of a name as bf16, whose values are such numbers.
func (m *Model) halve(name string) {
	for _, t := range m.Tensors {
		if !strings.HasSuffix(t.Name, name) || t.DType != safetensors.F32 {
			continue
		}
		var data []byte
		for x := range slices.Chunk(t.Data, 4) {
			data = append(data, x[2:]...)
		}
		t.DType, t.Data = safetensors.BF16, data
	}
}

// RandomHidden are hidden states of T tokens, bf16 numbers. Tokens and channels differ in size, and
// one token in 32 is 2^-13 as large as the others, one in 64 is zeros.
func RandomHidden(rng *rand.Rand, tokens, width int) []float32 {
	sizes := make([]float64, width)
	for i := range sizes {
		sizes[i] = math.Exp2(rng.NormFloat64())
	}
	var hidden []float32
	for range tokens {
		size := math.Exp2(rng.NormFloat64() / 2)
		switch rng.IntN(64) {
		case 0, 1:
			size *= 0x1p-13
		case 2:
			size = 0
		}
		for i := range width {
			hidden = append(hidden, numfmt.BF16Round(float32(size*sizes[i]*rng.NormFloat64())))
		}
	}
	return hidden
}
