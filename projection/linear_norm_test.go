package projection_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/internal/verify"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A layer that norms its input gives the bits of QKVNorm and the layer one after the
// other.
func TestLinearNorm(t *testing.T) {
	dev := testkit.Device(t)
	for _, f := range weightFormats {
		for _, k := range []int{608, 1536} {
			for tokens, norm := range []tensor.DType{tensor.BF16, tensor.F32} {
				t.Run(fmt.Sprintf("%v/k%d/t%d/%v", f, k, tokens+1, norm), func(t *testing.T) {
					eachLinear(t, dev, func(t *testing.T, variant string) { linearNorm(t, dev, f, k, tokens+1, norm, variant) })
				})
			}
		}
	}
}

func linearNorm(t *testing.T, dev *vk.Device, f projection.WeightFormat, k, tokens int, norm tensor.DType, variant string) {
	rng := rand.New(rand.NewPCG(5, uint64(f)))
	h := randomHost(rng, f, tokens, 1, 136, k)
	cfg := linearConfig(h, variant)
	cfg.MaxTokens = tokens
	apart := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
	cfg.Norm, cfg.NormEps = norm, 1e-3
	op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
	first := must[*projection.QKVNorm](t)(projection.NewQKVNorm(dev, projection.QKVNormConfig{Rank: k, Eps: 1e-3}))

	n := normArgs(t, dev, k, tokens)
	testkit.Put(t, n.QR, normal(rng, tokens*(k+projection.D)))
	if norm == tensor.F32 {
		w := make([]float32, k)
		for i := range w {
			w[i] = float32(rng.NormFloat64())
		}
		n.QRWeight = upload(t, dev, tensor.F32, w, k)
	} else {
		testkit.Put(t, n.QRWeight, normal(rng, k))
	}
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := linearRig(r, h, 0)
	one, two := a, a
	one.X, two.X = n.QROut, n.QR
	two.Norm, two.Out = n.QRWeight, r.Out(tensor.F32, tokens, 1, 136)
	r.Do(func(rec *vk.Recorder) error {
		return errors.Join(first.Record(rec, n), apart.Record(rec, one), op.Record(rec, two))
	})
	got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"one": one.Out, "two": two.Out}))
	if !slices.Equal(got["one"].Data, got["two"].Data) {
		t.Errorf("%s: %v, then %v", variant, got["one"].F32()[:8], got["two"].F32()[:8])
	}
}

func TestLinearNormArguments(t *testing.T) {
	dev := testkit.Device(t)
	good := projection.LinearConfig{N: 8, K: 64, Weights: projection.WeightBF16, Out: tensor.F32, MaxTokens: 2, Norm: tensor.BF16}
	for name, spoil := range map[string]func(*projection.LinearConfig){
		"type": func(c *projection.LinearConfig) { c.Norm = tensor.F16 }, "eps": func(c *projection.LinearConfig) { c.NormEps = -1 },
		"groups": func(c *projection.LinearConfig) { c.Groups = 2 }, "any tokens": func(c *projection.LinearConfig) { c.MaxTokens = 0 },
		"tokens": func(c *projection.LinearConfig) { c.MaxTokens = projection.NormTokens + 1 },
		"activations": func(c *projection.LinearConfig) {
			c.Weights, c.Activations, c.K = projection.WeightFP8, projection.ActivationFP8, 128
		},
		"K": func(c *projection.LinearConfig) { c.K = projection.MaxRank },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := projection.NewLinear(dev, cfg); !errors.Is(err, vk.ErrArgument) {
			t.Errorf("%s: %v, want an argument error", name, err)
		}
	}
	op := must[*projection.Linear](t)(projection.NewLinear(dev, good))
	h := randomHost(rand.New(rand.NewPCG(1, 1)), projection.WeightBF16, 2, 1, 8, 64)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	args := linearRig(r, h, 0)
	args.X = upload(t, dev, tensor.BF16, make([]uint16, 2*72), 2, 72)
	args.Norm = upload(t, dev, tensor.BF16, make([]uint16, 64), 64)
	for arg, spoil := range map[string][]func(*projection.LinearArgs){
		"X": {func(a *projection.LinearArgs) { a.X.Shape = []int{2, 56} }, func(a *projection.LinearArgs) { a.X.Shape = []int{1, 72} },
			func(a *projection.LinearArgs) { a.X.Shape = []int{2, 68} }},
		"XScale": {func(a *projection.LinearArgs) { a.XScale = a.Norm }},
		"Norm": {func(a *projection.LinearArgs) { a.Norm = tensor.Tensor{} }, func(a *projection.LinearArgs) { a.Norm.DType = tensor.F32 },
			func(a *projection.LinearArgs) { a.Norm.Shape = []int{32} }},
	} {
		for _, s := range spoil {
			a := args
			s(&a)
			refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
		}
	}
	good.Norm = 0
	plain := must[*projection.Linear](t)(projection.NewLinear(dev, good))
	refuses(t, dev, "Norm", func(rec *vk.Recorder) error {
		a := args
		a.X.Shape = []int{2, 64}
		return plain.Record(rec, a)
	})
}

// A layer that norms its outputs gives those, and the bits of QKVNorm for them, launch after
// launch, where it says that it does.
func TestLinearNormOut(t *testing.T) {
	dev := testkit.Device(t)
	ran := false
	for _, x := range []struct {
		format       projection.WeightFormat
		rank, tokens int
		norm         tensor.DType
	}{
		{projection.WeightBF16, 1536, 3, tensor.BF16}, {projection.WeightFP8, 608, 5, tensor.F32},
		{projection.WeightFP8UE8M0, 608, 13, tensor.BF16}, {projection.WeightNVFP4, 48, 7, tensor.F32},
	} {
		t.Run(fmt.Sprintf("%v/rank%d/t%d/%v", x.format, x.rank, x.tokens, x.norm), func(t *testing.T) {
			eachLinear(t, dev, func(t *testing.T, variant string) {
				ran = linearNormOut(t, dev, x.format, x.rank, x.tokens, x.norm, variant) || ran
			})
		})
	}
	if !ran {
		t.Skip("no layer norms its outputs on this device")
	}
}

func linearNormOut(t *testing.T, dev *vk.Device, f projection.WeightFormat, rank, tokens int, norm tensor.DType, variant string) bool {
	rng := rand.New(rand.NewPCG(6, uint64(tokens)))
	n := rank + 40
	h := randomHost(rng, f, tokens, 1, n, 128)
	cfg := linearConfig(h, variant)
	cfg.MaxTokens, cfg.Out, cfg.NormOut, cfg.NormColumns, cfg.NormEps = tokens, tensor.BF16, norm, rank, 1e-3
	op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
	if !op.NormsOut(tokens) {
		return false
	}
	after := must[*projection.QKVNorm](t)(projection.NewQKVNorm(dev, projection.QKVNormConfig{Rank: rank, Eps: 1e-3}))
	q := normArgs(t, dev, rank, tokens)
	if norm == tensor.F32 {
		w := make([]float32, rank)
		for i := range w {
			w[i] = float32(rng.NormFloat64())
		}
		q.QRWeight = upload(t, dev, tensor.F32, w, rank)
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
	two.Arrived = upload(t, dev, tensor.U32, make([]uint32, tokens), tokens)
	again := two
	again.Out, again.Normed = r.Out(tensor.BF16, tokens, n+8), r.Out(tensor.BF16, tokens, rank)
	q.QR, q.QRAt, q.QROut = one.Out, 8, r.Out(tensor.BF16, tokens, rank)
	r.Do(func(rec *vk.Recorder) error {
		return errors.Join(op.Record(rec, one), after.Record(rec, q), op.Record(rec, two), op.Record(rec, again))
	})
	got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"y": one.Out, "y, normed": two.Out, "norm": q.QROut, "normed": two.Normed, "again": again.Normed}))
	if !slices.Equal(got["y"].Data, got["y, normed"].Data) {
		t.Errorf("%s, %d tokens: other outputs with a norm behind them", variant, tokens)
	}
	if !slices.Equal(got["norm"].Data, got["normed"].Data) || !slices.Equal(got["norm"].Data, got["again"].Data) {
		t.Errorf("%s, %d tokens: %v, by a launch of its own %v", variant, tokens, got["normed"].Data[:8], got["norm"].Data[:8])
	}
	return true
}
