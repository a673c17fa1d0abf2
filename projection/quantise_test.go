package projection_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestQuantiseFP8(t *testing.T)   { testkit.TestOp(t, "per_token_group_fp8_quant") }
func TestQuantiseNVFP4(t *testing.T) { testkit.TestOp(t, "scaled_fp4_quant") }

// TestQuantiseRef holds the reference to numbers worked out by hand, after numerics' tables: the
// scale bytes of FP8 for amax, and blocks of NVFP4 whose quotients are ties.
func TestQuantiseRef(t *testing.T) {
	for amax, byte_ := range map[float32]byte{0: 85, 1e-10: 85, 0.5: 118, 1: 119, 1.75: 119, 2: 120, 3.5: 120, 100: 125,
		448: 127, 450: 128, 57344: 134} {
		x, codes, scales := make([]uint16, 128), make([]byte, 128), make([]byte, 1)
		x[77] = numfmt.BF16Encode(-amax)
		require.NoError(t, projection.QuantiseRef(projection.ActivationFP8, x, 1, 128, 0, codes, scales))
		assert.Equal(t, byte_, scales[0], "amax %g", amax)
		assert.Equal(t, numfmt.E4M3Encode(-float32(float64(amax)/math.Ldexp(1, int(byte_)-127))), codes[77], "amax %g", amax)
		assert.Zero(t, codes[0])
	}
	for amax, byte_ := range map[float32]byte{0: 105, 1e-4: 105, 2e-4: 106, 448: 127} { // of MXFP8, of 32 numbers
		x, codes, scales := make([]uint16, 128), make([]byte, 128), make([]byte, 4)
		x[77] = numfmt.BF16Encode(amax)
		require.NoError(t, projection.QuantiseRef(projection.ActivationMXFP8, x, 1, 128, 0, codes, scales))
		assert.Equal(t, []byte{105, 105, byte_, 105}, scales, "amax %g", amax)
	}
	for name, c := range map[string]struct {
		block, codes []float32
		input, scale float32
	}{
		"ties go to the even code": {[]float32{6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -5, 0},
			[]float32{6, 0, 1, 1, 2, 2, 4, 4, 0, -1, -1, -4, 0}, 1, 1},
		"under a scale of 1.5":   {[]float32{9, 0.375, 1.125, 1.875, 2.625, 3.75, 5.25, 7.5}, []float32{6, 0, 1, 1, 2, 2, 4, 4}, 1, 1.5},
		"input_scale divides":    {[]float32{9, 4.5, -1.5, 0.75}, []float32{6, 3, -1, 0.5}, 0.25, 6},
		"a scale that saturates": {[]float32{6000, 448, -1000, 60}, []float32{6, 1, -2, 0}, 1, 448},
		"one that rounds down":   {[]float32{6.3125, 5.25}, []float32{6, 6}, 1, 1},
		"one too small":          {[]float32{0.005, -0.005}, []float32{0, 0}, 1, 0},
		"zeros":                  {nil, nil, 3, 0},
	} {
		x, codes, scales := make([]uint16, 64), make([]byte, 32), make([]byte, 4)
		for i, v := range c.block {
			x[32+i] = numfmt.BF16Encode(v)
		}
		require.NoError(t, projection.QuantiseRef(projection.ActivationNVFP4, x, 1, 64, c.input, codes, scales))
		assert.Equal(t, c.scale, numfmt.E4M3Decode(scales[2]), name)
		for i, want := range c.codes {
			even, odd := numfmt.E2M1Unpack(codes[16+i/2])
			assert.Equal(t, want, numfmt.E2M1Decode([]byte{even, odd}[i%2]), "%s: number %d, %g", name, i, c.block[i])
		}
	}
}

func TestQuantiseArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, projection.NewQuantise, map[string]projection.QuantiseConfig{
		"Format": {K: 128}, "K": {Format: projection.ActivationFP8, K: 192},
		"Groups": {Format: projection.ActivationFP8, K: 128, Groups: 1 << 16},
	})
	type quantiseArgs = projection.QuantiseArgs
	for _, c := range []projection.QuantiseConfig{
		{Format: projection.ActivationFP8, K: 128, Groups: 2}, {Format: projection.ActivationFP8Packed, K: 512},
		{Format: projection.ActivationNVFP4, K: 64}, {Format: projection.ActivationMXFP8, K: 384},
	} {
		op := must[*projection.Quantise](t)(projection.NewQuantise(dev, c))
		width := max(c.Groups, 1) * c.K
		args := quantiseArgs{X: testkit.Zeros(t, dev, tensor.BF16, 5, width), Codes: testkit.Zeros(t, dev, tensor.U8, op.CodesShape(5)...),
			Scales: testkit.Zeros(t, dev, op.ScalesType(), op.ScalesShape(5)...)}
		if c.Format == projection.ActivationNVFP4 {
			args.InputScale = 0.5
		}
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, args) })
		testkit.Changes[quantiseArgs]{
			"Codes":  {func(a *quantiseArgs) { a.Codes.Shape = []int{5, width} }},
			"Scales": {func(a *quantiseArgs) { a.Scales.Shape = []int{1, 1, 5} }},
			"InputScale": {func(a *quantiseArgs) { a.InputScale = float32(math.NaN()) }, func(a *quantiseArgs) { a.InputScale = -1 },
				func(a *quantiseArgs) { a.InputScale = float32(math.Inf(1)) }, func(a *quantiseArgs) { a.InputScale = 0x1p-65 }},
		}.Refuse(t, dev, op.Record, args)
		none := args
		none.X.Shape, none.Codes.Shape, none.Scales.Shape = []int{0, width}, op.CodesShape(0), op.ScalesShape(0)
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
	}
	err := projection.QuantiseRef(projection.ActivationNVFP4, make([]uint16, 64), 1, 64, 0, make([]byte, 32), make([]byte, 4))
	assert.ErrorIs(t, err, vk.ErrArgument, "reference without an input scale")
	err = projection.QuantiseRef(projection.ActivationFP8, make([]uint16, 128), 1, 128, 0, make([]byte, 127), make([]byte, 1))
	assert.ErrorIs(t, err, vk.ErrArgument, "reference with few codes")
}
