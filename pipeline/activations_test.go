package pipeline_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// nearest rounds to a number with `bits` bits after the point, an exponent of at least `least` and
// a magnitude of at most `most`.
func nearest(x float64, bits, least int, most float64) float64 {
	unit := math.Ldexp(1, max(math.Ilogb(x), least)-bits)
	return max(min(math.RoundToEven(x/unit)*unit, most), -most)
}

// blocks changes every n neighbouring numbers; most is their largest magnitude.
func blocks(x []float64, n int, change func(v, most float64) float64) (y []float64) {
	for at := 0; at < len(x); at += n {
		most := 0.0
		for _, v := range x[at : at+n] {
			most = max(most, math.Abs(v))
		}
		for _, v := range x[at : at+n] {
			y = append(y, change(v, most))
		}
	}
	return y
}

// fewBits are the inputs of an engine with QuantiseActivations, written down from the definition of
// the formats: a power of two for every 128 E4M3 numbers; for every 16 E2M1 numbers an E4M3 one,
// times a factor of the checkpoint. Caches round as they always do, which decides later codes.
func fewBits(m *fakemodel.Model) formula.Inputs {
	factor := func(product string) float64 {
		t := m.Find(product + ".input_scale")
		if t == nil {
			return 0
		}
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data)))
	}
	bf16 := func(v, _ float64) float64 { return float64(numfmt.BF16Round(float32(v))) }
	fp8 := func(least float64) func(v, most float64) float64 {
		return func(v, most float64) float64 {
			scale := math.Exp2(math.Ceil(math.Log2(max(most, least) / 448)))
			return nearest(v/scale, 3, -6, 448) * scale
		}
	}
	return func(product string, x []float64) []float64 {
		if strings.HasSuffix(product, "cache") {
			x = blocks(x, 1, bf16)
			return append(blocks(x[:448], 64, fp8(1e-4)), x[448:]...)
		}
		if !strings.Contains(product, ".w") || strings.Contains(product, "compressor") || strings.HasSuffix(product, "weights_proj") {
			return x // of bf16 weights
		}
		x = blocks(x, 1, bf16)
		f := factor(product)
		if f == 0 {
			return blocks(x, 128, fp8(1e-10))
		}
		if stem, found := strings.CutSuffix(product, "wkv"); found {
			f = max(f, factor(stem+"wq_a"))
		} else if stem, found := strings.CutSuffix(product, "wq_a"); found {
			f = max(f, factor(stem+"wkv"))
		}
		return blocks(x, 16, func(v, most float64) float64 {
			scale := nearest(most/6/f, 3, -6, 448)
			if scale == 0 {
				return 0
			}
			return nearest(v/f/scale, 1, 0, 6) * scale * f
		})
	}
}

// TestEngineActivations demands that an engine with activations of few bits computes the formula
// with just these inputs of products, in steps and token by token, and that it is twice as far from
// the one without. It cannot be nearer: what bf16 rounds changes a few codes of the next product's
// input by a whole step, and these change more of the one after. TestActivations of package layer
// is exact.
func TestEngineActivations(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	const tokens, prefill = 140, 137
	c := fakemodel.Config(0, 4, 128)
	c.Hidden, c.ORank, c.TopK = 256, 128, 64 // all entries: near the last pick, a code of a query decides
	hidden := normalsOf(rand.New(rand.NewPCG(5, 7)), tokens*c.Hidden)
	for storage, bound := range map[fakemodel.Storage]float64{fakemodel.FP8: 1.5e-3, fakemodel.NVFP4: 1.5e-2} {
		t.Run(string(storage), func(t *testing.T) {
			m := fake(t, fakemodel.Options{Config: c, Storage: storage})
			cfg, layers := uploaded(t, dev, written(t, m))
			o := pipeline.EngineOptions{MaxTokens: tokens, MaxStep: 50, KeepTopK: true, QuantiseActivations: true}
			e := engine(t, dev, cfg, layers, o)
			got := division(t, e, cfg.Hidden, prefill, hidden)
			assert.Equal(t, []string{"hidden.quantise"}, e.Levels(1, 1)[0])
			far := checkFormulaOf(t, c, m.Values, fewBits(m), hidden, got, bound)
			for i, plain := range checkFormulaOf(t, c, m.Values, nil, hidden, got, 1) {
				assert.Less(t, 2*far[i], plain, "layer %d: from the formula with all inputs as they are", i)
			}
		})
	}
	m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.NVFP4})
	m.Remove("layers.1.attn.indexer.wq_b.input_scale")
	cfg, layers := uploaded(t, dev, written(t, m))
	o := pipeline.EngineOptions{MaxTokens: tokens, QuantiseActivations: true}
	_, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, o)
	var arg *vk.ArgumentError
	require.ErrorAs(t, err, &arg)
	assert.Equal(t, "Indexer.QB.Input", arg.Arg)
	assert.ErrorContains(t, err, "layers[1]")
	o.QuantiseActivations = false
	engine(t, dev, cfg, layers, o)
}
