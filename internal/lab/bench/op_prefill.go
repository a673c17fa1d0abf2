package bench

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// prefillShape is sparse attention over a bf16 workspace.
type prefillShape struct{ tokens, heads, topk, rows int }

func (s prefillShape) String() string {
	return fmt.Sprintf("tokens=%d/heads=%d/topk=%d/rows=%d", s.tokens, s.heads, s.topk, s.rows)
}

// sparsePrefill fills a rig with a sparse prefill: rows picked at random, with a sink
// and lengths, all of which are the whole width.
func (r *opRig) sparsePrefill(s prefillShape) error {
	op, err := attention.NewPrefill(r.dev, attention.PrefillConfig{Heads: s.heads, Variant: r.o.Variant})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	// The workspace is read over and over within one launch: it is counted once.
	bytes := s.tokens*(s.heads*2*2*attention.D+4*s.topk) + s.rows*2*attention.D
	r.rotate(bytes)
	rows := r.normalBF16(pattern * attention.D) // row i of the workspace is rows[i % pattern]
	kv := r.out(tensor.BF16, s.rows, attention.D)
	if r.err == nil {
		r.err = r.fill(kv, bytesOf(rows))
	}
	list, lens := make([]int32, r.sets*s.tokens*s.topk), make([]int32, s.tokens)
	for i := range list {
		list[i] = r.rng.Int32N(int32(s.rows))
	}
	for i := range lens {
		lens[i] = int32(s.topk)
	}
	q, sinks := r.queriesOf(r.sets*s.tokens, s.heads), r.normal(s.heads)
	indices, sink, lensT := put(r, tensor.I32, list, r.sets*s.tokens, s.topk), put(r, tensor.F32, sinks, s.heads), put(r, tensor.I32, lens, s.tokens)
	out, lse := r.out(tensor.BF16, s.tokens, s.heads, attention.D), r.out(tensor.F32, s.tokens, s.heads)
	scratch := r.scratch(op.ScratchBytes(s.tokens, s.topk))
	record := func(rec *vk.Recorder, i int) error {
		at := i % r.sets * s.tokens
		return op.Record(rec, attention.PrefillArgs{Q: q.Rows(at, at+s.tokens), KV: kv, Indices: indices.Rows(at, at+s.tokens), Lens: lensT,
			Sink: sink, Out: out, LSE: lse, Scratch: scratch})
	}
	r.parts = []opPart{{bytes: float64(bytes), flop: 4 * float64(s.tokens) * float64(s.heads) * float64(s.topk) * attention.D, record: record}}
	r.check = func(ctx context.Context) (verify.Result, error) {
		set := r.sets - 1
		if err := runPoisoned(ctx, r.dev, set, record, out, lse); err != nil {
			return verify.Result{}, err
		}
		c := verify.NewComparison(verify.ClassTolerance)
		for _, i := range some(3, s.tokens) {
			at := set*s.tokens + i
			picked := make([]int32, s.topk)
			for j, row := range list[at*s.topk:][:s.topk] {
				picked[j] = row % pattern
			}
			if err := r.checkToken(ctx, c, i, q.Rows(at, at+1), sinks, out, lse, func(q []uint16, sink []float32) (o, l, spread []float32, err error) {
				o, _, l = attention.PrefillRef(q, len(sink), rows, picked, s.topk, nil, sink, attention.DefaultScale)
				return o, l, attention.PrefillSpreadRef(q, len(sink), rows, picked, s.topk, nil, sink, attention.DefaultScale), nil
			}); err != nil {
				return verify.Result{}, err
			}
		}
		return c.Result(), nil
	}
	return r.err
}
