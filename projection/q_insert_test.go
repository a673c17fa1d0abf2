package projection_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestQInsert(t *testing.T) { testkit.TestOp(t, "fused_qnorm_rope_kv_insert") }

// turns is a table of n positions that turn every pair by an angle of its own.
func turns(rng *rand.Rand, n int) []float32 {
	table := make([]float32, n*cache.RopeDim)
	for i := range table {
		angle, pair := 2*math.Pi*rng.Float64(), i%cache.RopeDim
		if pair < cache.RopeDim/2 {
			table[i], table[i+cache.RopeDim/2] = float32(math.Cos(angle)), float32(math.Sin(angle))
		}
	}
	return table
}

// qInsertCase holds random operands of n tokens, each with a slot.
type qInsertCase struct {
	q, kv     []uint16
	slots     []int64
	positions []int32
	table     []float32
	heads     int
	layout    cache.Layout
	pages     int
}

func newQInsertCase(rng *rand.Rand, n, heads int) qInsertCase {
	c := qInsertCase{q: normal(rng, n*heads*cache.D), kv: normal(rng, n*cache.D), table: turns(rng, 9), heads: heads,
		layout: cache.Layout{Page: 2, Stride: 1728}, pages: n}
	for i, s := range rng.Perm(2 * n)[:n] {
		c.slots, c.positions = append(c.slots, int64(s)), append(c.positions, int32(i%9))
	}
	return c
}

func (c qInsertCase) args(t *testing.T, dev *vk.Device) projection.QInsertArgs {
	n := len(c.positions)
	return projection.QInsertArgs{
		Q: upload(t, dev, tensor.BF16, c.q, n, c.heads, cache.D), KV: upload(t, dev, tensor.BF16, c.kv, n, cache.D),
		Slots: upload(t, dev, tensor.I64, c.slots, len(c.slots)), Positions: upload(t, dev, tensor.I32, c.positions, n),
		Table: upload(t, dev, tensor.F32, c.table, len(c.table)/cache.RopeDim, cache.RopeDim),
		Cache: cache.KVCache{Pool: upload(t, dev, tensor.U8, bytes.Repeat([]byte{0xFF}, c.pages*c.layout.Stride), c.pages, c.layout.Stride), Layout: c.layout},
	}
}

// Turned queries keep a root mean square of 1 and the products among them: what a pair
// loses in one number it wins in the other.
func TestQInsertRef(t *testing.T) {
	c := newQInsertCase(rand.New(rand.NewPCG(3, 4)), 9, 3)
	pool := make([]byte, c.pages*c.layout.Stride)
	q := slices.Clone(c.q)
	require.NoError(t, projection.QInsertRef(q, c.heads, c.kv, c.slots, c.positions, c.table, 0, pool, c.layout))
	for i := range 9 * c.heads {
		sum := 0.0
		for _, b := range q[i*cache.D:][:cache.D] {
			sum += math.Pow(float64(numfmt.BF16Decode(b)), 2)
		}
		if math.Abs(sum/cache.D-1) > 0.01 {
			t.Errorf("head %d: mean square %g", i, sum/cache.D)
		}
	}
	assert.ErrorIs(t, projection.QInsertRef(q, 2, c.kv, c.slots, c.positions, c.table, 0, pool, c.layout), vk.ErrArgument,
		"too few heads")
	assert.ErrorIs(t, projection.QInsertRef(q, c.heads, c.kv, append(c.slots, 1), c.positions, c.table, 0, pool, c.layout),
		vk.ErrArgument, "more slots than rows")
}

// The cache gets what a rotation by hand and cache.Insert make of the same rows.
func TestQInsertUnfused(t *testing.T) {
	dev := testkit.Device(t)
	c := newQInsertCase(rand.New(rand.NewPCG(5, 6)), 17, 2)
	a := c.args(t, dev)
	op := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 2}))
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	assert.True(t, slices.Equal(download[uint16](t, a.KV), c.kv), "KV has changed")

	k := slices.Clone(c.kv)
	for i, p := range c.positions {
		row, cosSin := k[i*cache.D:][:cache.D], c.table[int(p)*cache.RopeDim:]
		for j := range cache.RopeDim / 2 {
			at := cache.NopeDim + 2*j
			e, o := numfmt.BF16Decode(row[at]), numfmt.BF16Decode(row[at+1])
			row[at] = numfmt.BF16Encode(float32(e*cosSin[j]) - float32(o*cosSin[32+j]))
			row[at+1] = numfmt.BF16Encode(float32(o*cosSin[j]) + float32(e*cosSin[32+j]))
		}
	}
	b := c.args(t, dev)
	insert := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 2}))
	ia := cache.InsertArgs{K: upload(t, dev, tensor.BF16, k, len(c.positions), cache.D), Slots: b.Slots, Cache: b.Cache}
	do(t, dev, func(rec *vk.Recorder) error { return insert.Record(rec, ia) })
	want := download[byte](t, b.Cache.Pool)
	assert.True(t, bytes.Equal(download[byte](t, a.Cache.Pool), want), "the caches differ")
	d := c.args(t, dev)
	d.Q = tensor.Tensor{}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, d) })
	assert.True(t, bytes.Equal(download[byte](t, d.Cache.Pool), want), "the caches differ where there are no queries")
}

// The bits of a token do not depend on which other tokens are in the step, nor on the
// variant.
func TestQInsertSplit(t *testing.T) {
	dev := testkit.Device(t)
	const n, heads = 6, 5
	c := newQInsertCase(rand.New(rand.NewPCG(7, 8)), n, heads)
	a := c.args(t, dev)
	do(t, dev, func(rec *vk.Recorder) error {
		return must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 2, Variant: "base"})).Record(rec, a)
	})
	q, pool := download[uint16](t, a.Q), download[byte](t, a.Cache.Pool)
	for _, v := range opkit.Builds("proj_q_insert") {
		op, err := projection.NewQInsert(dev, projection.QInsertConfig{Page: 2, Variant: v.Name})
		if errors.Is(err, vk.ErrMissingFeature) {
			t.Log(err)
			continue
		}
		require.NoError(t, err)
		b := c.args(t, dev)
		parts := upload(t, dev, tensor.BF16, c.q, n, heads, cache.D)
		b.Q = parts
		do(t, dev, func(rec *vk.Recorder) error {
			for i := range n {
				one := b
				one.Q, one.KV = b.Q.Rows(i, i+1), b.KV.Rows(i, i+1)
				one.Slots, one.Positions = upload(t, dev, tensor.I64, c.slots[i:i+1], 1), upload(t, dev, tensor.I32, c.positions[i:i+1], 1)
				if err := op.Record(rec, one); err != nil {
					return err
				}
			}
			return nil
		})
		assert.True(t, slices.Equal(download[uint16](t, b.Q), q) &&
			bytes.Equal(download[byte](t, b.Cache.Pool), pool), "%s: tokens one by one have other bits", v.Name)
	}
}

// With the norm of the K row inside, the cache gets the bytes that it gets with QKVNorm
// in front.
func TestQInsertNorm(t *testing.T) {
	dev := testkit.Device(t)
	const n, rank = 5, 64
	rng := rand.New(rand.NewPCG(11, 12))
	c := newQInsertCase(rng, n, 2)
	for _, norm := range []tensor.DType{tensor.BF16, tensor.F32} {
		x := normArgs(t, dev, rank, n)
		testkit.Put(t, x.QR, normal(rng, n*(rank+cache.D)))
		if norm == tensor.F32 {
			x.KVWeight = upload(t, dev, tensor.F32, numfmt.BF16DecodeSlice(nil, normal(rng, cache.D)), cache.D)
		} else {
			testkit.Put(t, x.KVWeight, normal(rng, cache.D))
		}
		op := must[*projection.QKVNorm](t)(projection.NewQKVNorm(dev, projection.QKVNormConfig{Rank: rank}))
		a := c.args(t, dev)
		a.KV = x.KVOut
		do(t, dev, func(rec *vk.Recorder) error {
			apart := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 2}))
			return errors.Join(op.Record(rec, x), apart.Record(rec, a))
		})
		q, pool := download[uint16](t, a.Q), download[byte](t, a.Cache.Pool)
		for _, v := range opkit.Builds("proj_q_insert") {
			fused, err := projection.NewQInsert(dev, projection.QInsertConfig{Page: 2, Variant: v.Name, KVNorm: norm})
			if errors.Is(err, vk.ErrMissingFeature) {
				t.Log(err)
				continue
			}
			require.NoError(t, err)
			b := c.args(t, dev)
			b.KV, b.KVAt, b.KVWeight = x.KV, x.KVAt, x.KVWeight
			do(t, dev, func(rec *vk.Recorder) error { return fused.Record(rec, b) })
			assert.True(t, slices.Equal(download[uint16](t, b.Q), q) &&
				bytes.Equal(download[byte](t, b.Cache.Pool), pool),
				"%s, weights of %v: other bits than norm and insertion apart", v.Name, norm)
			b.KVWeight = tensor.Tensor{}
			refuses(t, dev, "KVWeight", func(rec *vk.Recorder) error { return fused.Record(rec, b) })
		}
	}
}

// Rows without slots get their queries and leave the cache alone.
func TestQInsertNoSlots(t *testing.T) {
	dev := testkit.Device(t)
	c := newQInsertCase(rand.New(rand.NewPCG(9, 10)), 3, 2)
	op := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 2}))
	a := c.args(t, dev)
	pool := download[byte](t, a.Cache.Pool)
	a.Slots.Shape = []int{0}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	assert.True(t, bytes.Equal(download[byte](t, a.Cache.Pool), pool), "the cache has changed")
	assert.False(t, slices.Equal(download[uint16](t, a.Q), c.q), "queries are as they were")
	a.Q.Shape, a.KV.Shape, a.Positions.Shape = []int{0, 2, cache.D}, []int{0, cache.D}, []int{0}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
}

func TestQInsertArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]projection.QInsertConfig{
		"no page": {}, "page": {Page: -1}, "variant": {Page: 2, Variant: "cm"}, "eps": {Page: 2, Eps: -1},
		"norm": {Page: 2, KVNorm: tensor.F16},
		"size": {Page: 2, Variant: "base", MaxBytes: dev.Caps().MaxStorageBufferRange + 1},
	} {
		_, err := projection.NewQInsert(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 2}))
	good := newQInsertCase(rand.New(rand.NewPCG(1, 1)), 3, 2).args(t, dev)
	for arg, spoil := range map[string][]func(*projection.QInsertArgs){
		"Q": {func(a *projection.QInsertArgs) { a.Q.Shape = []int{3, 4, 256} }, func(a *projection.QInsertArgs) { a.Q.Shape = []int{3, 0, 512} }},
		"KV": {func(a *projection.QInsertArgs) { a.KV.Shape = []int{2, 512} },
			func(a *projection.QInsertArgs) { a.KVAt = 8 }, func(a *projection.QInsertArgs) { a.Q, a.KV = tensor.Tensor{}, tensor.Tensor{} }},
		"KVWeight": {func(a *projection.QInsertArgs) { a.KVWeight = a.Table }},
		"Slots": {func(a *projection.QInsertArgs) {
			a.Q.Shape, a.KV.Shape, a.Positions.Shape = []int{2, 2, 512}, []int{2, 512}, []int{2}
		}},
		"Positions":         {func(a *projection.QInsertArgs) { a.Positions.Shape = []int{2} }},
		"Table":             {func(a *projection.QInsertArgs) { a.Table.Shape = []int{0, 64} }, func(a *projection.QInsertArgs) { a.Table.Shape = []int{18, 32} }},
		"Cache.Pool":        {func(a *projection.QInsertArgs) { a.Cache.Layout.Stride = 1736 }},
		"Stride":            {func(a *projection.QInsertArgs) { a.Cache.Layout.Stride, a.Cache.Pool.Shape = 1004, []int{3, 1004} }},
		"Cache.Layout.Page": {func(a *projection.QInsertArgs) { a.Cache.Layout.Page = 1 }},
	} {
		for _, s := range spoil {
			a := good
			s(&a)
			refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
		}
	}
}
