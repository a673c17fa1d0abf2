package attention_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Queries normed on the way give what queries normed by a launch of its own give, bit for
// bit, those with infinities, with NaNs and with squares beyond binary32, too.
func TestDecodeNorm(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 9))
	const heads, tokens, rows, eps = 37, 3, 40, 1e-5
	q := normal(rng, tokens*heads*cache.D)
	clear(q[5*cache.D:][:cache.D])
	for i, x := range []uint16{0x7F80, 0xFFC1, 0x7F00, 0x0003} { // in four heads, of their last numbers, too
		q[(7+i)*cache.D+3] = x
		q[(12+i)*cache.D+450+9*i] = x
	}
	for i := range cache.D {
		q[17*cache.D+i] = q[17*cache.D+i]&0x807F | 0x0080 // about 2^-126
		q[18*cache.D+i] = q[18*cache.D+i]&0x807F | 0x6000 // about 2^65
	}
	s := step{heads, q, set(t, 64, tokens, normal(rng, 61*cache.D)), set(t, 2, tokens, normal(rng, 40*cache.D)), nil}
	s.win.Lens[1], s.comp.Lens[1] = 0, 0
	positions, table := []int32{rows - 1, 3, rows + 7}, make([]float32, rows*64)
	for i := range table {
		table[i] = float32(rng.NormFloat64())
	}
	insert := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 64, Eps: eps}))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	raw := projection.QInsertArgs{Q: r.In(vectors.FromU16(q, tokens, heads, cache.D), tensor.BF16), KV: r.In(vectors.FromU16(q[:tokens*cache.D], tokens, cache.D), tensor.BF16),
		Slots: r.In(vectors.FromI64([]int64{-1, -1, -1}, tokens), tensor.I64), Positions: r.In(vectors.FromI32(positions, tokens), tensor.I32),
		Table: r.In(vectors.FromF32(table, rows, 64), tensor.F32), Cache: cache.KVCache{Pool: slotSet(r, s.win).Cache.Pool, Layout: s.win.Layout}}
	r.Do(func(rec *vk.Recorder) error { return insert.Record(rec, raw) })
	normed := s
	normed.q = must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"q": raw.Q}))["q"].U16()
	done := 0
	for _, v := range variants(t, dev, heads) {
		for _, c := range []struct{ splits, workgroups int }{{1, 1000}, {3, 1000}, {2, 0}} { // 1000: in small groups
			t.Run(subtest(v, c), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits, cfg.Workgroups = c.splits, c.workgroups
				want, _ := normed.decode(t, dev, cfg)
				op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
				r := verify.NewRig(t.Context(), dev)
				defer r.Close()
				a := attention.DecodeArgs{Q: r.In(vectors.FromU16(s.q, tokens, heads, cache.D), tensor.BF16), Window: slotSet(r, s.win),
					Compressed: slotSet(r, s.comp), Out: r.Out(tensor.BF16, tokens, heads, cache.D)}
				if n := op.ScratchBytes(tokens, s.win.Width, s.comp.Width); n > 0 {
					a.Scratch = r.Out(tensor.F32, int(n+3)/4).View()
				}
				a.Norm = attention.QueryNorm{Eps: eps, Positions: r.In(vectors.FromI32(positions, tokens), tensor.I32), Table: r.In(vectors.FromF32(table, rows, 64), tensor.F32)}
				if !op.NormsQueries(tokens, s.win.Width, s.comp.Width) {
					refuses(t, dev, "Norm", func(rec *vk.Recorder) error { return op.Record(rec, a) })
					return
				}
				done++
				for name, spoil := range map[string]func(a *attention.DecodeArgs){
					"Norm.Positions": func(a *attention.DecodeArgs) { a.Norm.Positions = tensor.Tensor{} },
					"Norm.Table":     func(a *attention.DecodeArgs) { a.Norm.Table.Shape = []int{0, 64} },
					"Norm.Eps":       func(a *attention.DecodeArgs) { a.Norm.Eps = -1 },
					"Norm": func(a *attention.DecodeArgs) {
						a.InverseRope = attention.InverseRope{Positions: a.Norm.Positions.Rows(0, tokens), Table: a.Norm.Table.Rows(1, rows)}
					},
				} {
					bad := a
					spoil(&bad)
					refuses(t, dev, name, func(rec *vk.Recorder) error { return op.Record(rec, bad) })
				}
				r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
				got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out}))["out"].U16()
				if !slices.Equal(got, want) {
					n := 0
					for i := range got {
						if got[i] != want[i] {
							if n++; n < 5 {
								t.Errorf("token %d, head %d, number %d: %#x, want %#x", i/512/heads, i/512%heads, i%512, got[i], want[i])
							}
						}
					}
					t.Errorf("%d other numbers than those of two launches", n)
				}
			})
		}
	}
	t.Logf("normed on the way in %d cases", done)
	assert.False(t, (dev.Adapter().DriverName == "llvmpipe") && done == 0 && dev.Caps().Features["coopmat.f16.f32"],
		"matrices of lavapipe, which the tests know, have small groups of heads")
}
