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
		Q: testkit.Upload(t, dev, tensor.BF16, c.q, n, c.heads, cache.D), KV: testkit.Upload(t, dev, tensor.BF16, c.kv, n, cache.D),
		Slots: testkit.Upload(t, dev, tensor.I64, c.slots, len(c.slots)), Positions: testkit.Upload(t, dev, tensor.I32, c.positions, n),
		Table: testkit.Upload(t, dev, tensor.F32, c.table, len(c.table)/cache.RopeDim, cache.RopeDim),
		Cache: cache.KVCache{Layout: c.layout,
			Pool: testkit.Upload(t, dev, tensor.U8, bytes.Repeat([]byte{0xFF}, c.pages*c.layout.Stride), c.pages, c.layout.Stride)},
	}
}

// run records an operation with the operands, which change may change, and returns queries and
// pool.
func (c qInsertCase) run(t *testing.T, dev *vk.Device, cfg projection.QInsertConfig, change func(a *projection.QInsertArgs)) []byte {
	t.Helper()
	op, a := must[*projection.QInsert](t)(projection.NewQInsert(dev, cfg)), c.args(t, dev)
	q := a.Q
	if change != nil {
		change(&a)
	}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return bytesOf(t, q, a.Cache.Pool)
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
	q, pool := testkit.Download[uint16](t, a.Q), testkit.Download[byte](t, a.Cache.Pool)
	for _, v := range opkit.Builds("proj_q_insert") {
		op, err := projection.NewQInsert(dev, projection.QInsertConfig{Page: 2, Variant: v.Name})
		if errors.Is(err, vk.ErrMissingFeature) {
			t.Log(err)
			continue
		}
		require.NoError(t, err)
		b := c.args(t, dev)
		parts := testkit.Upload(t, dev, tensor.BF16, c.q, n, heads, cache.D)
		b.Q = parts
		do(t, dev, func(rec *vk.Recorder) error {
			for i := range n {
				one := b
				one.Q, one.KV = b.Q.Rows(i, i+1), b.KV.Rows(i, i+1)
				one.Slots, one.Positions = testkit.Upload(t, dev, tensor.I64, c.slots[i:i+1], 1), testkit.Upload(t, dev, tensor.I32, c.positions[i:i+1], 1)
				if err := op.Record(rec, one); err != nil {
					return err
				}
			}
			return nil
		})
		assert.True(t, slices.Equal(testkit.Download[uint16](t, b.Q), q) &&
			bytes.Equal(testkit.Download[byte](t, b.Cache.Pool), pool), "%s: tokens one by one have other bits", v.Name)
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
			x.KVWeight = testkit.Upload(t, dev, tensor.F32, numfmt.BF16DecodeSlice(nil, normal(rng, cache.D)), cache.D)
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
		want := bytesOf(t, a.Q, a.Cache.Pool)
		for _, v := range opkit.Builds("proj_q_insert") {
			cfg := projection.QInsertConfig{Page: 2, Variant: v.Name, KVNorm: norm}
			fused, err := projection.NewQInsert(dev, cfg)
			if errors.Is(err, vk.ErrMissingFeature) {
				t.Log(err)
				continue
			}
			require.NoError(t, err)
			got := c.run(t, dev, cfg, func(b *projection.QInsertArgs) {
				b.KV, b.KVAt, b.KVWeight = x.KV, x.KVAt, x.KVWeight
				bad := *b
				bad.KVWeight = tensor.Tensor{}
				refuses(t, dev, "KVWeight", func(rec *vk.Recorder) error { return fused.Record(rec, bad) })
			})
			assert.True(t, bytes.Equal(want, got), "%s, weights of %v: other bits than norm and insertion apart", v.Name, norm)
		}
	}
}

// Without slots queries are as they would be and the cache stays as it was; without queries it gets
// the same rows.
func TestQInsertAbsent(t *testing.T) {
	dev := testkit.Device(t)
	c := newQInsertCase(rand.New(rand.NewPCG(9, 10)), 3, 2)
	cfg, queries := projection.QInsertConfig{Page: 2}, 2*len(c.q)
	both := c.run(t, dev, cfg, nil)
	noSlots := c.run(t, dev, cfg, func(a *projection.QInsertArgs) { a.Slots.Shape = []int{0} })
	noQueries := c.run(t, dev, cfg, func(a *projection.QInsertArgs) { a.Q = tensor.Tensor{} })
	none := c.run(t, dev, cfg, func(a *projection.QInsertArgs) {
		a.Slots.Shape, a.Q.Shape, a.KV.Shape, a.Positions.Shape = []int{0}, []int{0, 2, cache.D}, []int{0, cache.D}, []int{0}
	})
	assert.Equal(t, both[:queries], noSlots[:queries])
	assert.Equal(t, none[queries:], noSlots[queries:], "the cache has changed")
	assert.Equal(t, none[:queries], noQueries[:queries])
	assert.Equal(t, both[queries:], noQueries[queries:])
	assert.NotEqual(t, both[:queries], none[:queries])
	assert.NotEqual(t, both[queries:], none[queries:])
}

func TestQInsertArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, projection.NewQInsert, map[string]projection.QInsertConfig{
		"no page": {}, "page": {Page: -1}, "eps": {Page: 2, Eps: -1}, "norm": {Page: 2, KVNorm: tensor.F16},
	})
	op := must[*projection.QInsert](t)(projection.NewQInsert(dev, projection.QInsertConfig{Page: 2}))
	type qInsertArgs = projection.QInsertArgs
	testkit.Changes[qInsertArgs]{
		"Q": {func(a *qInsertArgs) { a.Q.Shape = []int{3, 4, 256} }, func(a *qInsertArgs) { a.Q.Shape = []int{3, 0, 512} }},
		"KV": {func(a *qInsertArgs) { a.KV.Shape = []int{2, 512} },
			func(a *qInsertArgs) { a.KVAt = 8 }, func(a *qInsertArgs) { a.Q, a.KV = tensor.Tensor{}, tensor.Tensor{} }},
		"KVWeight": {func(a *qInsertArgs) { a.KVWeight = a.Table }},
		"Slots": {func(a *qInsertArgs) {
			a.Q.Shape, a.KV.Shape, a.Positions.Shape = []int{2, 2, 512}, []int{2, 512}, []int{2}
		}},
		"Table":             {func(a *qInsertArgs) { a.Table.Shape = []int{0, 64} }},
		"Cache.Pool":        {func(a *qInsertArgs) { a.Cache.Layout.Stride = 1736 }},
		"Stride":            {func(a *qInsertArgs) { a.Cache.Layout.Stride, a.Cache.Pool.Shape = 1004, []int{3, 1004} }},
		"Cache.Layout.Page": {func(a *qInsertArgs) { a.Cache.Layout.Page = 1 }},
	}.Refuse(t, dev, op.Record, newQInsertCase(rand.New(rand.NewPCG(1, 1)), 3, 2).args(t, dev))
}
