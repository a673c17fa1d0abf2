package bench

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/vectors"
	"github.com/vkmla/vkmla/internal/verify"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// kvPool makes a cache of so many slots, filled with random rows.
func (r *opRig) kvPool(slots int) (c cache.KVCache, err error) {
	if c.Layout, err = cache.NewLayout(page, 0); err != nil {
		return c, err
	}
	const rows = 32 * page
	at := make([]int64, rows)
	for i := range at {
		at[i] = int64(i)
	}
	pattern := make([]byte, c.Layout.PoolBytes(rows/page))
	if err := cache.InsertRef(pattern, c.Layout, r.normalBF16(rows*512), at); err != nil {
		return c, err
	}
	c.Pool, err = r.pages((slots+page-1)/page, c.Layout.Stride, pattern)
	return c, err
}

// slotRows brings slots of a cache to the host, packed with 584 bytes each; nothing of a
// negative one.
func (r *opRig) slotRows(k cache.KVCache, slots []int64) ([]byte, error) {
	data := make([]byte, len(slots)*cache.SlotBytes)
	if len(data) == 0 {
		return data, nil
	}
	t, err := tensor.New(r.dev, "bench check", tensor.U8, len(data))
	if err != nil {
		return nil, err
	}
	defer t.Close()
	from, to := k.Pool.View(), t.View()
	err = run(r.ctx, r.dev, func(rec *vk.Recorder) error {
		for i, s := range slots {
			if s < 0 {
				continue
			}
			at := to.Offset + uint64(i)*cache.SlotBytes
			if err := errors.Join(
				rec.Copy(to.Buffer.View(at, cache.RowBytes), from.Buffer.View(from.Offset+uint64(k.Layout.RowOffset(s)), cache.RowBytes)),
				rec.Copy(to.Buffer.View(at+cache.RowBytes, cache.ScaleBytes), from.Buffer.View(from.Offset+uint64(k.Layout.ScaleOffset(s)), cache.ScaleBytes)),
			); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = t.Download(r.ctx, data)
	}
	return data, err
}

// packed is the layout of what slotRows returns.
var packed = cache.Layout{Page: 1, Stride: cache.SlotBytes}

// once runs a launch of the first set and then looks.
func (r *opRig) once(record func(rec *vk.Recorder, i int) error, look func(c *verify.Comparison) error) (verify.Result, error) {
	if err := run(r.ctx, r.dev, func(rec *vk.Recorder) error { return record(rec, 0) }); err != nil {
		return verify.Result{}, err
	}
	c := verify.NewComparison(verify.ClassTolerance)
	if err := look(c); err != nil {
		return verify.Result{}, err
	}
	return c.Result(), nil
}

// slotLists draws different random slots for the tokens of each set.
func (r *opRig) slotLists(t int) (lists [][]int64) {
	perm := r.rng.Perm(r.sets * t)
	for s := range r.sets {
		list := make([]int64, t)
		for i := range list {
			list[i] = int64(perm[s*t+i])
		}
		lists = append(lists, list)
	}
	return lists
}

func (r *opRig) insert(t int) error {
	const bytes = 1024 + cache.SlotBytes + 8
	r.rotate(t * bytes)
	k, err := r.kvPool(r.sets * t)
	if err != nil {
		return err
	}
	op, err := cache.NewInsert(r.dev, cache.InsertConfig{Page: page, MaxBytes: k.Pool.Bytes(), Variant: r.o.Variant})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	lists := r.slotLists(t)
	var args []cache.InsertArgs
	first := append([]uint16(nil), r.normalBF16(t*512)...)
	for s, list := range lists {
		x := first
		if s > 0 {
			x = r.normalBF16(t * 512)
		}
		args = append(args, cache.InsertArgs{K: put(r, tensor.BF16, x, t, 512), Slots: put(r, tensor.I64, list, t), Cache: k})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, args[i%len(args)]) }
	r.parts = []opPart{{bytes: float64(t * bytes), record: record}}
	r.check = func(context.Context) (verify.Result, error) {
		return r.once(func(rec *vk.Recorder, i int) error {
			return errors.Join(rec.Fill(k.Pool.View(), 0xffffffff), record(rec, i))
		}, func(c *verify.Comparison) error {
			at := some(64, t)
			slots, want, own := []int64{}, make([]byte, len(at)*cache.SlotBytes), []int64{}
			var rows []uint16
			for i, n := range at {
				slots, own, rows = append(slots, lists[0][n]), append(own, int64(i)), append(rows, first[n*512:][:512]...)
			}
			got, err := r.slotRows(k, slots)
			if err == nil {
				err = cache.InsertRef(want, packed, rows, own)
			}
			c.Exact("rows", vectors.FromU8(got, len(got)), vectors.FromU8(want, len(want)))
			return err
		})
	}
	return r.err
}

func (r *opRig) gather(requests, rows int) error {
	each := rows / requests
	bytes := rows * (cache.SlotBytes + 1024)
	r.rotate(bytes)
	width := (each + page - 1) / page
	k, err := r.kvPool(r.sets * requests * width * page)
	if err != nil {
		return err
	}
	op, err := cache.NewGather(r.dev, cache.GatherConfig{Page: page, MaxBytes: max(k.Pool.Bytes(), uint64(rows)*1024), Variant: r.o.Variant})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	lens := make([]int32, requests)
	for i := range lens {
		lens[i] = int32(each)
	}
	ids := r.shuffledPages(r.sets * requests * width)
	var args []cache.GatherArgs
	lensT, out := put(r, tensor.I32, lens, requests), r.out(tensor.BF16, requests, each, 512)
	for s := range r.sets {
		args = append(args, cache.GatherArgs{Out: out, Cache: k, SeqLens: lensT, Table: put(r, tensor.I32, ids[s*requests*width:][:requests*width], requests, width)})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, args[i%len(args)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.check = func(context.Context) (verify.Result, error) {
		return r.once(func(rec *vk.Recorder, i int) error {
			return errors.Join(rec.Fill(out.View(), 0xffffffff), record(rec, i))
		}, func(c *verify.Comparison) error {
			at := some(64, rows)
			var slots []int64
			var got []uint16
			for _, n := range at {
				q, p := n/each, n%each
				slots = append(slots, int64(ids[q*width+p/page])*page+int64(p%page))
				v, err := fetch[uint16](r.ctx, tensor.Tensor{Buffer: out.Buffer, Offset: out.Offset + uint64(n)*1024, DType: tensor.BF16, Shape: []int{512}})
				if err != nil {
					return err
				}
				got = append(got, v...)
			}
			data, err := r.slotRows(k, slots)
			want, own := make([]uint16, len(got)), make([]int32, len(at))
			for i := range own {
				own[i] = int32(i)
			}
			if err == nil {
				err = cache.GatherSlotsRef(want, data, packed, own)
			}
			c.Exact("rows", vectors.FromU16(got, len(got)), vectors.FromU16(want, len(want)))
			return err
		})
	}
	return r.err
}

// turns makes positions of tokens and a table of cosines and sines for them.
func (r *opRig) turns(t int) (positions, table tensor.Tensor, p []int32, rows []float32) {
	const n = 4096
	p, rows = make([]int32, t), make([]float32, 0, n*64)
	for i := range p {
		p[i] = int32(r.rng.IntN(n))
	}
	for range n * 32 {
		sin, cos := math.Sincos(r.rng.Float64() * 2 * math.Pi)
		rows = append(rows, float32(cos), float32(sin))
	}
	for i := range n { // 32 cosines, then 32 sines
		row := rows[i*64:][:64]
		turned := append([]float32(nil), row...)
		for j := range 32 {
			row[j], row[32+j] = turned[2*j], turned[2*j+1]
		}
	}
	return put(r, tensor.I32, p, t), put(r, tensor.F32, rows, n, 64), p, rows
}

func (r *opRig) qInsert(t, heads int) error {
	bytes := t * (heads*2*1024 + 1024 + cache.SlotBytes + 8)
	r.rotate(bytes)
	k, err := r.kvPool(r.sets * t)
	if err != nil {
		return err
	}
	op, err := projection.NewQInsert(r.dev, projection.QInsertConfig{Page: page, MaxBytes: max(k.Pool.Bytes(), uint64(t*heads)*1024), Variant: r.o.Variant})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	positions, table, at, rows := r.turns(t)
	lists := r.slotLists(t)
	q := append([]uint16(nil), r.normalBF16(t*heads*512)...)
	kv := append([]uint16(nil), r.normalBF16(t*512)...)
	var args []projection.QInsertArgs
	for _, list := range lists {
		args = append(args, projection.QInsertArgs{Q: put(r, tensor.BF16, q, t, heads, 512), KV: put(r, tensor.BF16, kv, t, 512),
			Slots: put(r, tensor.I64, list, t), Positions: positions, Table: table, Cache: k})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, args[i%len(args)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.check = func(context.Context) (verify.Result, error) {
		return r.once(record, func(c *verify.Comparison) error {
			for _, n := range some(4, t) {
				want, row := append([]uint16(nil), q[n*heads*512:][:heads*512]...), make([]byte, cache.SlotBytes)
				if err := projection.QInsertRef(want, heads, kv[n*512:][:512], []int64{0}, at[n:n+1], rows, 0, row, packed); err != nil {
					return err
				}
				got, err := fetch[uint16](r.ctx, args[0].Q.Rows(n, n+1))
				if err != nil {
					return err
				}
				stored, err := r.slotRows(k, lists[0][n:n+1])
				if err != nil {
					return err
				}
				// Sums of products may be rounded to the other side.
				c.Close(fmt.Sprintf("queries of token %d", n), vectors.FromU16(got, heads, 512), vectors.FromU16(want, heads, 512), verify.Tolerance{Abs: 0x1p-7, Rel: 0x1p-7, Cos: 1e-5})
				c.Exact(fmt.Sprintf("codes of token %d", n), vectors.FromU8(stored[:448], 448), vectors.FromU8(row[:448], 448))
			}
			return nil
		})
	}
	return r.err
}

func (r *opRig) qkvNorm(t, rank int) error {
	r.rotate(t * (rank + 512) * 4)
	op, err := projection.NewQKVNorm(r.dev, projection.QKVNormConfig{Rank: rank, Variant: r.o.Variant})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	weights := append([]float32(nil), r.normal(rank)...)
	w, kvW := put(r, tensor.F32, weights, rank), put(r, tensor.F32, r.normal(512), 512)
	x := append([]uint16(nil), r.normalBF16(t*(rank+512))...)
	var args []projection.QKVNormArgs
	for range r.sets {
		in := put(r, tensor.BF16, x, t, rank+512)
		args = append(args, projection.QKVNormArgs{QR: in, KV: in, KVAt: rank, QRWeight: w, KVWeight: kvW,
			QROut: r.out(tensor.BF16, t, rank), KVOut: r.out(tensor.BF16, t, 512)})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, args[i%len(args)]) }
	r.parts = []opPart{{bytes: float64(t * (rank + 512) * 4), record: record}}
	r.check = func(context.Context) (verify.Result, error) {
		return r.once(record, func(c *verify.Comparison) error {
			for _, n := range some(16, t) {
				want := make([]uint16, rank)
				if err := projection.QKVNormRef(x[n*(rank+512):][:rank], weights, 0, want); err != nil {
					return err
				}
				got, err := fetch[uint16](r.ctx, args[0].QROut.Rows(n, n+1))
				if err != nil {
					return err
				}
				c.BF16Steps(fmt.Sprintf("token %d", n), vectors.FromU16(got, rank), vectors.FromU16(want, rank), 1)
			}
			return nil
		})
	}
	return r.err
}

func (r *opRig) outputQuant(t, heads int, pack bool) error {
	const perGroup = 8
	groups, padded := heads/perGroup, projection.PaddedTokens(t)
	cfg := projection.InverseRopeQuantConfig{Groups: groups, Heads: perGroup, MaxBytes: uint64(t*heads) * 1024, Variant: r.o.Variant}
	dt, blocks, scaleBytes := tensor.F32, perGroup*projection.HeadBlocks, 16
	if pack {
		cfg.Scales, dt, blocks, scaleBytes = projection.ScalePacked, tensor.I32, perGroup, 4
	}
	bytes := t * heads * (1024 + 512 + scaleBytes)
	r.rotate(bytes)
	op, err := projection.NewInverseRopeQuant(r.dev, cfg)
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	positions, table, at, rows := r.turns(t)
	o := append([]uint16(nil), r.normalBF16(t*heads*512)...)
	var args []projection.InverseRopeQuantArgs
	for range r.sets {
		args = append(args, projection.InverseRopeQuantArgs{O: put(r, tensor.BF16, o, t, heads, 512), Positions: positions, Table: table,
			Codes: r.out(tensor.U8, groups, t, perGroup*512), Scales: r.out(dt, groups, blocks, padded)})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, args[i%len(args)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.check = func(context.Context) (verify.Result, error) {
		return r.once(record, func(c *verify.Comparison) error {
			codes, err := fetch[byte](r.ctx, args[0].Codes)
			if err != nil {
				return err
			}
			for _, n := range some(8, t) {
				want, scales := make([]byte, heads*512), make([]byte, heads*projection.HeadBlocks)
				if err := projection.InverseRopeQuantRef(o[n*heads*512:][:heads*512], groups, perGroup, at[n:n+1], rows, want, scales); err != nil {
					return err
				}
				for h := range heads { // of blocks that are not turned every code is certain
					g, j := h/perGroup, h%perGroup
					got := codes[((g*t+n)*perGroup+j)*512:][:384]
					c.Exact(fmt.Sprintf("codes of token %d, head %d", n, h), vectors.FromU8(got, 384), vectors.FromU8(want[h*512:][:384], 384))
				}
			}
			return nil
		})
	}
	return r.err
}
