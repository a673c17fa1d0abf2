package indexer_test

import (
	"encoding/hex"
	"hash/crc32"
	"math"
	"math/rand/v2"
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

// ramp is a row of 128 numbers that bf16 holds exactly.
func ramp() []uint16 {
	q := make([]uint16, cache.IndexDim)
	for i := range q {
		q[i] = numfmt.BF16Encode(float32(math.Ldexp(float64((29*i+5)%61-30)/8, i/32-1)))
	}
	return q
}

// still is a table of one row that turns nothing.
func still() []float32 {
	table := make([]float32, cache.RopeDim)
	for i := range cache.RopeDim / 2 {
		table[i] = 1
	}
	return table
}

// A known row: its first codes, the checksum of all of them, scales and weight.
func TestQueryQuantVector(t *testing.T) {
	dev := testkit.Device(t)
	weight := []uint16{numfmt.BF16Encode(0.30078125)}
	for _, c := range []struct {
		format cache.IndexKeyFormat
		start  string
		sum    uint32
		scales string
		weight uint32
	}{
		{cache.IndexKeyFP8, "dc48de385fc05eca5cd05ad359d657d8", 0x0c9b338b, "", 0x3959C9F4},
		{cache.IndexKeyMXFP4, "1d0e8695a5b5c4c4c3d2d2e160595a4a", 0xbeca793d, "7e7f8081", 0x3B59C9F4}, // 16 times the other weight
	} {
		t.Run(c.format.String(), func(t *testing.T) {
			// 64 heads' default scales are those of the model.
			cfg := indexer.QueryQuantConfig{Format: c.format, HeadScale: indexer.DefaultHeadScale(64)}
			check := func(who string, codes, scales []byte, out []float32) {
				assert.Equal(t, c.start, hex.EncodeToString(codes[:16]), "%s: codes begin", who)
				assert.Equal(t, c.sum, crc32.ChecksumIEEE(codes), "%s: checksum", who)
				assert.Equal(t, c.scales, hex.EncodeToString(scales), "%s: scales", who)
				assert.Equal(t, c.weight, math.Float32bits(out[0]), "%s: weight", who)
			}
			codes, out := make([]byte, c.format.RowBytes()), make([]float32, 1)
			var scales []byte
			if c.format == cache.IndexKeyMXFP4 {
				scales = make([]byte, indexer.Blocks)
			}
			require.NoError(t, indexer.QueryQuantRef(ramp(), 1, []int32{0}, weight, still(), cfg, codes, scales, out))
			check("reference", codes, scales, out)

			op := must[*indexer.QueryQuant](t)(indexer.NewQueryQuant(dev, cfg))
			a := queryArgs(t, dev, cfg, ramp(), 1, []int32{0}, weight, still())
			do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			if scales != nil {
				scales = download[byte](t, a.Scales)
			}
			check(op.Variant(), download[byte](t, a.Codes), scales, download[float32](t, a.WeightsOut))
		})
	}
}

// queryArgs uploads operands; the outputs are poison.
func queryArgs(t *testing.T, dev *vk.Device, cfg indexer.QueryQuantConfig, q []uint16, heads int, positions []int32, weights []uint16, table []float32) indexer.QueryQuantArgs {
	n, row := len(positions), cfg.Format.RowBytes()
	a := indexer.QueryQuantArgs{
		Q: upload(t, dev, tensor.BF16, q, n, heads, cache.IndexDim), Positions: upload(t, dev, tensor.I32, positions, n),
		Weights:    upload(t, dev, tensor.BF16, weights, n, heads),
		Codes:      upload(t, dev, tensor.U8, poison(n*heads*row), n, heads, row),
		WeightsOut: upload(t, dev, tensor.F32, make([]float32, n*heads), n, heads),
	}
	if cfg.TableBF16 {
		a.Table = upload(t, dev, tensor.BF16, numfmt.BF16EncodeSlice(nil, table), len(table)/cache.RopeDim, cache.RopeDim)
	} else {
		a.Table = upload(t, dev, tensor.F32, table, len(table)/cache.RopeDim, cache.RopeDim)
	}
	if cfg.Format == cache.IndexKeyMXFP4 {
		a.Scales = upload(t, dev, tensor.U8, poison(n*heads*indexer.Blocks), n, heads, indexer.Blocks)
	}
	return a
}

func poison(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xA5
	}
	return b
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

// The bits of a token do not depend on which other tokens are in the step.
func TestQueryQuantSplit(t *testing.T) {
	dev := testkit.Device(t)
	const tokens, heads = 7, 9
	rng := rand.New(rand.NewPCG(5, 6))
	q, w, table := normal(rng, tokens*heads*cache.IndexDim), normal(rng, tokens*heads), make([]float32, 7*cache.RopeDim)
	for i := range table {
		table[i] = rng.Float32()*2 - 1
	}
	positions := []int32{3, 0, 6, 1, 5, 2, 4}
	for _, format := range []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4} {
		cfg := indexer.QueryQuantConfig{Format: format}
		op := must[*indexer.QueryQuant](t)(indexer.NewQueryQuant(dev, cfg))
		all := queryArgs(t, dev, cfg, q, heads, positions, w, table)
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, all) })
		codes, out := download[byte](t, all.Codes), download[float32](t, all.WeightsOut)
		for i := range tokens {
			one := queryArgs(t, dev, cfg, q[i*heads*cache.IndexDim:][:heads*cache.IndexDim], heads, positions[i:i+1], w[i*heads:][:heads], table)
			do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, one) })
			row := heads * format.RowBytes()
			assert.Equal(t, string(codes[i*row:][:row]), string(download[byte](t, one.Codes)),
				"%s: token %d alone has other codes", format, i)
			for h, v := range download[float32](t, one.WeightsOut) {
				if v != out[i*heads+h] {
					t.Errorf("%s: token %d alone, head %d: weight %g, want %g", format, i, h, v, out[i*heads+h])
				}
			}
		}
	}
}

func TestQueryQuantArguments(t *testing.T) {
	dev := testkit.Device(t)
	inf := float32(math.Inf(1))
	for name, cfg := range map[string]indexer.QueryQuantConfig{
		"no format":  {},
		"format":     {Format: 9},
		"variant":    {Format: cache.IndexKeyFP8, Variant: "fast"},
		"scale":      {Format: cache.IndexKeyFP8, SoftmaxScale: -1},
		"head scale": {Format: cache.IndexKeyFP8, HeadScale: inf},
	} {
		_, err := indexer.NewQueryQuant(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	for _, format := range []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4} {
		cfg := indexer.QueryQuantConfig{Format: format}
		op := must[*indexer.QueryQuant](t)(indexer.NewQueryQuant(dev, cfg))
		good := queryArgs(t, dev, cfg, make([]uint16, 2*3*cache.IndexDim), 3, []int32{0, 0}, make([]uint16, 6), still())
		for arg, spoil := range map[string][]func(*indexer.QueryQuantArgs){
			"Q":         {func(a *indexer.QueryQuantArgs) { a.Q.Shape = []int{6, cache.IndexDim} }},
			"Q heads":   {func(a *indexer.QueryQuantArgs) { a.Q.Shape = []int{2, 0, cache.IndexDim} }},
			"Positions": {func(a *indexer.QueryQuantArgs) { a.Positions.Shape = []int{1} }},
			"Weights":   {func(a *indexer.QueryQuantArgs) { a.Weights.Shape = []int{3, 2} }},
			"Table":     {func(a *indexer.QueryQuantArgs) { a.Table.Shape = []int{0, 64} }},
			"Codes":     {func(a *indexer.QueryQuantArgs) { a.Codes.Shape = []int{2, 3, 8} }},
			"Scales": {func(a *indexer.QueryQuantArgs) {
				if format == cache.IndexKeyFP8 {
					a.Scales = a.Codes
				} else {
					a.Scales = tensor.Tensor{}
				}
			}},
			"WeightsOut": {func(a *indexer.QueryQuantArgs) { a.WeightsOut.Shape = []int{6} }},
		} {
			for _, s := range spoil {
				a := good
				s(&a)
				refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			}
		}
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
