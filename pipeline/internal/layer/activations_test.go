package layer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// quantisedModel has rows that are whole blocks of 128.
func quantisedModel() model.Config {
	c := fakemodel.Config(4)
	c.Hidden, c.QRank = 256, 384
	return c
}

// TestActivations runs a layer whose products take inputs with fewer bits and demands of each
// product that its codes are those of what is its input, and its outputs the products of just
// these. Hidden states of padding are NaN.
func TestActivations(t *testing.T) {
	dev := testkit.Device(t)
	for _, storage := range []fakemodel.Storage{fakemodel.FP8, fakemodel.FP8F32, fakemodel.NVFP4} {
		cfg, layers := weights(t, dev, fakemodel.Options{Config: quantisedModel(), Storage: storage})
		for _, tokens := range []int{1, 7, 37} {
			t.Run(fmt.Sprintf("%s/%d", storage, tokens), func(t *testing.T) {
				l, a := quantisedStep(t, dev, cfg, layers[0], tokens, tokens/4)
				valid := tokens - tokens/4
				x := quantisedLayer{l, a, valid}
				x.check(t, &l.qkv, "QKV", l.w.QKV, 1, a.Hidden, l.kernels.qkv)
				x.check(t, &l.idxQB, "Indexer.QB", l.w.Indexer.QB, 1, l.kernels.qr, l.kernels.indexer.q)
				x.check(t, &l.oa, "OA", l.w.OA, cfg.Groups, l.kernels.mla.o, l.kernels.output.z)
				x.check(t, &l.ob, "OB", l.w.OB, 1, l.kernels.output.z, a.Out)
				testkit.Do(t, dev, func(rec *vk.Recorder) error { return l.qb.record(rec, l.kernels.qr, l.kernels.mla.q) }) // it was normed in place
				x.check(t, &l.qb, "QB", l.w.QB, 1, l.kernels.qr, l.kernels.mla.q)
				assert.True(t, l.gates.coded == nil && l.idxWeights.coded == nil, "bf16 weights stay with bf16")
				for _, v := range numfmt.BF16DecodeSlice(nil, testkit.Download[uint16](t, a.Out))[:valid*cfg.Hidden] {
					require.False(t, v != v, "an output is NaN")
				}
			})
		}
	}
}

// quantisedCaches are caches with room for the tokens of a step.
func quantisedCaches(t *testing.T, dev *vk.Device, tokens int) (c Caches) {
	t.Helper()
	c.Window.Layout = must[cache.Layout](t)(cache.NewLayout(64, 0))
	c.Compressed.Layout = must[cache.Layout](t)(cache.NewLayout(16, 0))
	c.State.Layout = must[cache.StateLayout](t)(cache.NewStateLayout(model.C4A.Compression(headDim), 8, 0))
	c.IndexState.Layout = must[cache.StateLayout](t)(cache.NewStateLayout(model.C4A.Compression(indexDim), 4, 0))
	c.Keys.Layout = must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(cache.IndexKeyFP8, 16, 0))
	for pool, stride := range map[*tensor.Tensor]int{&c.Window.Pool: c.Window.Layout.Stride, &c.Compressed.Pool: c.Compressed.Layout.Stride,
		&c.State.Pool: c.State.Layout.Stride, &c.IndexState.Pool: c.IndexState.Layout.Stride, &c.Keys.Pool: c.Keys.Layout.Stride} {
		*pool = testkit.Upload(t, dev, tensor.U8, slices.Repeat([]byte{0xFF}, tokens*stride), tokens, stride)
	}
	return c
}

// quantisedStep runs the first `tokens` tokens of a request and `padding` rows after them.
func quantisedStep(t *testing.T, dev *vk.Device, cfg *model.Config, w *model.DeviceLayer, tokens, padding int) (*Layer, Args) {
	t.Helper()
	caches := quantisedCaches(t, dev, tokens)
	k := must[*Kernels](t)(NewKernels(dev, Config{Spec: model.C4A, Model: cfg, Tokens: tokens, MaxLen: tokens, Caches: caches,
		Quantise: true, Out: tensor.BF16, Scratch: &memory.Scratch{}}))
	t.Cleanup(func() { assert.NoError(t, k.Close()) })
	l := must[*Layer](t)(k.NewLayer(t.Context(), w))
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	k.cfg.Scratch.Keep() // what products took and gave is compared
	place(t, dev, k)
	step := firstStep(t, dev, tokens, tokens-padding)
	hidden := numfmt.BF16EncodeSlice(nil, randomHidden(tokens*cfg.Hidden))
	for i := (tokens - padding) * cfg.Hidden; i < len(hidden); i++ {
		hidden[i] = 0x7FC0
	}
	a := Args{Caches: caches, Out: testkit.Upload(t, dev, tensor.BF16, slices.Repeat([]uint16{0xFFFF}, tokens*cfg.Hidden), tokens, cfg.Hidden),
		Hidden: testkit.Upload(t, dev, tensor.BF16, hidden, tokens, cfg.Hidden),
		CosSin: testkit.Upload(t, dev, tensor.F32, cosSin(tokens), tokens, cache.RopeDim)}
	testkit.Do(t, dev, func(rec *vk.Recorder) error {
		if err := k.RecordStep(rec, step); err != nil {
			return err
		}
		return l.Record(rec, step, a)
	})
	return l, a
}

type quantisedLayer struct {
	*Layer
	a     Args
	valid int // tokens
}

// check looks at a product of m with `from`; only its first tokens count.
func (x *quantisedLayer) check(t *testing.T, p *linear, name string, m model.DeviceMatrix, groups int, from, to tensor.Tensor) {
	t.Helper()
	tokens, k := x.kernels.cfg.Tokens, m.K
	require.NotNil(t, p.coded, "%s: bf16", name)
	h := projection.LinearHost{T: tokens, Groups: groups, N: m.N / groups, K: k,
		Weights: m.Format, Activations: projection.ActivationFP8,
		X: testkit.Download[byte](t, p.coded.codes), Data: testkit.Download[byte](t, m.Data), ScalePitch: projection.PaddedTokens(tokens)}
	if m.Format == projection.FormatFP8F32 {
		for _, v := range testkit.Download[float32](t, m.Scales) {
			h.Scale = binary.LittleEndian.AppendUint32(h.Scale, math.Float32bits(v))
		}
	} else {
		h.Scale = testkit.Download[byte](t, m.Scales)
	}
	codes, scales := make([]byte, len(h.X)), make([]byte, tokens*groups*k/128)
	if m.Format == projection.FormatNVFP4 {
		h.Activations, h.XScale = projection.ActivationNVFP4, testkit.Download[byte](t, p.coded.scales)
		h.RowScale = slices.Repeat([]float32{m.Global * m.Input}, m.N)
		scales = make([]byte, len(h.XScale))
	}
	fp8 := slices.Contains(m.Format.Activations(), projection.ActivationFP8)
	turned := name == "OA" && fp8
	if turned {
		positions := make([]int32, tokens)
		for i := range x.valid {
			positions[i] = int32(i)
		}
		require.NoError(t, projection.InverseRopeQuantRef(testkit.Download[uint16](t, from), groups, k/headDim, positions,
			testkit.Download[float32](t, x.a.CosSin), codes, scales))
	} else {
		require.NoError(t, projection.QuantiseRef(h.Activations, testkit.Download[uint16](t, from), groups, k, m.Input, codes, scales))
	}
	if fp8 {
		for _, v := range testkit.Download[float32](t, p.coded.scales) {
			h.XScale = binary.LittleEndian.AppendUint32(h.XScale, math.Float32bits(v))
		}
	}
	row, differ := len(codes)/tokens/groups, 0
	for g := range groups {
		for at := range x.valid * row {
			if codes[g*tokens*row+at] != h.X[g*tokens*row+at] {
				differ++
			}
		}
	}
	if turned { // sums of turned numbers are rounded as the device likes
		assert.LessOrEqual(t, 200*differ, len(codes)+200, "%s: codes differ", name)
	} else {
		assert.Zero(t, differ, "%s: codes differ", name)
	}
	if m.Format == projection.FormatNVFP4 {
		assert.True(t, bytes.Equal(scales[:x.valid*k/16], h.XScale[:x.valid*k/16]), "%s: scales differ", name)
	}
	want := make([]float64, tokens*m.N)
	require.NoError(t, projection.LinearRef(h, want))
	want = want[:x.valid*m.N]
	var squares float64
	for _, v := range want {
		squares += v * v
	}
	rms := math.Sqrt(squares / float64(len(want)))
	require.Positive(t, rms, name)
	for i, got := range numfmt.BF16DecodeSlice(nil, testkit.Download[uint16](t, to))[:len(want)] {
		if most := math.Abs(want[i])/128 + rms/1000; !(math.Abs(want[i]-float64(got)) <= most) {
			t.Fatalf("%s: output %d of %d: got %g, want %g within %g", name, i, m.N, got, want[i], most)
		}
	}
}

// TestActivationsNeedFactors demands a typed error for NVFP4 weights without a factor of their
// inputs, or with one that is none.
func TestActivationsNeedFactors(t *testing.T) {
	dev := testkit.Device(t)
	c := quantisedModel()
	c.Layers = model.V4Layers(0)
	cfg, layers := weights(t, dev, fakemodel.Options{Config: c, Storage: fakemodel.NVFP4})
	kind := windowConfig(t, cfg, 1)
	kind.Quantise = true
	k := must[*Kernels](t)(NewKernels(dev, kind))
	defer k.Close()
	w := *layers[0]
	for _, factor := range []float32{0, -1, float32(math.NaN()), float32(math.Inf(1)), 1e-30} {
		w.OB.Input = factor
		_, err := k.NewLayer(t.Context(), &w)
		var arg *vk.ArgumentError
		if assert.ErrorAs(t, err, &arg, "%g", factor) {
			assert.Equal(t, "OB.Input", arg.Arg)
		}
	}
	kind.Quantise = false
	k = must[*Kernels](t)(NewKernels(dev, kind))
	defer k.Close()
	l := must[*Layer](t)(k.NewLayer(t.Context(), &w))
	assert.NoError(t, l.Close(), "bf16 activations need none")
}

// TestActivationsOfLatents demands that products of matrices of 8 bits take inputs of 8 bits, but
// for the one of latents, which nothing gives with fewer bits.
func TestActivationsOfLatents(t *testing.T) {
	c := model.FlashV41Config()
	k := &Kernels{cfg: Config{Quantise: true, Model: &c}, heads: c.Heads, groups: c.Groups}
	fp8 := model.DeviceMatrix{Format: projection.FormatFP8x32}
	w := &model.DeviceLayer{QB: fp8, Indexer: &model.DeviceIndexer{QB: fp8, Keys: &model.DeviceKeys{K: fp8}}}
	for _, u := range (&Layer{kernels: k, w: w}).uses() {
		few := u.x != projection.ActivationBF16
		assert.Equal(t, u.m.Format == projection.FormatFP8x32 && u.from != fromLatents, few, u.name)
		assert.True(t, !few || u.from.use() != 0, "%s: codes of %d are never in use", u.name, u.from)
	}
}
