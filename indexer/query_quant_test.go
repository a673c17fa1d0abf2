package indexer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestQueryQuant(t *testing.T) {
	t.Run("fp8", func(t *testing.T) { testkit.TestOp(t, "fused_indexer_q_rope_quant_fp8") })
	t.Run("mxfp4", func(t *testing.T) { testkit.TestOp(t, "fused_indexer_q_rope_quant_mxfp4") })
}

// still is a table of one row that turns nothing.
func still() []float32 {
	table := make([]float32, cache.RopeDim)
	for i := range cache.RopeDim / 2 {
		table[i] = 1
	}
	return table
}

// The transform of the reference against its matrix: a unit vector becomes a row of
// +-128^-0.5, and mixing twice gives the numbers back.
func TestQueryQuantHadamard(t *testing.T) {
	cfg := indexer.QueryQuantConfig{Format: cache.IndexKeyFP8, Hadamard: true, SoftmaxScale: 1, HeadScale: 1}
	one := []uint16{numfmt.BF16Encode(1)}
	for j := range cache.IndexDim {
		q := make([]uint16, cache.IndexDim)
		q[j] = numfmt.BF16Encode(448)
		codes, out := make([]byte, cache.IndexDim), make([]float32, 1)
		require.NoError(t, indexer.QueryQuantRef(q, 1, []int32{0}, one, still(), cfg, codes, nil, out))
		for i, b := range codes {
			v := float64(numfmt.E4M3Decode(b) * out[0])
			want := 448 / math.Sqrt(128)
			if parity(uint(i&j)) == 1 {
				want = -want
			}
			if math.Abs(v-want) > 2 { // an E4M3 step of 39.6 is 4
				t.Fatalf("entry %d of unit vector %d: %g, want %g", i, j, v, want)
			}
		}
	}
}

func parity(x uint) (p uint) {
	for ; x > 0; x &= x - 1 {
		p ^= 1
	}
	return p
}

func TestQueryQuantArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, indexer.NewQueryQuant, map[string]indexer.QueryQuantConfig{
		"no format": {}, "format": {Format: 9}, "scale": {Format: cache.IndexKeyFP8, SoftmaxScale: -1},
		"head scale": {Format: cache.IndexKeyFP8, HeadScale: float32(math.Inf(1))},
	})
	type quantArgs = indexer.QueryQuantArgs
	for _, format := range indexFormats {
		op := must[*indexer.QueryQuant](t)(indexer.NewQueryQuant(dev, indexer.QueryQuantConfig{Format: format}))
		zeros := func(dt tensor.DType, shape ...int) tensor.Tensor { return testkit.Zeros(t, dev, dt, shape...) }
		good := quantArgs{Q: zeros(tensor.BF16, 2, 3, cache.IndexDim), Positions: zeros(tensor.I32, 2), Weights: zeros(tensor.BF16, 2, 3),
			Table: zeros(tensor.F32, 1, cache.RopeDim), Codes: zeros(tensor.U8, 2, 3, format.RowBytes()), WeightsOut: zeros(tensor.F32, 2, 3)}
		if format == cache.IndexKeyMXFP4 {
			good.Scales = zeros(tensor.U8, 2, 3, indexer.Blocks)
		}
		testkit.Changes[quantArgs]{
			"Q heads": {func(a *quantArgs) { a.Q.Shape = []int{2, 0, cache.IndexDim} }},
			"Table":   {func(a *quantArgs) { a.Table.Shape = []int{0, 64} }},
			"Scales": {func(a *quantArgs) {
				if a.Scales = (tensor.Tensor{}); format == cache.IndexKeyFP8 {
					a.Scales = a.Codes
				}
			}},
		}.Refuse(t, dev, op.Record, good)
	}
	err := indexer.QueryQuantRef(nil, 1, []int32{0}, nil, still(), indexer.QueryQuantConfig{Format: cache.IndexKeyFP8}, nil, nil, nil)
	assert.ErrorIs(t, err, vk.ErrArgument, "reference without queries")
}

// The scales of 32 heads are not powers of two: their product would differ from them in the last
// bit of some weights.
func TestScalesOf32Heads(t *testing.T) {
	assert.Equal(t, uint32(0x3DB504F3), math.Float32bits(indexer.DefaultSoftmaxScale))
	assert.Equal(t, uint32(0x3E3504F3), math.Float32bits(indexer.DefaultHeadScale(32)))
}
