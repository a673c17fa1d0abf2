package attention_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestPrefill(t *testing.T) { testkit.TestOp(t, "flashmla_sparse_prefill") }

func TestPrefillDots(t *testing.T) { testkit.TestDots(t, "flashmla_sparse_prefill") }

// sparse is a prefill in host memory.
type sparse struct {
	tokens, heads, rows, width int
	q, kv                      []uint16
	idx, lens                  []int32
}

// newSparse makes random operands, some of the indices those of no row.
func newSparse(rng *rand.Rand, tokens, heads, rows, width int, lens []int32) sparse {
	s := sparse{tokens, heads, rows, width, normal(rng, tokens*heads*cache.D), normal(rng, rows*cache.D), make([]int32, tokens*width), lens}
	for i := range s.idx {
		s.idx[i] = int32(rng.IntN(rows+4)) - 2
	}
	return s
}

// each runs a test for every variant that the device has, but for those left out.
func (s sparse) each(t *testing.T, dev *vk.Device, f func(t *testing.T, variant string)) {
	for _, v := range opkit.Builds("attn_prefill") {
		if err := attention.CanDecode(dev.Adapter(), opkit.TwoPass+v.Name, s.heads); err != nil {
			t.Logf("left out: %v", err)
		} else if !testkit.LeftOut(v.Name) {
			t.Run(v.Name, func(t *testing.T) { f(t, v.Name) })
		}
	}
}

// args places the operands.
func (s sparse) args(r *verify.Rig, op *attention.Prefill) attention.PrefillArgs {
	return attention.PrefillArgs{
		Q: r.In(vectors.FromU16(s.q, s.tokens, s.heads, cache.D), tensor.BF16), KV: r.In(vectors.FromU16(s.kv, s.rows, cache.D), tensor.BF16),
		Indices: r.In(vectors.FromI32(s.idx, s.tokens, s.width), tensor.I32), Lens: r.In(vectors.FromI32(s.lens, s.tokens), tensor.I32),
		Out: r.Out(tensor.BF16, s.tokens, s.heads, cache.D), MaxLogits: r.Out(tensor.F32, s.tokens, s.heads),
		LSE: r.Out(tensor.F32, s.tokens, s.heads), Scratch: r.Scratch(op.ScratchBytes(s.tokens, s.width)),
	}
}

// run runs an operation, which norms the queries by a norm that there is.
func (s sparse) run(t *testing.T, dev *vk.Device, cfg attention.PrefillConfig, norm func(r *verify.Rig) attention.QueryNorm) verify.Arrays {
	t.Helper()
	op := must[*attention.Prefill](t)(attention.NewPrefill(dev, cfg))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := s.args(r, op)
	if norm != nil {
		a.Norm = norm(r)
	}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out, "max": a.MaxLogits, "lse": a.LSE}))
}

// check holds what a variant gave against the reference.
func (s sparse) check(t *testing.T, variant string, got verify.Arrays) {
	t.Helper()
	out, maxLogits, lse := attention.PrefillRef(s.q, s.heads, s.kv, s.idx, s.width, s.lens, nil, attention.DefaultScale)
	r := verify.NewComparison(verify.ClassTolerance).
		CloseWeighted("out", got["out"], vectors.FromF32(out, s.tokens, s.heads, cache.D), verify.PrefillOut, sides(variant),
			func() ([]float32, error) {
				return attention.PrefillSpreadRef(s.q, s.heads, s.kv, s.idx, s.width, s.lens, nil, attention.DefaultScale), nil
			}).
		Close("max_logits", got["max"], vectors.FromF32(maxLogits, s.tokens, s.heads), verify.PrefillLSE).
		Close("lse", got["lse"], vectors.FromF32(lse, s.tokens, s.heads), verify.PrefillLSE).Result()
	assert.True(t, r.Pass, r.Detail)
}

// Rows that are split give the result with any number of parts, the largest score among it, and the
// same bits every time; also with enough heads that the kernels in lanes are taken where lanes are
// known, and where rows lie so that lanes load them themselves, as far as lanes hold what
// lavapipe's do.
func TestPrefillSplits(t *testing.T) {
	prefillSplits(t, 9, 0, 1, 2, 5, 10, 100)
	prefillSplits(t, 33, 1, 5)
	dev := testkit.Device(t)
	if !dev.Caps().Features["coopmat.f16.f32"] {
		return
	}
	attention.ByRows(func() {
		op := must[*attention.Prefill](t)(attention.NewPrefill(dev, attention.PrefillConfig{Heads: 9,
			Variant: opkit.CM, OnDemand: true}))
		assert.Equal(t, dev.Adapter().Type == vk.TypeCPU, attention.Rows(op) == 2)
		prefillSplits(t, 9, 1, 5)
	})
}

func prefillSplits(t *testing.T, heads int, parts ...int) {
	dev := testkit.Device(t)
	s := newSparse(rand.New(rand.NewPCG(testkit.Seed(t), 1)), 3, heads, 40, 77, []int32{77, 0, 20})
	s.each(t, dev, func(t *testing.T, v string) {
		for _, splits := range parts {
			t.Run(subtest(heads, splits), func(t *testing.T) {
				cfg := attention.PrefillConfig{Heads: heads, Variant: v, Splits: splits, Workgroups: 8 + splits%2*1000}
				got := s.run(t, dev, cfg, nil)
				s.check(t, v, got)
				assert.Equal(t, got["out"].Data, s.run(t, dev, cfg, nil)["out"].Data, "a second run gives other bits")
			})
		}
	})
}

// Scores that grow along the list by more than a weight's type can hold, and a list whose
// first rows do not count: a reference taken from the first rows does not do.
func TestPrefillGrowingScores(t *testing.T) {
	dev := testkit.Device(t)
	const rows = 50
	s := newSparse(rand.New(rand.NewPCG(testkit.Seed(t), 2)), 2, 33, rows, rows, []int32{rows, rows})
	for r := range rows {
		for d := range cache.D { // scores of head 0 of token 0: up to 90 in base 2
			x := numfmt.BF16Decode(s.kv[r*cache.D+d])/8 + numfmt.BF16Decode(s.q[d])*float32(r)/20
			s.kv[r*cache.D+d] = numfmt.BF16Encode(x)
		}
		s.idx[r] = int32(r)
		if s.idx[rows+r] = int32(r); r < 20 {
			s.idx[rows+r] = -1
		}
	}
	s.each(t, dev, func(t *testing.T, v string) {
		s.check(t, v, s.run(t, dev, attention.PrefillConfig{Heads: s.heads, Variant: v, Splits: 1}, nil))
	})
}

// Queries normed and turned on the way have the bits of a launch of their own.
func TestPrefillNorm(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 11))
	c := newRawCase(rng, 4, 21)
	s := newSparse(rng, c.tokens, c.heads, 30, 45, []int32{45, 0, 20, 33}) // the second token's output is zeros, which stay
	s.q = c.q
	normed, done := s, 0
	normed.q = c.normed(t, dev)
	s.each(t, dev, func(t *testing.T, v string) {
		for _, splits := range []int{1, 3} {
			t.Run(subtest(splits), func(t *testing.T) {
				cfg := attention.PrefillConfig{Heads: c.heads, Variant: v, Splits: splits, Workgroups: 1, Norm: true, OnDemand: true}
				op := must[*attention.Prefill](t)(attention.NewPrefill(dev, cfg))
				r := verify.NewRig(t.Context(), dev)
				defer r.Close()
				a := s.args(r, op)
				a.Norm = c.norm(r)
				if !op.NormsQueries(c.tokens, s.width) {
					refuses(t, dev, "Norm", func(rec *vk.Recorder) error { return op.Record(rec, a) })
					return
				}
				done++
				testkit.Changes[attention.PrefillArgs]{
					"Norm.Eps":       {func(a *attention.PrefillArgs) { a.Norm.Eps = -1 }},
					"Norm.Positions": {func(a *attention.PrefillArgs) { a.Norm = attention.QueryNorm{} }},
				}.Refuse(t, dev, op.Record, a)
				got := s.run(t, dev, cfg, c.norm)
				cfg.Norm = false
				c.same(t, normed.run(t, dev, cfg, nil)["out"].U16(), got["out"].U16())
			})
		}
	})
	normsSomewhere(t, dev, done)
}

func TestPrefillArguments(t *testing.T) {
	dev := testkit.Device(t)
	for _, cfg := range []attention.PrefillConfig{{}, {Heads: 129}, {Heads: 1, Scale: -1}, {Heads: 1, Splits: -1}, {Heads: 1, Variant: "x"}} {
		_, err := attention.NewPrefill(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, "%+v", cfg)
	}
	op := must[*attention.Prefill](t)(attention.NewPrefill(dev, attention.PrefillConfig{Heads: 2, Variant: opkit.Base, Splits: 3}))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	good := attention.PrefillArgs{
		Q: r.Out(tensor.BF16, 3, 2, cache.D), KV: r.Out(tensor.BF16, 5, cache.D), Indices: r.Out(tensor.I32, 3, 40), Lens: r.Out(tensor.I32, 3),
		Sink: r.Out(tensor.F32, 2), Out: r.Out(tensor.BF16, 3, 2, cache.D), MaxLogits: r.Out(tensor.F32, 3, 2), LSE: r.Out(tensor.F32, 3, 2),
		Scratch: r.Scratch(op.ScratchBytes(3, 40)),
	}
	require.NoError(t, r.Err())
	shape := func(x tensor.Tensor, s ...int) tensor.Tensor { x.Shape = s; return x }
	testkit.Changes[attention.PrefillArgs]{
		"Q":       {func(a *attention.PrefillArgs) { a.Q = shape(a.Q, 3, 2, 256) }},
		"KV":      {func(a *attention.PrefillArgs) { a.KV.Shape = []int{5, 1, cache.D} }},
		"Scratch": {func(a *attention.PrefillArgs) { a.Scratch.Size = 16 }},
	}.Refuse(t, dev, op.Record, good)
	none := good
	none.Q, none.Out, none.Indices = shape(good.Q, 0, 2, cache.D), shape(good.Out, 0, 2, cache.D), shape(good.Indices, 0, 40)
	none.Lens, none.LSE, none.MaxLogits = shape(good.Lens, 0), shape(good.LSE, 0, 2), shape(good.MaxLogits, 0, 2)
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	assert.NoError(t, op.Record(rec, none), "no tokens")
}
