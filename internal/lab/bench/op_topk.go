package bench

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func topkCases(op string, o IndexerOptions) (cases []opCase) {
	for _, tokens := range o.Batches {
		for _, context := range o.Contexts {
			for _, k := range o.TopK {
				cases = append(cases, opCase{op, fmt.Sprintf("tokens=%d/context=%d/k=%d", tokens, context, k), topK(tokens, context/4, k)})
			}
		}
	}
	return cases
}

func topK(t, n, k int) func(ctx context.Context, r *opRig) error {
	return func(ctx context.Context, r *opRig) error {
		op, err := indexer.NewTopK(r.dev, indexer.TopKConfig{K: k})
		if err != nil {
			return err
		}
		r.variant = op.Variant()
		bytes := 4 * t * (n + 1 + k)
		r.rotate(bytes)
		lens := make([]int32, t)
		for i := range lens {
			lens[i] = int32(n)
		}
		var sets []indexer.TopKArgs
		var logits []float32 // of the last set
		arrived := put(r, tensor.I32, make([]int32, t), t)
		for range r.sets {
			logits = r.normal(t * n)
			sets = append(sets, indexer.TopKArgs{Logits: put(r, tensor.F32, logits, t, n), Lens: put(r, tensor.I32, lens, t),
				Out: r.out(tensor.I32, t, k), Scratch: r.scratch(op.ScratchBytes(t, n)), Arrived: arrived})
		}
		record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
		r.parts = []opPart{{bytes: float64(bytes), record: record}}
		r.check = func(ctx context.Context) (verify.Result, error) {
			if err := run(ctx, r.dev, func(rec *vk.Recorder) error { return record(rec, len(sets)-1) }); err != nil {
				return verify.Result{}, err
			}
			got, err := fetch[int32](ctx, sets[len(sets)-1].Out)
			if err != nil {
				return verify.Result{}, err
			}
			c := verify.NewComparison(verify.ClassSet)
			for _, i := range some(8, t) {
				want := indexer.TopKRef(logits[i*n:][:n], n, lens[:1], k)
				c.Exact(fmt.Sprintf("selection of token %d", i), vectors.FromI32(got[i*k:][:k], k), vectors.FromI32(want, k))
			}
			return c.Result(), nil
		}
		return r.err
	}
}
