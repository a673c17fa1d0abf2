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
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// ropeCase is a prefill of queries as a projection left them.
type ropeCase struct {
	tokens, heads, rows, width int
	q, kv                      []uint16
	idx, lens                  []int32
	positions                  []int32
	table                      []float32 // [tableRows, 64]
	eps                        float32
}

const ropeTableRows = 40

func newRopeCase(rng *rand.Rand) *ropeCase {
	c := &ropeCase{tokens: 4, heads: 21, rows: 30, width: 45, eps: 1e-5, table: make([]float32, ropeTableRows*64)}
	const d = attention.D
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
	c.positions = []int32{ropeTableRows - 1, 3, ropeTableRows + 7, -2}
	for i := range c.table {
		c.table[i] = float32(rng.NormFloat64())
	}
	return c
}

// run attends queries; change says what else is asked of the kernel.
func (c *ropeCase) run(t *testing.T, dev *vk.Device, cfg attention.PrefillConfig, q []uint16,
	change func(*verify.Rig, *attention.Prefill, *attention.PrefillArgs)) []uint16 {
	t.Helper()
	op := must[*attention.Prefill](t)(attention.NewPrefill(dev, cfg))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := attention.PrefillArgs{
		Q: r.In(vectors.FromU16(q, c.tokens, c.heads, attention.D), tensor.BF16), KV: r.In(vectors.FromU16(c.kv, c.rows, attention.D), tensor.BF16),
		Indices: r.In(vectors.FromI32(c.idx, c.tokens, c.width), tensor.I32), Lens: r.In(vectors.FromI32(c.lens, c.tokens), tensor.I32),
		Out: r.Out(tensor.BF16, c.tokens, c.heads, attention.D), Scratch: scratch(r, op.ScratchBytes(c.tokens, c.width)),
	}
	if change != nil {
		change(r, op, &a)
	}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out}))["out"].U16()
}

// angles are the positions and the table on the device.
func (c *ropeCase) angles(r *verify.Rig) attention.InverseRope {
	return attention.InverseRope{Positions: r.In(vectors.FromI32(c.positions, c.tokens), tensor.I32),
		Table: r.In(vectors.FromF32(c.table, ropeTableRows, 64), tensor.F32)}
}

// normed are the queries as projection.QInsert leaves them.
func (c *ropeCase) normed(t *testing.T, dev *vk.Device) []uint16 {
	op := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 64, Eps: c.eps}))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	angles, none := c.angles(r), set(t, 64, c.tokens, c.kv[:attention.D])
	a := projection.QInsertArgs{Q: r.In(vectors.FromU16(c.q, c.tokens, c.heads, attention.D), tensor.BF16),
		KV:        r.In(vectors.FromU16(c.q[:c.tokens*attention.D], c.tokens, attention.D), tensor.BF16),
		Slots:     r.In(vectors.FromI64(slices.Repeat([]int64{-1}, c.tokens), c.tokens), tensor.I64),
		Positions: angles.Positions, Table: angles.Table, Cache: cache.KVCache{Pool: slotSet(r, none).Cache.Pool, Layout: none.Layout}}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"q": a.Q}))["q"].U16()
}

// same demands the same bits, and names the first number that has others.
func (c *ropeCase) same(t *testing.T, want, got []uint16, what string) {
	t.Helper()
	n := 0
	for i := range want {
		if want[i] == got[i] {
			continue
		}
		if n++; n < 5 {
			t.Errorf("%s: token %d, head %d, number %d: %#x, want %#x", what, i/512/c.heads, i/512%c.heads, i%512, got[i], want[i])
		}
	}
	assert.Zero(t, n, "%s: other numbers than those of launches of their own", what)
}

// Queries normed and turned on the way in, and outputs turned back on the way out, have the bits of
// launches of their own: rows with infinities, with NaNs and with squares beyond binary32, too.
func TestPrefillRope(t *testing.T) {
	dev := testkit.Device(t)
	c := newRopeCase(rand.New(rand.NewPCG(testkit.Seed(t), 11)))
	normed := c.normed(t, dev)
	done := 0
	for _, v := range attention.PrefillVariants {
		if err := attention.CanDecode(dev.Adapter(), attention.TwoPassPrefix+v.Name, c.heads); err != nil || testkit.LeftOut(v.Name) {
			continue
		}
		for _, splits := range []int{1, 3} {
			t.Run(subtest(v.Name, splits), func(t *testing.T) {
				cfg := attention.PrefillConfig{Heads: c.heads, Variant: v.Name, Splits: splits, Workgroups: 1}
				plain := c.run(t, dev, cfg, normed, nil)
				turned := slices.Clone(plain)
				require.NoError(t, projection.InverseRopeRef(turned, c.heads, c.positions, c.table))
				cfg.Rope = true
				for _, x := range []struct {
					what        string
					norms, turn bool
					want        []uint16
				}{{"normed", true, false, plain}, {"turned back", false, true, turned}, {"both", true, true, turned}} {
					q, may := normed, true
					if x.norms {
						q = c.q
					}
					got := c.run(t, dev, cfg, q, func(r *verify.Rig, op *attention.Prefill, a *attention.PrefillArgs) {
						angles := c.angles(r)
						if x.norms {
							a.Norm = attention.QueryNorm{Eps: c.eps, Positions: angles.Positions, Table: angles.Table}
						}
						if x.turn {
							a.InverseRope = angles
						}
						may = c.permits(t, dev, op, a)
					})
					if may {
						c.same(t, x.want, got, x.what)
						done++
					}
				}
			})
		}
	}
	t.Logf("%d cases", done)
	assert.False(t, dev.Adapter().DriverName == "llvmpipe" && done == 0 && dev.Caps().Features["coopmat.f16.f32"],
		"matrices of lavapipe, whose lanes are known, serve 21 heads")
}

// permits reports whether the kernel does what is asked. If not, it refuses, and a asks no more.
func (c *ropeCase) permits(t *testing.T, dev *vk.Device, op *attention.Prefill, a *attention.PrefillArgs) bool {
	record := func(a attention.PrefillArgs) func(rec *vk.Recorder) error {
		return func(rec *vk.Recorder) error { return op.Record(rec, a) }
	}
	norms, turns := op.NormsQueries(c.tokens, c.width), op.InvertsRope(c.tokens, c.width)
	switch {
	case !a.InverseRope.IsZero() && !turns:
		refuses(t, dev, "InverseRope", record(*a))
	case !a.Norm.IsZero() && !norms:
		refuses(t, dev, "Norm", record(*a))
	default:
		bad := *a
		bad.Norm.Eps = -1
		if !a.Norm.IsZero() {
			refuses(t, dev, "Norm.Eps", record(bad))
		}
		bad = *a
		bad.InverseRope.Positions = tensor.Tensor{}
		if !a.InverseRope.IsZero() {
			refuses(t, dev, "InverseRope.Positions", record(bad))
		}
		return true
	}
	a.Norm, a.InverseRope = attention.QueryNorm{}, attention.InverseRope{}
	return false
}
