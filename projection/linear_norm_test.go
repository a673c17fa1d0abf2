package projection_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A layer that norms its outputs gives those, and the bits of QKVNorm for them, launch after
// launch, where it says that it does. The kernel for 13 tokens is that of a small model's
// layers, with its rank and eps: tests of engines compile it as well.
func TestLinearNorm(t *testing.T) {
	dev := testkit.Device(t)
	ran := false
	for _, x := range []struct {
		format       projection.Format
		rank, tokens int
		norm         tensor.DType
		eps          float32
		fewBits      bool // activations of FP8
	}{
		{projection.FormatNVFP4, 1536, 1, tensor.BF16, 1e-3, false}, {projection.FormatFP8, 608, 2, tensor.F32, 1e-3, false},
		{projection.FormatBF16, 1536, 3, tensor.BF16, 1e-3, false}, {projection.FormatFP8F32, 608, 5, tensor.F32, 1e-3, false},
		{projection.FormatFP8, 128, 13, tensor.BF16, 1e-6, false}, {projection.FormatNVFP4, 48, 7, tensor.F32, 1e-3, false},
		{projection.FormatFP8, 128, 2, tensor.BF16, 1e-6, true}, {projection.FormatFP8F32, 608, 13, tensor.F32, 1e-3, true},
	} {
		h := randomHost(rand.New(rand.NewPCG(6, uint64(x.tokens))), x.format, x.tokens, 1, x.rank+40, 128)
		if x.fewBits {
			h = fewBits(t, h)
		}
		t.Run(fmt.Sprintf("%v/rank%d/t%d/%v/x%v", x.format, x.rank, x.tokens, x.norm, h.Activations), func(t *testing.T) {
			eachLinear(t, dev, func(t *testing.T, variant string) {
				ran = linearNorm(t, dev, h, x.rank, x.norm, x.eps, variant) || ran
			})
		})
	}
	if !ran {
		t.Skip("no layer norms its outputs on this device")
	}
}

// fewBits is h with activations of FP8.
func fewBits(t *testing.T, h projection.LinearHost) projection.LinearHost {
	x := make([]uint16, len(h.X)/2)
	_, err := binary.Decode(h.X, binary.LittleEndian, x)
	require.NoError(t, err)
	codes, scales := make([]byte, len(x)), make([]byte, len(x)/projection.ScaleBlock)
	require.NoError(t, projection.QuantiseRef(projection.ActivationFP8, x, h.Groups, h.K, 0, codes, scales))
	h.Activations, h.X, h.ScalePitch = projection.ActivationFP8, codes, h.T
	for _, s := range scales {
		h.XScale = binary.LittleEndian.AppendUint32(h.XScale, uint32(s)<<23)
	}
	return h
}

func linearNorm(t *testing.T, dev *vk.Device, h projection.LinearHost, rank int, norm tensor.DType, eps float32, variant string) bool {
	n, tokens, rng := h.N, h.T, rand.New(rand.NewPCG(6, 7))
	cfg := linearConfig(h, variant)
	cfg.MaxTokens, cfg.Out, cfg.Norm, cfg.NormColumns, cfg.NormEps = tokens, tensor.BF16, norm, rank, eps
	op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
	if !op.Norms(tokens) {
		return false
	}
	after := must[*projection.QKVNorm](t)(projection.NewQKVNorm(dev, projection.QKVNormConfig{Rank: rank, Eps: eps}))
	q := normArgs(t, dev, rank, tokens)
	if norm == tensor.F32 {
		w := make([]float32, rank)
		for i := range w {
			w[i] = float32(rng.NormFloat64())
		}
		q.QRWeight = testkit.Upload(t, dev, tensor.F32, w, rank)
	} else {
		testkit.Put(t, q.QRWeight, normal(rng, rank))
	}
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	one := linearRig(r, h, 0)
	one.Out = r.Out(tensor.BF16, tokens, n+8)
	one.OutColumn = 8
	two := one
	two.Out, two.Norm, two.Normed = r.Out(tensor.BF16, tokens, n+8), q.QRWeight, r.Out(tensor.BF16, tokens, rank)
	two.Arrived = testkit.Zeros(t, dev, tensor.U32, tokens)
	again := two
	again.Out, again.Normed = r.Out(tensor.BF16, tokens, n+8), r.Out(tensor.BF16, tokens, rank)
	q.QR, q.QRAt, q.QROut = one.Out, 8, r.Out(tensor.BF16, tokens, rank)
	r.Do(func(rec *vk.Recorder) error {
		return errors.Join(op.Record(rec, one), after.Record(rec, q), op.Record(rec, two), op.Record(rec, again))
	})
	got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"y": one.Out, "y, normed": two.Out, "norm": q.QROut, "normed": two.Normed, "again": again.Normed}))
	assert.True(t, slices.Equal(got["y"].Data, got["y, normed"].Data),
		"%s, %d tokens: other outputs with a norm behind them", variant, tokens)
	if !slices.Equal(got["norm"].Data, got["normed"].Data) || !slices.Equal(got["norm"].Data, got["again"].Data) {
		t.Errorf("%s, %d tokens: %v, by a launch of its own %v", variant, tokens, got["normed"].Data[:8], got["norm"].Data[:8])
	}
	return true
}

func TestLinearNormArguments(t *testing.T) {
	dev := testkit.Device(t)
	good := projection.LinearConfig{N: 72, K: 64, Weights: projection.FormatBF16, Out: tensor.BF16, MaxTokens: 2, Norm: tensor.BF16, NormColumns: 64}
	for name, spoil := range map[string]func(*projection.LinearConfig){
		"type": func(c *projection.LinearConfig) { c.Norm = tensor.F16 }, "eps": func(c *projection.LinearConfig) { c.NormEps = -1 },
		"groups": func(c *projection.LinearConfig) { c.Groups = 2 }, "out": func(c *projection.LinearConfig) { c.Out = tensor.F32 },
		"no columns": func(c *projection.LinearConfig) { c.NormColumns = 0 }, "columns": func(c *projection.LinearConfig) { c.NormColumns = 80 },
		"odd columns": func(c *projection.LinearConfig) { c.NormColumns = 60 },
	} {
		cfg := good
		spoil(&cfg)
		_, err := projection.NewLinear(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*projection.Linear](t)(projection.NewLinear(dev, good))
	assert.False(t, op.Norms(0) || op.Norms(3) || op.Norms(2) == (op.Variant() == opkit.Base),
		"%s norms 0, 2 and 3 tokens of 2: %v, %v, %v", op.Variant(), op.Norms(0), op.Norms(2), op.Norms(3))
	good.Variant = opkit.Base
	base := must[*projection.Linear](t)(projection.NewLinear(dev, good))
	h := randomHost(rand.New(rand.NewPCG(1, 1)), projection.FormatBF16, 2, 1, 72, 64)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	args := linearRig(r, h, 0)
	args.Out = r.Out(tensor.BF16, 2, 72)
	args.Norm, args.Normed = testkit.Zeros(t, dev, tensor.BF16, 64), r.Out(tensor.BF16, 2, 64)
	args.Arrived = testkit.Zeros(t, dev, tensor.U32, 2)
	refuses(t, dev, "Norm, Normed, Arrived", func(rec *vk.Recorder) error { return base.Record(rec, args) })
	if !op.Norms(2) {
		return
	}
	type linearArgs = projection.LinearArgs
	testkit.Changes[linearArgs]{
		"Norm": {func(a *linearArgs) { a.Norm = tensor.Tensor{} }, func(a *linearArgs) { a.Norm.DType = tensor.F32 },
			func(a *linearArgs) { a.Norm.Shape = []int{32} }},
		"Normed":                {func(a *linearArgs) { a.Normed.Shape = []int{2, 32} }, func(a *linearArgs) { a.Normed.Shape = []int{1, 64} }},
		"Arrived":               {func(a *linearArgs) { a.Arrived = tensor.Tensor{} }, func(a *linearArgs) { a.Arrived.Shape = []int{1} }},
		"Norm, Normed, Arrived": {func(a *linearArgs) { a.Normed = tensor.Tensor{} }},
	}.Refuse(t, dev, op.Record, args)
}
