package projection_test

import (
	"errors"
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

func TestLinearArguments(t *testing.T) {
	dev := testkit.Device(t)
	good := projection.LinearConfig{N: 64, K: 256, Groups: 2, Weights: projection.FormatNVFP4, Out: tensor.BF16, MaxTokens: 17}
	for name, change := range map[string]func(c *projection.LinearConfig){
		"no rows":      func(c *projection.LinearConfig) { c.N = 0 },
		"odd rows":     func(c *projection.LinearConfig) { c.N = 12 },
		"odd inputs":   func(c *projection.LinearConfig) { c.K = 48 },
		"groups":       func(c *projection.LinearConfig) { c.Groups = -1 << 17; c.N = -8 },
		"many groups":  func(c *projection.LinearConfig) { c.Groups = 1 << 17 },
		"no format":    func(c *projection.LinearConfig) { c.Weights = 0 },
		"activations":  func(c *projection.LinearConfig) { c.Activations = 9 },
		"FP8 by NVFP4": func(c *projection.LinearConfig) { c.Activations = projection.ActivationFP8 },
		"packed, short": func(c *projection.LinearConfig) {
			c.Weights, c.Activations = projection.FormatFP8F32, projection.ActivationFP8Packed
		},
		"NVFP4 by FP8": func(c *projection.LinearConfig) {
			c.Weights, c.Activations = projection.FormatFP8F32, projection.ActivationNVFP4
		},
		"MXFP8 by FP8": func(c *projection.LinearConfig) {
			c.Weights, c.Activations = projection.FormatFP8, projection.ActivationMXFP8
		},
		"MXFP8, short": func(c *projection.LinearConfig) {
			c.Weights, c.Activations, c.K = projection.FormatFP8x32, projection.ActivationMXFP8, 320
		},
		"FP8 by small blocks": func(c *projection.LinearConfig) {
			c.Weights, c.Activations = projection.FormatFP8x32, projection.ActivationFP8
		},
		"NVFP4, short":       func(c *projection.LinearConfig) { c.Activations, c.K = projection.ActivationNVFP4, 96 },
		"output":             func(c *projection.LinearConfig) { c.Out = tensor.F16 },
		"tokens":             func(c *projection.LinearConfig) { c.MaxTokens = -1 },
		"workgroups":         func(c *projection.LinearConfig) { c.Workgroups = -1 },
		"variant":            func(c *projection.LinearConfig) { c.Variant = "twopass-base" },
		"too many weights":   func(c *projection.LinearConfig) { c.N, c.K = 1<<16, 1<<16 },
		"base, huge weights": func(c *projection.LinearConfig) { c.N, c.K, c.MaxTokens, c.Variant = 8, 32, 1<<24, "base" },
	} {
		cfg := good
		change(&cfg)
		if name == "base, huge weights" && dev.Caps().MaxStorageBufferRange > 1<<31 {
			continue
		}
		_, err := projection.NewLinear(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	for _, f := range weightFormats {
		h := randomHost(rand.New(rand.NewPCG(5, 5)), f, 17, 2, 64, 256)
		cfg := linearConfig(h, "")
		cfg.MaxTokens = 17
		op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
		r := verify.NewRig(t.Context(), dev)
		defer r.Close()
		a := linearRig(r, h, 8)
		require.NoError(t, r.Err())
		for i, c := range []struct {
			arg    string
			change func(a *projection.LinearArgs)
		}{
			{"X", func(a *projection.LinearArgs) { a.X.Shape = []int{17, 511} }},
			{"X", func(a *projection.LinearArgs) { a.X = a.X.Rows(0, 16) }},
			{"XScale", func(a *projection.LinearArgs) { a.XScale = a.Out }},
			{"W.Data", func(a *projection.LinearArgs) { a.W.Data = a.W.Data.Rows(0, 127) }},
			{"Out", func(a *projection.LinearArgs) { a.Out.Shape = []int{17, 120} }},
			{"Out", func(a *projection.LinearArgs) { a.Out.Shape = []int{16, 132} }},
			{"OutColumn", func(a *projection.LinearArgs) { a.OutColumn = 8 }},
			{"OutColumn", func(a *projection.LinearArgs) { a.OutColumn = -8 }},
			{"OutColumn", func(a *projection.LinearArgs) { a.Out.Shape, a.OutColumn = []int{8, 136}, 4; a.X = a.X.Rows(0, 8) }},
			{"W.Scale", func(a *projection.LinearArgs) {
				if f == projection.FormatBF16 {
					a.W.Scale = a.Out
				} else {
					a.W.Scale = tensor.Tensor{}
				}
			}},
			{"W.RowScale", func(a *projection.LinearArgs) {
				if f == projection.FormatNVFP4 {
					a.W.RowScale = a.W.RowScale.Rows(0, 1)
				} else {
					a.W.RowScale = a.Out
				}
			}},
		} {
			b := a
			c.change(&b)
			refuses(t, dev, c.arg, func(rec *vk.Recorder) error {
				err := op.Record(rec, b)
				assert.Error(t, err, "%v: change %d is taken", f, i)
				return err
			})
		}
		many := a
		many.Out.Shape = []int{18, 1, 128} // more than MaxTokens, and than its buffer
		refuses(t, dev, "Out", func(rec *vk.Recorder) error { return op.Record(rec, many) })
		none := a
		none.X, none.Out = a.X.Rows(0, 0), a.Out.Rows(0, 0)
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
	}
	assert.ErrorIs(t, projection.LinearRef(projection.LinearHost{}, nil), vk.ErrArgument, "the reference of nothing")
}

// FP8 activations: what Record refuses.
func TestLinearActivationArguments(t *testing.T) {
	dev := testkit.Device(t)
	for _, f := range []projection.ActivationFormat{projection.ActivationFP8, projection.ActivationFP8Packed} {
		op := must[*projection.Linear](t)(projection.NewLinear(dev, projection.LinearConfig{
			N: 8, K: 1024, Groups: 2, Weights: projection.FormatFP8, Activations: f, Out: tensor.BF16, MaxTokens: 5}))
		a := projection.LinearArgs{
			X: upload(t, dev, tensor.U8, make([]byte, 2*5*1024), 2, 5, 1024),
			W: projection.LinearWeights{Data: upload(t, dev, tensor.U8, make([]byte, 16*1024), 16, 1024),
				Scale: upload(t, dev, tensor.U8, make([]byte, 8), 1, 8)},
			Out: upload(t, dev, tensor.BF16, make([]uint16, 5*16), 5, 16),
		}
		if f == projection.ActivationFP8 {
			a.XScale = upload(t, dev, tensor.F32, make([]float32, 2*8*8), 2, 8, 8)
		} else {
			a.XScale = upload(t, dev, tensor.U32, make([]uint32, 2*2*8), 2, 2, 8)
		}
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
		for _, change := range []struct {
			arg string
			f   func(a *projection.LinearArgs)
		}{
			{"X", func(a *projection.LinearArgs) { a.X.Shape = []int{5, 2, 1024} }},
			{"XScale", func(a *projection.LinearArgs) { a.XScale.Shape = append(a.XScale.Shape[:2:2], 4) }},
		} {
			b := a
			change.f(&b)
			refuses(t, dev, change.arg, func(rec *vk.Recorder) error { return op.Record(rec, b) })
		}
	}
}

// NVFP4 activations: what Record refuses, and that no build with matrices takes them.
func TestLinearNVFP4Arguments(t *testing.T) {
	dev := testkit.Device(t)
	cfg := projection.LinearConfig{N: 8, K: 192, Groups: 2, Weights: projection.FormatNVFP4, Activations: projection.ActivationNVFP4,
		Out: tensor.BF16, MaxTokens: 5, Variant: opkit.CM}
	_, err := projection.NewLinear(dev, cfg)
	assert.ErrorIs(t, err, vk.ErrMissingFeature)
	cfg.Variant = ""
	op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
	assert.Contains(t, []string{opkit.Base, opkit.DA}, op.Variant())
	a := projection.LinearArgs{
		X: upload(t, dev, tensor.U8, make([]byte, 2*5*96), 2, 5, 96), XScale: upload(t, dev, tensor.U8, make([]byte, 2*5*12), 2, 5, 12),
		W: projection.LinearWeights{Data: upload(t, dev, tensor.U8, make([]byte, 16*96), 16, 96),
			Scale: upload(t, dev, tensor.U8, make([]byte, 16*12), 16, 12), RowScale: upload(t, dev, tensor.F32, make([]float32, 16), 16)},
		Out: upload(t, dev, tensor.BF16, make([]uint16, 5*16), 5, 16),
	}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	for _, change := range []struct {
		arg string
		f   func(a *projection.LinearArgs)
	}{
		{"X", func(a *projection.LinearArgs) { a.X.Shape = []int{5, 2, 96} }},
		{"XScale", func(a *projection.LinearArgs) { a.XScale.Shape = []int{2, 12, 5} }},
	} {
		b := a
		change.f(&b)
		refuses(t, dev, change.arg, func(rec *vk.Recorder) error { return op.Record(rec, b) })
	}
}

// Weights larger than a descriptor can hold: a variant that reaches them by address is
// chosen, and reads both ends; base refuses.
func TestLinearBeyondDescriptor(t *testing.T) {
	dev := testkit.Device(t)
	limit := dev.Caps().MaxStorageBufferRange
	const k = 4096
	rows := int(limit/k/8+9) * 8
	if testing.Short() || limit > 1<<29 || limit > dev.Caps().HeapBytes/4 {
		t.Skipf("weights beyond the descriptor's %d bytes are too large to try", limit)
	}
	cfg := projection.LinearConfig{N: rows, K: k, Weights: projection.FormatFP8, Out: tensor.F32, MaxTokens: 9}
	op, err := projection.NewLinear(dev, cfg)
	if errors.Is(err, vk.ErrMissingFeature) {
		t.Skip(err)
	}
	require.NoError(t, err)
	cfg.Variant = opkit.Base
	_, err = projection.NewLinear(dev, cfg)
	require.ErrorIs(t, err, vk.ErrArgument, "base")
	require.NotEqual(t, opkit.Base, op.Variant(), "base")
	data := make([]byte, rows*k)
	for i := range k {
		data[i], data[(rows-1)*k+i] = 0x38, 0x40
	}
	one := make([]uint16, 9*k)
	for i := range one {
		one[i] = 0x3F80
	}
	blocks := (rows + 127) / 128 * (k / 128)
	a := projection.LinearArgs{
		W: projection.LinearWeights{Data: upload(t, dev, tensor.U8, data, rows, k),
			Scale: upload(t, dev, tensor.U8, slices.Repeat([]byte{127}, blocks), (rows+127)/128, k/128)},
		X: upload(t, dev, tensor.BF16, one, 9, k), Out: upload(t, dev, tensor.F32, make([]float32, 9*rows), 9, rows),
	}
	for _, tokens := range []int{1, 9} {
		x := a
		x.X, x.Out = a.X.Rows(0, tokens), a.Out.Rows(0, tokens)
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, x) })
		for i, v := range download[float32](t, x.Out) {
			want := map[int]float32{0: k, rows - 1: 2 * k}[i%rows]
			if v != want {
				t.Fatalf("%d tokens: row %d gives %g, want %g", tokens, i%rows, v, want)
			}
		}
	}
}
