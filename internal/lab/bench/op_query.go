package bench

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// ropeRows is the number of positions in the tables of the suite.
const ropeRows = 65536

func queryCases(op string, o IndexerOptions, format cache.IndexKeyFormat) (cases []opCase) {
	for _, tokens := range append(append([]int{}, o.Batches...), o.Prefill...) {
		cases = append(cases, opCase{op, fmt.Sprintf("tokens=%d/heads=%d", tokens, o.Heads), func(ctx context.Context, r *opRig) error {
			return r.queries(tokens, format)
		}})
	}
	return cases
}

func (r *opRig) queries(t int, format cache.IndexKeyFormat) error {
	h, row := r.o.Heads, format.RowBytes()
	cfg := indexer.QueryQuantConfig{Format: format}
	op, err := indexer.NewQueryQuant(r.dev, cfg)
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	perRow := 2*indexer.D + row + 2 + 4
	if format == cache.IndexKeyMXFP4 {
		perRow += indexer.Blocks
	}
	bytes := t*h*perRow + t*(4+4*indexer.RopeDim)
	r.rotate(bytes)
	rope := r.normal(ropeRows * indexer.RopeDim)
	table := put(r, tensor.F32, rope, ropeRows, indexer.RopeDim)
	var sets []indexer.QueryQuantArgs
	var q, w []uint16 // of the set that is checked, the last one made
	positions := make([]int32, t)
	for range r.sets {
		q, w = r.normalBF16(t*h*indexer.D), r.normalBF16(t*h)
		for i := range positions {
			positions[i] = r.rng.Int32N(ropeRows)
		}
		a := indexer.QueryQuantArgs{
			Q: put(r, tensor.BF16, q, t, h, indexer.D), Positions: put(r, tensor.I32, positions, t), Weights: put(r, tensor.BF16, w, t, h), Table: table,
			Codes: r.out(tensor.U8, t, h, row), WeightsOut: r.out(tensor.F32, t, h),
		}
		if format == cache.IndexKeyMXFP4 {
			a.Scales = r.out(tensor.U8, t, h, indexer.Blocks)
		}
		sets = append(sets, a)
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.check = func(ctx context.Context) (verify.Result, error) {
		a := sets[len(sets)-1]
		if err := run(ctx, r.dev, func(rec *vk.Recorder) error { return record(rec, len(sets)-1) }); err != nil {
			return verify.Result{}, err
		}
		codes, err := fetch[byte](ctx, a.Codes)
		if err != nil {
			return verify.Result{}, err
		}
		out, err := fetch[float32](ctx, a.WeightsOut)
		if err != nil {
			return verify.Result{}, err
		}
		c := verify.NewComparison(verify.ClassExact)
		for _, i := range some(16, t) {
			want, scales, weights := make([]byte, h*row), make([]byte, h*indexer.Blocks), make([]float32, h)
			if err := indexer.QueryQuantRef(q[i*h*indexer.D:][:h*indexer.D], h, positions[i:i+1], w[i*h:][:h], rope, cfg, want, scales, weights); err != nil {
				return verify.Result{}, err
			}
			c.Exact(fmt.Sprintf("codes of token %d", i), vectors.FromU8(codes[i*h*row:][:h*row], h, row), vectors.FromU8(want, h, row)).
				Exact(fmt.Sprintf("weights of token %d", i), vectors.FromF32(out[i*h:][:h], h), vectors.FromF32(weights, h))
		}
		return c.Result(), nil
	}
	return r.err
}

func gatherCases(op string, o IndexerOptions, format cache.IndexKeyFormat) (cases []opCase) {
	for _, context := range o.Contexts {
		const requests = 4
		cases = append(cases, opCase{op, fmt.Sprintf("requests=%d/context=%d", requests, context), gatherKeys(requests, context/4, format)})
	}
	return cases
}

// gatherKeys copies all keys of some requests to dense rows.
func gatherKeys(requests, keys int, format cache.IndexKeyFormat) func(ctx context.Context, r *opRig) error {
	return func(ctx context.Context, r *opRig) error {
		layout, err := cache.NewIndexKeyLayout(format, page, 0)
		if err != nil {
			return err
		}
		width, rows := (keys+page-1)/page, requests*keys
		rowBytes := format.RowBytes() + cache.IndexScaleBytes
		r.rotate(2 * rows * rowBytes)
		pages, tables := r.tables(requests, width, layout.Stride)
		k, pattern, err := r.keys(layout, pages)
		if err != nil {
			return err
		}
		op, err := cache.NewGatherIndexKeys(r.dev, cache.GatherIndexKeysConfig{Page: page, Format: format, MaxBytes: k.Pool.Bytes()})
		if err != nil {
			return err
		}
		r.variant = op.Variant()
		starts := make([]int32, requests+1)
		for i := range starts {
			starts[i] = int32(i * keys)
		}
		var sets []cache.GatherIndexKeysArgs
		for _, table := range tables {
			sets = append(sets, cache.GatherIndexKeysArgs{
				Keys: k, Table: put(r, tensor.I32, table, requests, width), Starts: put(r, tensor.I32, starts, requests+1),
				Codes: r.out(tensor.U8, rows, format.RowBytes()), Scales: r.out(tensor.U8, rows, cache.IndexScaleBytes),
			})
		}
		record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
		r.parts = []opPart{{bytes: float64(2 * rows * rowBytes), record: record}}
		r.check = func(ctx context.Context) (verify.Result, error) {
			a := sets[0]
			if err := run(ctx, r.dev, func(rec *vk.Recorder) error { return record(rec, 0) }); err != nil {
				return verify.Result{}, err
			}
			codes, err := fetch[byte](ctx, a.Codes)
			if err != nil {
				return verify.Result{}, err
			}
			scales, err := fetch[byte](ctx, a.Scales)
			if err != nil {
				return verify.Result{}, err
			}
			wantCodes, wantScales := make([]byte, len(codes)), make([]byte, len(scales))
			if err := cache.GatherIndexKeysRef(wantCodes, wantScales, pattern, layout, repeated(tables[0], len(pattern)/layout.Stride), width, starts); err != nil {
				return verify.Result{}, err
			}
			return verify.NewComparison(verify.ClassExact).
				Exact("codes", vectors.FromU8(codes, rows, format.RowBytes()), vectors.FromU8(wantCodes, rows, format.RowBytes())).
				Exact("scales", vectors.FromU8(scales, rows, cache.IndexScaleBytes), vectors.FromU8(wantScales, rows, cache.IndexScaleBytes)).Result(), nil
		}
		return r.err
	}
}

// repeated is a table for the host: the pages of the pattern that the pages of a pool
// repeat.
func repeated(table []int32, pages int) []int32 {
	host := make([]int32, len(table))
	for i, p := range table {
		host[i] = p % int32(pages)
	}
	return host
}
