package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// patternRows is how many different rows of 512 numbers large tensors repeat.
const patternRows = 4096

// rowsBF16 makes sets of n rows of 512 numbers, of which row i of set s is row
// (i+s*n) % patternRows of the pattern.
func (r *opRig) rowsBF16(n int, shape ...int) (sets []tensor.Tensor, pattern []uint16) {
	pattern = r.normalBF16(patternRows * projection.D)
	flat := r.out(tensor.BF16, r.sets*n, projection.D)
	if r.err != nil {
		return make([]tensor.Tensor, r.sets), pattern
	}
	r.err = r.fill(flat, bytesOf(pattern))
	for s := range r.sets {
		t := flat.Rows(s*n, (s+1)*n)
		t.Shape = shape
		sets = append(sets, t)
	}
	return sets, pattern
}

// rowOf is a row of a set of rowsBF16.
func rowOf(pattern []uint16, row int) []uint16 {
	return pattern[row%patternRows*projection.D:][:projection.D]
}

// turns makes the table of angles, and positions of t tokens in it.
func (r *opRig) turns(t int) (table tensor.Tensor, rope []float32, positions []int32) {
	rope = r.normal(ropeRows * projection.RopeDim)
	positions = make([]int32, t)
	for i := range positions {
		positions[i] = r.rng.Int32N(ropeRows)
	}
	return put(r, tensor.F32, rope, ropeRows, projection.RopeDim), rope, positions
}

// slotsOf makes a pool with room for t rows in every set, and for every set t slots in
// random order, no two alike.
func (r *opRig) slotsOf(t int) (cache.KVCache, [][]int64, error) {
	layout, err := cache.NewLayout(page, 0)
	if err != nil {
		return cache.KVCache{}, nil, err
	}
	pages := (r.sets*t + page - 1) / page
	pool, err := r.pages(pages, layout.Stride, make([]byte, layout.Stride))
	order := r.rng.Perm(pages * page)
	sets := make([][]int64, r.sets)
	for s := range sets {
		for _, slot := range order[s*t:][:t] {
			sets[s] = append(sets[s], int64(slot))
		}
	}
	return cache.KVCache{Pool: pool, Layout: layout}, sets, err
}

// slotBytes are the 584 bytes of a slot.
func slotBytes(pool []byte, l cache.Layout, slot int64) []byte {
	row := append([]byte(nil), pool[l.RowOffset(slot):][:cache.RowBytes]...)
	return append(row, pool[l.ScaleOffset(slot):][:cache.ScaleBytes]...)
}

// once is the check of the last set: it is run, and compare looks at what it wrote.
func (r *opRig) once(record func(rec *vk.Recorder, i int) error, compare func(ctx context.Context, set int, c *verify.Comparison) error) {
	r.check = func(ctx context.Context) (verify.Result, error) {
		set := r.sets - 1
		if err := run(ctx, r.dev, func(rec *vk.Recorder) error { return record(rec, set) }); err != nil {
			return verify.Result{}, err
		}
		c := verify.NewComparison(verify.ClassTolerance)
		if err := compare(ctx, set, c); err != nil {
			return verify.Result{}, err
		}
		return c.Result(), nil
	}
}

func (r *opRig) insertK(t int) error {
	bytes := t * (2*projection.D + 8 + cache.SlotBytes)
	r.rotate(bytes)
	kvCache, slots, err := r.slotsOf(t)
	if err != nil {
		return err
	}
	op, err := cache.NewInsert(r.dev, cache.InsertConfig{Page: page, MaxBytes: kvCache.Pool.Bytes()})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	k, pattern := r.rowsBF16(t, t, projection.D)
	var sets []cache.InsertArgs
	for s := range r.sets {
		sets = append(sets, cache.InsertArgs{K: k[s], Slots: put(r, tensor.I64, slots[s], t), Cache: kvCache})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.once(func(rec *vk.Recorder, i int) error { // what is not written must not pass
		return errors.Join(rec.Fill(kvCache.Pool.View(), 0xffffffff), record(rec, i))
	}, func(ctx context.Context, set int, c *verify.Comparison) error {
		pool, err := fetch[byte](ctx, kvCache.Pool)
		if err != nil {
			return err
		}
		for _, i := range some(16, t) {
			want := make([]byte, kvCache.Layout.Stride)
			if err := cache.InsertRef(want, kvCache.Layout, rowOf(pattern, set*t+i), []int64{0}); err != nil {
				return err
			}
			c.Exact(fmt.Sprintf("row of token %d", i), vectors.FromU8(slotBytes(pool, kvCache.Layout, slots[set][i]), cache.SlotBytes),
				vectors.FromU8(slotBytes(want, kvCache.Layout, 0), cache.SlotBytes))
		}
		return nil
	})
	return r.err
}

// gatherK unpacks rows slots of each request, in pages that lie in random order.
func (r *opRig) gatherK(requests, rows int) error {
	layout, err := cache.NewLayout(page, 0)
	if err != nil {
		return err
	}
	width := (rows + page - 1) / page
	bytes := requests * rows * (cache.SlotBytes + 2*projection.D)
	r.rotate(bytes)
	const different = 64 // pages
	pattern, slots := make([]byte, different*layout.Stride), make([]int64, different*page)
	for i := range slots {
		slots[i] = int64(i)
	}
	if err := cache.InsertRef(pattern, layout, r.normalBF16(len(slots)*projection.D), slots); err != nil {
		return err
	}
	pool, err := r.pages(r.sets*requests*width, layout.Stride, pattern)
	if err != nil {
		return err
	}
	out := r.out(tensor.BF16, requests, rows, projection.D)
	op, err := cache.NewGather(r.dev, cache.GatherConfig{Page: page, MaxBytes: max(pool.Bytes(), out.Bytes())})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	lens := make([]int32, requests)
	for i := range lens {
		lens[i] = int32(rows)
	}
	free := r.shuffledPages(r.sets * requests * width)
	var sets []cache.GatherArgs
	for s := range r.sets {
		sets = append(sets, cache.GatherArgs{Out: out, Cache: cache.KVCache{Pool: pool, Layout: layout}, SeqLens: put(r, tensor.I32, lens, requests),
			Table: put(r, tensor.I32, free[s*requests*width:][:requests*width], requests, width)})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.once(record, func(ctx context.Context, set int, c *verify.Comparison) error {
		table := repeated(free[set*requests*width:][:requests*width], different)
		want := make([]uint16, requests*rows*projection.D)
		if err := cache.GatherRef(want, rows, pattern, layout, lens, nil, table, width, 0); err != nil {
			return err
		}
		got, err := fetch[uint16](ctx, out)
		if err != nil {
			return err
		}
		c.Exact("rows", vectors.FromU16(got, requests, rows, projection.D), vectors.FromU16(want, requests, rows, projection.D))
		return nil
	})
	return r.err
}

func (r *opRig) qkvNorm(t, rank int) error {
	bytes := 2*2*t*(rank+projection.D) + 2*(rank+projection.D)
	r.rotate(bytes)
	op, err := projection.NewQKVNorm(r.dev, projection.QKVNormConfig{Rank: rank})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	width := rank + projection.D
	qw, kw := r.normalBF16(rank), r.normalBF16(projection.D)
	weights, kvWeights := put(r, tensor.BF16, qw, rank), put(r, tensor.BF16, kw, projection.D)
	var sets []projection.QKVNormArgs
	var x []uint16 // of the last set
	for range r.sets {
		x = r.normalBF16(t * width)
		both := put(r, tensor.BF16, x, t, width)
		sets = append(sets, projection.QKVNormArgs{QR: both, KV: both, KVAt: rank, QRWeight: weights, KVWeight: kvWeights,
			QROut: r.out(tensor.BF16, t, rank), KVOut: r.out(tensor.BF16, t, projection.D)})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.once(record, func(ctx context.Context, set int, c *verify.Comparison) error {
		for _, part := range []struct {
			name   string
			out    tensor.Tensor
			at, n  int
			weight []uint16
		}{{"query", sets[set].QROut, 0, rank, qw}, {"K", sets[set].KVOut, rank, projection.D, kw}} {
			got, err := fetch[uint16](ctx, part.out)
			if err != nil {
				return err
			}
			w := make([]float32, part.n)
			for i, b := range vectors.FromU16(part.weight, part.n).Float64s() {
				w[i] = float32(b)
			}
			for _, i := range some(16, t) {
				want := make([]uint16, part.n)
				if err := projection.QKVNormRef(x[i*width+part.at:][:part.n], w, projection.DefaultEps, want); err != nil {
					return err
				}
				c.BF16Steps(fmt.Sprintf("%s row of token %d", part.name, i), vectors.FromU16(got[i*part.n:][:part.n], part.n), vectors.FromU16(want, part.n), 1)
			}
		}
		return nil
	})
	return r.err
}

func (r *opRig) qInsert(t, heads int) error {
	bytes := t * (2*heads*2*projection.D + 2*projection.D + 8 + 4 + 4*projection.RopeDim + cache.SlotBytes)
	r.rotate(bytes)
	kvCache, slots, err := r.slotsOf(t)
	if err != nil {
		return err
	}
	q, pattern := r.rowsBF16(t*heads, t, heads, projection.D)
	kv, kvPattern := r.rowsBF16(t, t, projection.D)
	op, err := projection.NewQInsert(r.dev, projection.QInsertConfig{Page: page, MaxBytes: max(kvCache.Pool.Bytes(), q[0].Bytes())})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	table, rope, positions := r.turns(t)
	at := put(r, tensor.I32, positions, t)
	var sets []projection.QInsertArgs
	for s := range r.sets {
		sets = append(sets, projection.QInsertArgs{Q: q[s], KV: kv[s], Slots: put(r, tensor.I64, slots[s], t), Positions: at, Table: table, Cache: kvCache})
	}
	// A query that was normed is normed again, which costs the same.
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.once(record, func(ctx context.Context, set int, c *verify.Comparison) error {
		pool, err := fetch[byte](ctx, kvCache.Pool)
		if err != nil {
			return err
		}
		for _, i := range some(4, t) {
			got, err := fetch[uint16](ctx, q[set].Rows(i, i+1))
			if err != nil {
				return err
			}
			var want []uint16
			for h := range heads {
				want = append(want, rowOf(pattern, (set*t+i)*heads+h)...)
			}
			row := make([]byte, kvCache.Layout.Stride)
			if err := projection.QInsertRef(want, heads, rowOf(kvPattern, set*t+i), []int64{0}, positions[i:i+1], rope, projection.DefaultEps, row, kvCache.Layout); err != nil {
				return err
			}
			c.Close(fmt.Sprintf("query of token %d", i), vectors.FromU16(got, heads, projection.D), vectors.FromU16(want, heads, projection.D), verify.Tolerance{Abs: 1.0 / 32, Rel: 1.0 / 64}).
				Exact(fmt.Sprintf("row of token %d", i), vectors.FromU8(slotBytes(pool, kvCache.Layout, slots[set][i]), cache.SlotBytes),
					vectors.FromU8(slotBytes(row, kvCache.Layout, 0), cache.SlotBytes))
		}
		return nil
	})
	return r.err
}
