package bench

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/vk"
)

// MemoryOps are the operations of the memory suite: what a layer does between its
// matrix products and its attention, bound by the bytes that it moves.
var MemoryOps = []string{"qkv_norm", "q_insert", "insert_k", "gather_k", "inverse_rope", "inverse_rope_quant_f32", "inverse_rope_quant_packed", "query_quant_fp8", "query_quant_mxfp4"}

// Memory is Indexer for MemoryOps. Of the options it uses Ops, Heads (0: 64 and 128,
// and 64 of the indexer), Batches and Prefill, which are numbers of tokens, Reps,
// Warmup and Seed.
func Memory(ctx context.Context, dev *vk.Device, o IndexerOptions, l Limits, p Progress, emit func(OpRow)) error {
	heads := []int{o.Heads}
	if o.Heads == 0 {
		heads = []int{64, 128}
	}
	o = o.withDefaults(dev.Adapter().Type)
	ops, err := o.check("bench: memory", MemoryOps)
	if err != nil {
		return err
	}
	var cases []opCase
	for _, op := range ops {
		cases = append(cases, memoryCases(op, o, heads)...)
	}
	return timeCases(ctx, dev, o, cases, l, p, emit)
}

func memoryCases(op string, o IndexerOptions, heads []int) (cases []opCase) {
	if op == "gather_k" {
		for _, requests := range []int{1, 4} {
			rows := o.Rows / requests
			cases = append(cases, opCase{op, fmt.Sprintf("requests=%d/rows=%d", requests, requests*rows), func(ctx context.Context, r *opRig) error {
				return r.gatherK(requests, rows)
			}})
		}
		return cases
	}
	if format := formatOf(op); format != 0 {
		return queryCases(op, o, format)
	}
	for _, t := range append(append([]int{}, o.Batches...), o.Prefill...) {
		perHeads := func(build func(r *opRig, h int) error) {
			for _, h := range heads {
				cases = append(cases, opCase{op, fmt.Sprintf("tokens=%d/heads=%d", t, h), func(ctx context.Context, r *opRig) error { return build(r, h) }})
			}
		}
		switch op {
		case "qkv_norm":
			const rank = 1536
			cases = append(cases, opCase{op, fmt.Sprintf("tokens=%d/rank=%d", t, rank), func(ctx context.Context, r *opRig) error { return r.qkvNorm(t, rank) }})
		case "insert_k":
			cases = append(cases, opCase{op, fmt.Sprintf("tokens=%d", t), func(ctx context.Context, r *opRig) error { return r.insertK(t) }})
		case "q_insert":
			perHeads(func(r *opRig, h int) error { return r.qInsert(t, h) })
		case "inverse_rope":
			perHeads(func(r *opRig, h int) error { return r.inverseRope(t, h) })
		case "inverse_rope_quant_f32":
			perHeads(func(r *opRig, h int) error { return r.inverseRopeQuant(t, h, false) })
		case "inverse_rope_quant_packed":
			perHeads(func(r *opRig, h int) error { return r.inverseRopeQuant(t, h, true) })
		}
	}
	return cases
}
