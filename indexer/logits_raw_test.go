package indexer_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// rawScene are the operands of a Logits, but queries as the projection leaves them.
type rawScene struct {
	indexer.LogitsHost
	q, weights []uint16
	positions  []int32
	table      []float32
	slots      []int32 // block table of another cache
}

// newRawScene makes queries of all sizes: each head has a size of its own, some are zero,
// below 2^-100, subnormal, partly infinite or partly NaN.
func newRawScene(t *testing.T, format cache.IndexKeyFormat, rng *rand.Rand, tokens, heads, keys int) rawScene {
	const rows = 37
	s := rawScene{LogitsHost: randomHost(t, format, rng, tokens, max(tokens/2, 1), heads, keys, 64)}
	s.Lens[tokens-1] = int32(keys)
	for i := range tokens * heads {
		s.weights = append(s.weights, numfmt.BF16Encode(float32(rng.NormFloat64())))
		size := math.Exp2(float64(rng.IntN(12) - 6))
		if i%11 == 3 {
			size = []float64{0, 0x1p-101, 0x1p-130, 0x1p100}[rng.IntN(4)]
		}
		for range cache.IndexDim {
			x := numfmt.BF16Encode(float32(rng.NormFloat64() * size * math.Exp2(-8*rng.Float64()*rng.Float64())))
			if i%23 == 7 && rng.IntN(50) == 0 {
				x = []uint16{0x7F80, 0xFF80, 0x7FC1, 0x8001, 0x0080}[rng.IntN(5)]
			}
			s.q = append(s.q, x)
		}
	}
	for i := range tokens {
		s.positions = append(s.positions, int32(rng.IntN(rows+6)-3)) // some outside the table
		if i == 0 {
			s.positions[0] = 5
		}
	}
	for range rows {
		for range 32 {
			s.table = append(s.table, float32(math.Cos(float64(len(s.table)))))
		}
		for range 32 {
			s.table = append(s.table, float32(math.Sin(float64(len(s.table)-32))))
		}
	}
	return s
}

func (s rawScene) upload(r *verify.Rig) indexer.RawQueries {
	t := len(s.Lens)
	return indexer.RawQueries{
		Q:         r.In(vectors.FromBF16(numfmt.BF16DecodeSlice(nil, s.q), t, s.Heads, cache.IndexDim), tensor.BF16),
		Weights:   r.In(vectors.FromBF16(numfmt.BF16DecodeSlice(nil, s.weights), t, s.Heads), tensor.BF16),
		Positions: r.In(vectors.FromI32(s.positions, t), tensor.I32),
		Table:     r.In(vectors.FromF32(s.table, len(s.table)/cache.RopeDim, cache.RopeDim), tensor.F32),
	}
}

// results runs record with logits or a selection as outputs.
func (s rawScene) results(t *testing.T, dev *vk.Device, raw bool, logits *indexer.Logits, pick *indexer.Select, k int) verify.Arrays {
	t.Helper()
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a, n, queries := uploadLogits(r, s.LogitsHost), len(s.Lens), s.upload(r)
	var quant *indexer.QueryQuant
	q := indexer.QueryQuantArgs{Q: queries.Q, Positions: queries.Positions, Weights: queries.Weights, Table: queries.Table}
	if raw {
		a.Q, a.QScale, a.Weights, a.Raw = tensor.Tensor{}, tensor.Tensor{}, tensor.Tensor{}, queries
	} else {
		quant = must[*indexer.QueryQuant](t)(indexer.NewQueryQuant(dev, indexer.QueryQuantConfig{Format: s.Layout.Format}))
		a.Q, a.Weights = r.Out(tensor.U8, a.Q.Shape...), r.Out(tensor.F32, a.Weights.Shape...)
		if !a.QScale.IsZero() {
			a.QScale = r.Out(tensor.U8, a.QScale.Shape...)
		}
		q.Codes, q.Scales, q.WeightsOut = a.Q, a.QScale, a.Weights
	}
	out := map[string]tensor.Tensor{"logits": a.Out}
	p := indexer.SelectArgs{LogitsArgs: a, Entries: s.Width}
	if pick != nil {
		p.Out, p.TopK = tensor.Tensor{}, r.Out(tensor.I32, n, k)
		p.Arrived = r.In(vectors.New(vectors.I32, n, indexer.SelectCounters), tensor.I32)
		memory := r.Out(tensor.U8, int(pick.ScratchBytes(n)))
		out = map[string]tensor.Tensor{"topk": p.TopK, "arrived": p.Arrived}
		if s.slots != nil {
			p.Slots = indexer.PickSlots{BlockTable: r.In(vectors.FromI32(s.slots, a.BlockTable.Shape[0], len(s.slots)/a.BlockTable.Shape[0]), tensor.I32),
				Slots: r.Out(tensor.I32, n, k), Lens: r.Out(tensor.I32, n)}
			out["slots"], out["slots' lens"] = p.Slots.Slots, p.Slots.Lens
		}
		if r.Err() == nil {
			p.Scratch = memory.View()
		}
	}
	r.Do(func(rec *vk.Recorder) error {
		if quant != nil {
			if err := quant.Record(rec, q); err != nil {
				return err
			}
		}
		if pick != nil {
			return pick.Record(rec, p)
		}
		return logits.Record(rec, a)
	})
	return must[verify.Arrays](t)(r.Results(out))
}

func TestLogitsRaw(t *testing.T) {
	if dev := testkit.Device(t); len(dev.Caps().Missing(shaders.Requires("idx_logits_lanes_raw_cm"))) > 0 {
		t.Skip(dev.Adapter().Name + " has no matrices in lanes")
	}
	t.Run("fp8", func(t *testing.T) { testkit.TestOp(t, "indexer_logits_raw_fp8") })
	t.Run("mxfp4", func(t *testing.T) { testkit.TestOp(t, "indexer_logits_raw_mxfp4") })
}

// A Logits of raw queries takes no others, nor parts of them.
func TestLogitsRawArguments(t *testing.T) {
	dev := testkit.Device(t)
	op, err := indexer.NewLogits(dev, indexer.LogitsConfig{Heads: 5, Format: cache.IndexKeyFP8, Page: 64, Raw: true})
	if errors.Is(err, vk.ErrMissingFeature) {
		t.Skip(err)
	}
	require.NoError(t, err)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	s := newRawScene(t, cache.IndexKeyFP8, rand.New(rand.NewPCG(8, 8)), 2, 5, 70)
	given := uploadLogits(r, s.LogitsHost)
	a := given
	a.Q, a.Weights, a.Raw = tensor.Tensor{}, tensor.Tensor{}, s.upload(r)
	require.NoError(t, r.Err())
	type logitsArgs = indexer.LogitsArgs
	testkit.Changes[logitsArgs]{
		"Q":             {func(a *logitsArgs) { a.Q = given.Q }},
		"Weights":       {func(a *logitsArgs) { a.Weights = given.Weights }},
		"Raw.Q":         {func(a *logitsArgs) { a.Raw = indexer.RawQueries{} }, func(a *logitsArgs) { a.Raw.Q.DType = tensor.F16 }},
		"Raw.Weights":   {func(a *logitsArgs) { a.Raw.Weights = given.Weights }},
		"Raw.Positions": {func(a *logitsArgs) { a.Raw.Positions = a.Raw.Positions.Rows(0, 1) }},
		"Raw.Table":     {func(a *logitsArgs) { a.Raw.Table.Shape = []int{0, 64} }},
		"Raw.HeadScale": {func(a *logitsArgs) { a.Raw.HeadScale = -1 }},
		"Lens":          {func(a *logitsArgs) { a.Lens = tensor.Tensor{} }},
	}.Refuse(t, dev, op.Record, a)
}

// Scores of queries that their kernel turns and quantises have the bits of scores of
// queries that were quantised by a launch of their own, and so have selections.
func TestLogitsRawBits(t *testing.T) {
	dev := testkit.Device(t)
	most, heads := 64, 64 // with as many as there may be, queries of FP8 are kept
	if dev.Adapter().Type == vk.TypeCPU {
		most, heads = 15, 5
	}
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 11))
	for _, c := range []struct {
		format cache.IndexKeyFormat
		heads  int
		few    bool
	}{{cache.IndexKeyFP8, heads, true}, {cache.IndexKeyFP8, most, false}, {cache.IndexKeyMXFP4, heads, true}} {
		format, heads := c.format, c.heads
		cfg := indexer.LogitsConfig{Heads: heads, Format: format, Page: 64, Raw: true, Few: c.few}
		raw, err := indexer.NewLogits(dev, cfg)
		if lavapipe := dev.Adapter().DriverName == "llvmpipe"; errors.Is(err, vk.ErrMissingFeature) && !(lavapipe && dev.Caps().Features["coopmat.f16.f32"]) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		cfg.Raw = false
		plain := must[*indexer.Logits](t)(indexer.NewLogits(dev, cfg))
		for _, tokens := range []int{1, 2, 8, 33} {
			t.Run(fmt.Sprintf("%v/%d/%d", format, heads, tokens), func(t *testing.T) {
				s := newRawScene(t, format, rng, tokens, heads, 333)
				s.First = 16 * (tokens % 2)
				got, want := s.results(t, dev, true, raw, nil, 0)["logits"].F32(), s.results(t, dev, false, plain, nil, 0)["logits"].F32()
				for i := range got {
					if g, w := math.Float32bits(got[i]), math.Float32bits(want[i]); g != w {
						t.Fatalf("token %d, entry %d: bits %08x, want %08x", i/s.Width, s.First+i%s.Width, g, w)
					}
				}
			})
		}
		if format == cache.IndexKeyMXFP4 {
			continue // selections do not differ between formats
		}
		// With tops, in two rounds of rows.
		const k = 65
		s := newRawScene(t, format, rng, 70, heads, 10204)
		pick := func(raw bool) []int32 {
			cfg := indexer.SelectConfig{K: k, Rows: 64, Segment: 20480, Logits: cfg}
			cfg.Logits.Raw = raw
			return s.results(t, dev, raw, nil, must[*indexer.Select](t)(indexer.NewSelect(dev, cfg)), k)["topk"].I32()
		}
		assert.True(t, slices.Equal(pick(true), pick(false)), "selections differ")
	}
}
