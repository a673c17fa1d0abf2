package attention_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// rawCase holds queries as a projection leaves them, and what turns them.
type rawCase struct {
	tokens, heads int
	q             []uint16
	positions     []int32
	table         []float32 // [rawRows, 64]
}

const rawRows, rawEps = 40, 1e-5

// newRawCase makes random queries, some of zeros, with infinities, with NaNs, with squares beyond
// binary32 and below, at positions in the table and beyond it.
func newRawCase(rng *rand.Rand, tokens, heads int) rawCase {
	positions := []int32{rawRows - 1, 3, rawRows + 7, -2}[:tokens]
	c := rawCase{tokens, heads, normal(rng, tokens*heads*cache.D), positions, make([]float32, rawRows*64)}
	clear(c.q[5*cache.D:][:cache.D])
	for i, x := range []uint16{0x7F80, 0xFFC1, 0x7F00, 0x0003} { // in four heads, of their last numbers, too
		c.q[(7+i)*cache.D+3] = x
		c.q[(12+i)*cache.D+450+9*i] = x
	}
	for i := range cache.D {
		c.q[17*cache.D+i] = c.q[17*cache.D+i]&0x807F | 0x0080 // about 2^-126
		c.q[18*cache.D+i] = c.q[18*cache.D+i]&0x807F | 0x6000 // about 2^65
	}
	for i := range c.table {
		c.table[i] = float32(rng.NormFloat64())
	}
	return c
}

// turns has the positions and the table on the device.
func (c rawCase) turns(r *verify.Rig) (positions, table tensor.Tensor) {
	return r.In(vectors.FromI32(c.positions, c.tokens), tensor.I32), r.In(vectors.FromF32(c.table, rawRows, 64), tensor.F32)
}

func (c rawCase) norm(r *verify.Rig) attention.QueryNorm {
	positions, table := c.turns(r)
	return attention.QueryNorm{Eps: rawEps, Positions: positions, Table: table}
}

// normed are the queries as projection.QInsert leaves them.
func (c rawCase) normed(t *testing.T, dev *vk.Device) []uint16 {
	op := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 64, Eps: rawEps}))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	norm, none := c.norm(r), set(t, 64, c.tokens, c.q[:cache.D])
	a := projection.QInsertArgs{Q: r.In(vectors.FromU16(c.q, c.tokens, c.heads, cache.D), tensor.BF16),
		KV:        r.In(vectors.FromU16(c.q[:c.tokens*cache.D], c.tokens, cache.D), tensor.BF16),
		Slots:     r.In(vectors.FromI64(slices.Repeat([]int64{-1}, c.tokens), c.tokens), tensor.I64),
		Positions: norm.Positions, Table: norm.Table, Cache: verify.SlotSet(r, none, 0).Cache}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"q": a.Q}))["q"].U16()
}

// same demands the same bits, and names the first numbers that have others.
func (c rawCase) same(t *testing.T, want, got []uint16) {
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

// Queries normed on the way give what queries normed by a launch of its own give, bit for bit.
func TestDecodeNorm(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 9))
	c := newRawCase(rng, 3, 37)
	s := step{c.heads, c.q, set(t, 64, c.tokens, normal(rng, 61*cache.D)), set(t, 2, c.tokens, normal(rng, 40*cache.D)), nil}
	s.win.Lens[1], s.comp.Lens[1] = 0, 0
	normed, done := s, 0
	normed.q = c.normed(t, dev)
	for _, v := range variants(t, dev, c.heads) {
		for _, x := range []struct{ splits, workgroups int }{{1, 1000}, {3, 1000}, {2, 0}} { // 1000: in small groups
			t.Run(subtest(v, x), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits, cfg.Workgroups = x.splits, x.workgroups
				want, _ := normed.decode(t, dev, cfg)
				op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
				r := verify.NewRig(t.Context(), dev)
				defer r.Close()
				a := s.args(r, op)
				a.Norm = c.norm(r)
				if !op.NormsQueries(c.tokens, s.win.Width, s.comp.Width) {
					refuses(t, dev, "Norm", func(rec *vk.Recorder) error { return op.Record(rec, a) })
					return
				}
				done++
				testkit.Changes[attention.DecodeArgs]{
					"Norm.Positions": {func(a *attention.DecodeArgs) { a.Norm.Positions = tensor.Tensor{} }},
					"Norm.Table":     {func(a *attention.DecodeArgs) { a.Norm.Table.Shape = []int{0, 64} }},
					"Norm.Eps":       {func(a *attention.DecodeArgs) { a.Norm.Eps = -1 }},
					"Norm": {func(a *attention.DecodeArgs) {
						a.InverseRope = attention.InverseRope{Positions: a.Norm.Positions, Table: a.Norm.Table.Rows(1, rawRows)}
					}},
				}.Refuse(t, dev, op.Record, a)
				got, _ := runDecode(t, r, op, a)
				c.same(t, want, got)
			})
		}
	}
	normsSomewhere(t, dev, done)
}

// normsSomewhere demands that matrices of lavapipe, which the tests know, serve some case.
func normsSomewhere(t *testing.T, dev *vk.Device, done int) {
	t.Logf("normed on the way in %d cases", done)
	assert.False(t, dev.Adapter().DriverName == "llvmpipe" && done == 0 && dev.Caps().Features["coopmat.f16.f32"])
}

// The attention undoes RoPE with the bits of a launch of its own.
func TestDecodeInverseRope(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	c := newRawCase(rng, 3, 21)
	s := step{c.heads, normal(rng, c.tokens*c.heads*cache.D), set(t, 64, c.tokens, normal(rng, 61*cache.D)),
		set(t, 2, c.tokens, normal(rng, 40*cache.D)), nil}
	s.win.Lens[1], s.comp.Lens[1] = 0, 0 // 0 stays 0
	for _, v := range variants(t, dev, c.heads) {
		for _, x := range []struct{ splits, workgroups int }{{1, 1}, {1, 1000}, {2, 0}, {7, 0}} { // 1000: in small groups
			t.Run(subtest(v, x), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits, cfg.Workgroups = x.splits, x.workgroups
				want, _ := s.decode(t, dev, cfg)
				require.NoError(t, projection.InverseRopeRef(want, c.heads, c.positions, c.table))
				op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
				r := verify.NewRig(t.Context(), dev)
				defer r.Close()
				a := s.args(r, op)
				a.InverseRope.Positions, a.InverseRope.Table = c.turns(r)
				parts := func(rec *vk.Recorder) error { // who joins them undoes RoPE
					b := a
					b.LSE = tensor.Tensor{}
					_, err := op.RecordParts(rec, b)
					return err
				}
				if x.splits == 1 {
					refuses(t, dev, "Q", parts)
				} else if !strings.HasPrefix(v, opkit.TwoPass) {
					refuses(t, dev, "InverseRope", parts)
				}
				if !op.InvertsRope(c.tokens, s.win.Width, s.comp.Width) {
					refuses(t, dev, "InverseRope", func(rec *vk.Recorder) error { return op.Record(rec, a) })
					return
				}
				bad := a
				bad.InverseRope.Positions = tensor.Tensor{}
				refuses(t, dev, "InverseRope.Positions", func(rec *vk.Recorder) error { return op.Record(rec, bad) })
				got, _ := runDecode(t, r, op, a)
				c.same(t, want, got)
			})
		}
	}
}
