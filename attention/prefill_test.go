package attention_test

import (
	"math/rand/v2"
	"slices"
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
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestPrefill(t *testing.T) { testkit.TestOp(t, "flashmla_sparse_prefill") }

func TestPrefillDots(t *testing.T) { testkit.TestDots(t, "flashmla_sparse_prefill") }

// Rows that are split give the result with any number of parts, the largest score
// among it, and the same bits every time.
func TestPrefillSplits(t *testing.T) {
	prefillSplits(t, 9, []int{0, 1, 2, 5, 10, 100})
}

// The same with enough heads that the kernels in lanes are taken where lanes are known.
func TestPrefillSplitsManyHeads(t *testing.T) {
	prefillSplits(t, 33, []int{1, 5})
}

// The same where rows lie so that lanes load them themselves, as far as lanes hold what lavapipe's
// do.
func TestPrefillByRows(t *testing.T) {
	dev := testkit.Device(t)
	if !dev.Caps().Features["coopmat.f16.f32"] {
		t.Skip("no matrices of f16")
	}
	attention.ByRows(func() {
		op := must[*attention.Prefill](t)(attention.NewPrefill(dev, attention.PrefillConfig{Heads: 9,
			Variant: opkit.CM, OnDemand: true}))
		assert.Equal(t, dev.Adapter().Type == vk.TypeCPU, attention.Rows(op) == 2)
		prefillSplits(t, 9, []int{1, 5})
	})
}

func prefillSplits(t *testing.T, heads int, parts []int) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	const tokens, rows, width = 3, 40, 77
	q, kv := normal(rng, tokens*heads*cache.D), normal(rng, rows*cache.D)
	idx := make([]int32, tokens*width)
	for i := range idx {
		idx[i] = int32(rng.IntN(rows+4)) - 2
	}
	lens := []int32{width, 0, 20}
	out, maxLogits, lse := attention.PrefillRef(q, heads, kv, idx, width, lens, nil, attention.DefaultScale)
	for _, v := range opkit.Builds("attn_prefill") {
		if err := attention.CanDecode(dev.Adapter(), opkit.TwoPass+v.Name, heads); err != nil {
			t.Logf("left out: %v", err)
			continue
		}
		if testkit.LeftOut(v.Name) {
			continue
		}
		for _, splits := range parts {
			t.Run(subtest(v.Name, splits), func(t *testing.T) {
				op := must[*attention.Prefill](t)(attention.NewPrefill(dev, attention.PrefillConfig{Heads: heads, Variant: v.Name, Splits: splits, Workgroups: 8 + splits%2*1000}))
				var before []byte
				for range 2 {
					r := verify.NewRig(t.Context(), dev)
					defer r.Close()
					a := attention.PrefillArgs{
						Q: r.In(vectors.FromU16(q, tokens, heads, cache.D), tensor.BF16), KV: r.In(vectors.FromU16(kv, rows, cache.D), tensor.BF16),
						Indices: r.In(vectors.FromI32(idx, tokens, width), tensor.I32), Lens: r.In(vectors.FromI32(lens, tokens), tensor.I32),
						Out: r.Out(tensor.BF16, tokens, heads, cache.D), MaxLogits: r.Out(tensor.F32, tokens, heads), LSE: r.Out(tensor.F32, tokens, heads),
						Scratch: scratch(r, op.ScratchBytes(tokens, width)),
					}
					r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
					got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out, "max": a.MaxLogits, "lse": a.LSE}))
					res := verify.NewComparison(verify.ClassTolerance).
						CloseWeighted("out", got["out"], vectors.FromF32(out, tokens, heads, cache.D), verify.PrefillOut, sides(v.Name),
							func() ([]float32, error) {
								return attention.PrefillSpreadRef(q, heads, kv, idx, width, lens, nil, attention.DefaultScale), nil
							}).
						Close("max_logits", got["max"], vectors.FromF32(maxLogits, tokens, heads), verify.PrefillLSE).
						Close("lse", got["lse"], vectors.FromF32(lse, tokens, heads), verify.PrefillLSE).Result()
					assert.True(t, res.Pass, res.Detail)
					assert.False(t, before != nil && !slices.Equal(before, got["out"].Data),
						"a second run gives other bits")
					before = got["out"].Data
				}
			})
		}
	}
}

// Scores that grow along the list by more than a weight's type can hold, and a list whose
// first rows do not count: a reference taken from the first rows does not do.
func TestPrefillGrowingScores(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	const tokens, heads, rows, width = 2, 33, 50, 50
	q, kv := normal(rng, tokens*heads*cache.D), normal(rng, rows*cache.D)
	idx := make([]int32, tokens*width)
	for r := range rows {
		for d := range cache.D { // scores of head 0 of token 0: up to 90 in base 2
			x := numfmt.BF16Decode(kv[r*cache.D+d])/8 + numfmt.BF16Decode(q[d])*float32(r)/20
			kv[r*cache.D+d] = numfmt.BF16Encode(x)
		}
		idx[r] = int32(r)
		if idx[width+r] = int32(r); r < 20 {
			idx[width+r] = -1
		}
	}
	out, maxLogits, lse := attention.PrefillRef(q, heads, kv, idx, width, nil, nil, attention.DefaultScale)
	for _, v := range opkit.Builds("attn_prefill") {
		if err := attention.CanDecode(dev.Adapter(), opkit.TwoPass+v.Name, heads); err != nil {
			t.Logf("left out: %v", err)
			continue
		}
		if testkit.LeftOut(v.Name) {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			op := must[*attention.Prefill](t)(attention.NewPrefill(dev, attention.PrefillConfig{Heads: heads, Variant: v.Name, Splits: 1}))
			r := verify.NewRig(t.Context(), dev)
			defer r.Close()
			a := attention.PrefillArgs{
				Q: r.In(vectors.FromU16(q, tokens, heads, cache.D), tensor.BF16), KV: r.In(vectors.FromU16(kv, rows, cache.D), tensor.BF16),
				Indices: r.In(vectors.FromI32(idx, tokens, width), tensor.I32), Out: r.Out(tensor.BF16, tokens, heads, cache.D),
				MaxLogits: r.Out(tensor.F32, tokens, heads), LSE: r.Out(tensor.F32, tokens, heads),
			}
			r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
			got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out, "max": a.MaxLogits, "lse": a.LSE}))
			res := verify.NewComparison(verify.ClassTolerance).
				CloseWeighted("out", got["out"], vectors.FromF32(out, tokens, heads, cache.D), verify.PrefillOut, sides(v.Name),
					func() ([]float32, error) {
						return attention.PrefillSpreadRef(q, heads, kv, idx, width, nil, nil, attention.DefaultScale), nil
					}).
				Close("max_logits", got["max"], vectors.FromF32(maxLogits, tokens, heads), verify.PrefillLSE).
				Close("lse", got["lse"], vectors.FromF32(lse, tokens, heads), verify.PrefillLSE).Result()
			assert.True(t, res.Pass, res.Detail)
		})
	}
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
		Scratch: scratch(r, op.ScratchBytes(3, 40)),
	}
	require.NoError(t, r.Err())
	shape := func(x tensor.Tensor, s ...int) tensor.Tensor { x.Shape = s; return x }
	for arg, change := range map[string]func(*attention.PrefillArgs){
		"Q":         func(a *attention.PrefillArgs) { a.Q = shape(a.Q, 3, 2, 256) },
		"KV":        func(a *attention.PrefillArgs) { a.KV.Shape = []int{5, 1, cache.D} },
		"Indices":   func(a *attention.PrefillArgs) { a.Indices = shape(a.Indices, 2, 60) },
		"MaxLogits": func(a *attention.PrefillArgs) { a.MaxLogits = shape(a.MaxLogits, 6) },
		"Scratch":   func(a *attention.PrefillArgs) { a.Scratch.Size = 16 },
	} {
		a := good
		change(&a)
		refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	}
	none := good
	none.Q, none.Out, none.Indices = shape(good.Q, 0, 2, cache.D), shape(good.Out, 0, 2, cache.D), shape(good.Indices, 0, 40)
	none.Lens, none.LSE, none.MaxLogits = shape(good.Lens, 0), shape(good.LSE, 0, 2), shape(good.MaxLogits, 0, 2)
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	assert.NoError(t, op.Record(rec, none), "no tokens")
}

// normCase is a prefill of queries as a projection left them.
type normCase struct {
	tokens, heads, rows, width int
	q, kv                      []uint16
	idx, lens                  []int32
	positions                  []int32
	table                      []float32 // [tableRows, 64]
	eps                        float32
}

const normTableRows = 40

func newNormCase(rng *rand.Rand) *normCase {
	c := &normCase{tokens: 4, heads: 21, rows: 30, width: 45, eps: 1e-5, table: make([]float32, normTableRows*64)}
	const d = cache.D
	c.q, c.kv = normal(rng, c.tokens*c.heads*d), normal(rng, c.rows*d)
	clear(c.q[5*d:][:d])
	for i, x := range []uint16{0x7F80, 0xFFC1, 0x7F00, 0x0003} { // in four heads, of their last numbers, too
		c.q[(7+i)*d+3] = x
		c.q[(12+i)*d+450+9*i] = x
	}
	for i := range d {
		c.q[17*d+i] = c.q[17*d+i]&0x807F | 0x0080 // about 2^-126
		c.q[18*d+i] = c.q[18*d+i]&0x807F | 0x6000 // about 2^65
	}
	c.idx = make([]int32, c.tokens*c.width)
	for i := range c.idx {
		c.idx[i] = int32(rng.IntN(c.rows+4)) - 2
	}
	c.lens = []int32{int32(c.width), 0, 20, 33} // the second token's output is zeros, which stay
	c.positions = []int32{normTableRows - 1, 3, normTableRows + 7, -2}
	for i := range c.table {
		c.table[i] = float32(rng.NormFloat64())
	}
	return c
}

// run attends queries, which the kernel norms or not.
func (c *normCase) run(t *testing.T, dev *vk.Device, op *attention.Prefill, q []uint16, norms bool) []uint16 {
	t.Helper()
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := c.args(r, op, q)
	if !norms {
		a.Norm = attention.QueryNorm{}
	}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out}))["out"].U16()
}

func (c *normCase) args(r *verify.Rig, op *attention.Prefill, q []uint16) attention.PrefillArgs {
	return attention.PrefillArgs{
		Q:       r.In(vectors.FromU16(q, c.tokens, c.heads, cache.D), tensor.BF16),
		KV:      r.In(vectors.FromU16(c.kv, c.rows, cache.D), tensor.BF16),
		Indices: r.In(vectors.FromI32(c.idx, c.tokens, c.width), tensor.I32), Lens: r.In(vectors.FromI32(c.lens, c.tokens), tensor.I32),
		Out: r.Out(tensor.BF16, c.tokens, c.heads, cache.D), Scratch: scratch(r, op.ScratchBytes(c.tokens, c.width)), Norm: c.norm(r),
	}
}

// norm has the positions and the table on the device.
func (c *normCase) norm(r *verify.Rig) attention.QueryNorm {
	return attention.QueryNorm{Eps: c.eps, Positions: r.In(vectors.FromI32(c.positions, c.tokens), tensor.I32),
		Table: r.In(vectors.FromF32(c.table, normTableRows, 64), tensor.F32)}
}

// refused demands an error about an argument, after a change.
func (c *normCase) refused(t *testing.T, dev *vk.Device, op *attention.Prefill, arg string, change func(*attention.QueryNorm)) {
	t.Helper()
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := c.args(r, op, c.q)
	if change != nil {
		change(&a.Norm)
	}
	refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
}

// normed are the queries as projection.QInsert leaves them.
func (c *normCase) normed(t *testing.T, dev *vk.Device) []uint16 {
	op := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 64, Eps: c.eps}))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	norm, none := c.norm(r), set(t, 64, c.tokens, c.kv[:cache.D])
	a := projection.QInsertArgs{Q: r.In(vectors.FromU16(c.q, c.tokens, c.heads, cache.D), tensor.BF16),
		KV:        r.In(vectors.FromU16(c.q[:c.tokens*cache.D], c.tokens, cache.D), tensor.BF16),
		Slots:     r.In(vectors.FromI64(slices.Repeat([]int64{-1}, c.tokens), c.tokens), tensor.I64),
		Positions: norm.Positions, Table: norm.Table, Cache: cache.KVCache{Pool: slotSet(r, none).Cache.Pool, Layout: none.Layout}}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"q": a.Q}))["q"].U16()
}

// same demands the same bits, and names the first number that has others.
func (c *normCase) same(t *testing.T, want, got []uint16) {
	t.Helper()
	n := 0
	for i := range want {
		if want[i] == got[i] {
			continue
		}
		if n++; n < 5 {
			t.Errorf("token %d, head %d, number %d: %#x, want %#x", i/512/c.heads, i/512%c.heads, i%512, got[i], want[i])
		}
	}
	assert.Zero(t, n, "other numbers than those of two launches")
}

// Queries normed and turned on the way have the bits of a launch of their own. So have rows with
// infinities, with NaNs and with squares beyond binary32.
func TestPrefillNorm(t *testing.T) {
	dev := testkit.Device(t)
	c := newNormCase(rand.New(rand.NewPCG(testkit.Seed(t), 11)))
	normed, done := c.normed(t, dev), 0
	for _, v := range opkit.Builds("attn_prefill") {
		if err := attention.CanDecode(dev.Adapter(), opkit.TwoPass+v.Name, c.heads); err != nil || testkit.LeftOut(v.Name) {
			continue
		}
		for _, splits := range []int{1, 3} {
			t.Run(subtest(v.Name, splits), func(t *testing.T) {
				cfg := attention.PrefillConfig{Heads: c.heads, Variant: v.Name, Splits: splits, Workgroups: 1, Norm: true, OnDemand: true}
				op := must[*attention.Prefill](t)(attention.NewPrefill(dev, cfg))
				if !op.NormsQueries(c.tokens, c.width) {
					c.refused(t, dev, op, "Norm", nil)
					return
				}
				done++
				c.refused(t, dev, op, "Norm.Eps", func(n *attention.QueryNorm) { n.Eps = -1 })
				c.refused(t, dev, op, "Norm.Positions", func(n *attention.QueryNorm) { *n = attention.QueryNorm{} })
				got := c.run(t, dev, op, c.q, true)
				cfg.Norm = false
				c.same(t, c.run(t, dev, must[*attention.Prefill](t)(attention.NewPrefill(dev, cfg)), normed, false), got)
			})
		}
	}
	t.Logf("normed on the way in %d cases", done)
	assert.False(t, dev.Adapter().DriverName == "llvmpipe" && done == 0 && dev.Caps().Features["coopmat.f16.f32"],
		"matrices of lavapipe, whose lanes are known, serve 21 heads")
}
