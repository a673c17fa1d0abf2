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

func selectCases(op string, o IndexerOptions, format cache.IndexKeyFormat) (cases []opCase) {
	for _, context := range o.Contexts {
		for _, k := range o.TopK {
			for _, tokens := range o.Batches {
				cases = append(cases, opCase{op, fmt.Sprintf("tokens=%d/context=%d/heads=%d/k=%d", tokens, context, o.Heads, k), selection(tokens, context/4, k, format, false)})
			}
			for _, tokens := range o.Prefill {
				if tokens <= context && tokens*context/4 <= 1<<28 {
					cases = append(cases, opCase{op, fmt.Sprintf("prefill/tokens=%d/context=%d/heads=%d/k=%d", tokens, context, o.Heads, k), selection(tokens, context/4, k, format, true)})
				}
			}
		}
	}
	return cases
}

// selection scores all keys that the tokens see and keeps k of them.
func selection(t, keys, k int, format cache.IndexKeyFormat, prefill bool) func(ctx context.Context, r *opRig) error {
	return func(ctx context.Context, r *opRig) error {
		s, err := r.newScene(t, keys, format, prefill, 4*t*k)
		if err != nil {
			return err
		}
		cfg := indexer.LogitsConfig{Heads: r.o.Heads, Format: format, Page: page, Group: 1, Variant: r.o.Variant, MaxBytes: s.args[0].Keys.Pool.Bytes()}
		if prefill {
			cfg.Group = t
		}
		op, err := indexer.NewSelect(r.dev, indexer.SelectConfig{K: k, Logits: cfg})
		if err != nil {
			return err
		}
		r.variant = op.Variant()
		picks, scratch := r.out(tensor.I32, t, k), r.scratch(op.ScratchBytes(t))
		if r.err != nil {
			return r.err
		}
		arrived := put(r, tensor.I32, make([]int32, t), t)
		record := func(rec *vk.Recorder, i int) error {
			return op.Record(rec, indexer.SelectArgs{LogitsArgs: s.args[i%len(s.args)], TopK: picks, Entries: keys, Scratch: scratch, Arrived: arrived})
		}
		r.parts = []opPart{{bytes: s.bytes(t, keys) + float64(4*t*k), flop: s.flop(), record: record}}
		r.check = func(ctx context.Context) (verify.Result, error) {
			if err := run(ctx, r.dev, func(rec *vk.Recorder) error {
				if err := rec.Fill(picks.View(), 0xa5a5a5a5); err != nil {
					return err
				}
				return record(rec, len(s.args)-1)
			}); err != nil {
				return verify.Result{}, err
			}
			return s.separately(ctx, r, picks, cfg, t, keys, k)
		}
		return nil
	}
}

// separately holds a selection against logits followed by top-k, which have to give
// the same bits, for as many tokens as there is room for logits; and those logits
// against the reference.
func (s *scene) separately(ctx context.Context, r *opRig, picks tensor.Tensor, cfg indexer.LogitsConfig, t, keys, k int) (verify.Result, error) {
	const room = 256 << 20
	n := min(t, max(1, room/(4*keys)))
	cfg.MaxBytes = max(cfg.MaxBytes, uint64(4*n*keys))
	score, err := indexer.NewLogits(r.dev, cfg)
	if err != nil {
		return verify.Result{}, err
	}
	top, err := indexer.NewTopK(r.dev, indexer.TopKConfig{K: k})
	if err != nil {
		return verify.Result{}, err
	}
	a := s.args[len(s.args)-1]
	a.Out = r.out(tensor.F32, n, keys)
	own, scratch := r.out(tensor.I32, n, k), r.scratch(top.ScratchBytes(n, keys))
	if r.err != nil {
		return verify.Result{}, r.err
	}
	a.Q, a.Weights, a.TokenToReq, a.Lens = a.Q.Rows(0, n), a.Weights.Rows(0, n), a.TokenToReq.Rows(0, n), a.Lens.Rows(0, n)
	if !a.QScale.IsZero() {
		a.QScale = a.QScale.Rows(0, n)
	}
	if err := run(ctx, r.dev, func(rec *vk.Recorder) error {
		if err := score.Record(rec, a); err != nil {
			return err
		}
		return top.Record(rec, indexer.TopKArgs{Logits: a.Out, Lens: a.Lens, Out: own, Scratch: scratch})
	}); err != nil {
		return verify.Result{}, err
	}
	if res, err := s.compare(ctx, a.Out, n, keys); err != nil || !res.Pass {
		return res, err
	}
	want, err := fetch[int32](ctx, own)
	if err != nil {
		return verify.Result{}, err
	}
	got, err := fetch[int32](ctx, picks.Rows(0, n))
	if err != nil {
		return verify.Result{}, err
	}
	return verify.NewComparison(verify.ClassSet).Exact("selection", vectors.FromI32(got, n, k), vectors.FromI32(want, n, k)).Result(), nil
}
