package projection_test

import (
	"math/rand/v2"
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
		"base, huge results": func(c *projection.LinearConfig) { c.N, c.K, c.MaxTokens, c.Variant = 8, 32, 1<<24, "base" },
		"base, huge weights": func(c *projection.LinearConfig) { c.N, c.K, c.Groups, c.Variant = 1<<15, 1<<14, 1, "base" },
	} {
		cfg := good
		change(&cfg)
		holds := dev.Caps().MaxStorageBufferRange
		if name == "base, huge results" && holds > 1<<31 || name == "base, huge weights" && holds >= 1<<28 {
			continue
		}
		_, err := projection.NewLinear(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	type linearArgs = projection.LinearArgs
	for _, f := range weightFormats {
		h := randomHost(rand.New(rand.NewPCG(5, 5)), f, 17, 2, 64, 256)
		cfg := linearConfig(h, "")
		cfg.MaxTokens = 17
		op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
		r := verify.NewRig(t.Context(), dev)
		defer r.Close()
		a := linearRig(r, h, 8)
		require.NoError(t, r.Err())
		testkit.Changes[linearArgs]{
			"X":      {func(a *linearArgs) { a.X.Shape = []int{17, 511} }, func(a *linearArgs) { a.X = a.X.Rows(0, 16) }},
			"XScale": {func(a *linearArgs) { a.XScale = a.Out }},
			"Out": {func(a *linearArgs) { a.Out.Shape = []int{17, 120} }, func(a *linearArgs) { a.Out.Shape = []int{16, 132} },
				func(a *linearArgs) { a.Out.Shape = []int{18, 1, 128} }}, // more than MaxTokens, and than its buffer
			"OutColumn": {func(a *linearArgs) { a.OutColumn = 8 }, func(a *linearArgs) { a.OutColumn = -8 },
				func(a *linearArgs) { a.Out.Shape, a.OutColumn = []int{8, 136}, 4; a.X = a.X.Rows(0, 8) }},
			"W.Scale": {func(a *linearArgs) {
				if a.W.Scale = (tensor.Tensor{}); f == projection.FormatBF16 {
					a.W.Scale = a.Out
				}
			}},
			"W.RowScale": {func(a *linearArgs) {
				if a.W.RowScale = a.Out; f == projection.FormatNVFP4 {
					a.W.RowScale = tensor.Tensor{}
				}
			}},
		}.Refuse(t, dev, op.Record, a)
		none := a
		none.X, none.Out = a.X.Rows(0, 0), a.Out.Rows(0, 0)
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
	}
	assert.ErrorIs(t, projection.LinearRef(projection.LinearHost{}, nil), vk.ErrArgument, "the reference of nothing")
}

// Quantised activations: what Record refuses, and that no build with matrices takes those of four
// bits.
func TestLinearActivationArguments(t *testing.T) {
	dev := testkit.Device(t)
	type linearArgs = projection.LinearArgs
	for act, c := range map[projection.ActivationFormat]struct {
		weights projection.Format
		k       int
		scales  tensor.DType
		shape   []int // of the activations' scales
	}{
		projection.ActivationFP8:       {projection.FormatFP8, 1024, tensor.F32, []int{2, 8, 8}},
		projection.ActivationFP8Packed: {projection.FormatFP8, 1024, tensor.U32, []int{2, 2, 8}},
		projection.ActivationNVFP4:     {projection.FormatNVFP4, 192, tensor.U8, []int{2, 5, 12}},
	} {
		cfg := projection.LinearConfig{N: 8, K: c.k, Groups: 2, Weights: c.weights, Activations: act, Out: tensor.BF16, MaxTokens: 5}
		op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
		is, bytes := c.weights.Shapes(16, c.k), c.k
		if act == projection.ActivationNVFP4 {
			assert.Contains(t, []string{opkit.Base, opkit.DA}, op.Variant())
			cfg.Variant, bytes = opkit.CM, c.k/2
			_, err := projection.NewLinear(dev, cfg)
			assert.ErrorIs(t, err, vk.ErrMissingFeature)
		}
		zeros := func(is tensor.Tensor) (x tensor.Tensor) {
			if is.Shape == nil {
				return x
			}
			return testkit.Zeros(t, dev, is.DType, is.Shape...)
		}
		a := linearArgs{X: testkit.Zeros(t, dev, tensor.U8, 2, 5, bytes), XScale: testkit.Zeros(t, dev, c.scales, c.shape...),
			W:   projection.LinearWeights{Data: zeros(is.Data), Scale: zeros(is.Scale), RowScale: zeros(is.RowScale)},
			Out: testkit.Zeros(t, dev, tensor.BF16, 5, 16)}
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
		testkit.Changes[linearArgs]{
			"X":      {func(a *linearArgs) { a.X.Shape = []int{5, 2, bytes} }},
			"XScale": {func(a *linearArgs) { a.XScale.Shape = append(a.XScale.Shape[:2:2], 4) }},
		}.Refuse(t, dev, op.Record, a)
	}
}
