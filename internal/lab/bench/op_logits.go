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

// logitsDiff is how far logits may be from those of the reference.
const logitsDiff = 5e-6

func logitsCases(op string, o IndexerOptions, format cache.IndexKeyFormat) (cases []opCase) {
	for _, context := range o.Contexts {
		for _, tokens := range o.Batches {
			cases = append(cases, opCase{op, fmt.Sprintf("tokens=%d/context=%d/heads=%d", tokens, context, o.Heads), logits(tokens, context/4, format, false)})
		}
		for _, tokens := range o.Prefill {
			if tokens <= context && tokens*context/4 <= 1<<28 { // at most a GiB of logits
				cases = append(cases, opCase{op, fmt.Sprintf("prefill/tokens=%d/context=%d/heads=%d", tokens, context, o.Heads), logits(tokens, context/4, format, true)})
			}
		}
	}
	return cases
}

// scene is queries of t tokens and paged keys for them: a request for each token, or
// one whose last tokens they are.
type scene struct {
	layout   cache.IndexKeyLayout
	host     indexer.LogitsHost // of the last set
	args     []indexer.LogitsArgs
	visible  float64 // entries that the tokens see, together
	requests int
}

// newScene makes the sets of a case that touch so many bytes besides queries and keys.
func (r *opRig) newScene(t, keys int, format cache.IndexKeyFormat, prefill bool, outBytes int) (*scene, error) {
	layout, err := cache.NewIndexKeyLayout(format, page, 0)
	if err != nil {
		return nil, err
	}
	h, width, row := r.o.Heads, (keys+page-1)/page, format.RowBytes()
	s := &scene{layout: layout, requests: t}
	lens, toReq := make([]int32, t), make([]int32, t)
	for i := range lens {
		lens[i], toReq[i] = int32(keys), int32(i)
		if prefill {
			lens[i], toReq[i] = int32((4*keys-t+i+1)/4), 0
		}
		s.visible += float64(lens[i])
	}
	if prefill {
		s.requests = 1
	}
	r.rotate(s.requests*keys*(row+cache.IndexScaleBytes) + t*h*row + outBytes)
	pages, tables := r.tables(s.requests, width, layout.Stride)
	k, pattern, err := r.keys(layout, pages)
	if err != nil {
		return nil, err
	}
	lensT, toReqT := put(r, tensor.I32, lens, t), put(r, tensor.I32, toReq, t)
	s.host = indexer.LogitsHost{Heads: h, Pool: pattern, Layout: layout, TableWidth: width, TokenToReq: toReq, Lens: lens}
	for _, table := range tables {
		s.host.BlockTable = repeated(table, len(pattern)/layout.Stride)
		x := r.normalBF16(t * h * indexer.D)
		s.host.Q, s.host.QScale, s.host.Weights = make([]byte, t*h*row), nil, append([]float32(nil), r.normal(t*h)...)
		for i := range t * h {
			codes, scale := cache.QuantiseKeyRef(x[i*indexer.D:][:indexer.D], format)
			copy(s.host.Q[i*row:], codes)
			if format == cache.IndexKeyMXFP4 {
				s.host.QScale = append(s.host.QScale, scale[:]...)
			}
		}
		a := indexer.LogitsArgs{
			Q: put(r, tensor.U8, s.host.Q, t, h, row), Weights: put(r, tensor.F32, s.host.Weights, t, h), Keys: k,
			BlockTable: put(r, tensor.I32, table, s.requests, width), TokenToReq: toReqT, Lens: lensT,
		}
		if format == cache.IndexKeyMXFP4 {
			a.QScale = put(r, tensor.U8, s.host.QScale, t, h, indexer.Blocks)
		}
		s.args = append(s.args, a)
	}
	return s, r.err
}

// token is the host's operands of one token, for entries from first on.
func (s *scene) token(i, first, width int) indexer.LogitsHost {
	x := s.host
	h, row := x.Heads, s.layout.Format.RowBytes()
	x.Q, x.Weights = x.Q[i*h*row:][:h*row], x.Weights[i*h:][:h]
	if x.QScale != nil {
		x.QScale = x.QScale[i*h*indexer.Blocks:][:h*indexer.Blocks]
	}
	x.TokenToReq, x.Lens, x.First, x.Width = x.TokenToReq[i:i+1], x.Lens[i:i+1], first, width
	return x
}

// bytes and flop of scoring all visible entries: keys are read once for each request.
func (s *scene) bytes(t, keys int) float64 {
	row := s.layout.Format.RowBytes()
	return float64(s.requests)*float64(keys)*float64(row+cache.IndexScaleBytes) + float64(t*s.host.Heads)*float64(row+8)
}

func (s *scene) flop() float64 { return 2 * s.visible * float64(s.host.Heads) * indexer.D }

func logits(t, keys int, format cache.IndexKeyFormat, prefill bool) func(ctx context.Context, r *opRig) error {
	return func(ctx context.Context, r *opRig) error {
		s, err := r.newScene(t, keys, format, prefill, 4*t*keys)
		if err != nil {
			return err
		}
		group := 1
		if prefill {
			group = t
		}
		op, err := indexer.NewLogits(r.dev, indexer.LogitsConfig{Heads: r.o.Heads, Format: format, Page: page, Group: group, Variant: r.o.Variant,
			MaxBytes: max(s.args[0].Keys.Pool.Bytes(), 4*uint64(t)*uint64(keys))})
		if err != nil {
			return err
		}
		r.variant = op.Variant()
		// The sets share the logits: they are written, and their 4 bytes an entry are
		// little beside the keys.
		out := r.out(tensor.F32, t, keys)
		if r.err != nil {
			return r.err
		}
		for i := range s.args {
			s.args[i].Out = out
		}
		record := func(rec *vk.Recorder, i int) error { return op.Record(rec, s.args[i%len(s.args)]) }
		r.parts = []opPart{{bytes: s.bytes(t, keys) + 4*s.visible, flop: s.flop(), record: record}}
		r.check = func(ctx context.Context) (verify.Result, error) {
			if err := run(ctx, r.dev, func(rec *vk.Recorder) error {
				if err := rec.Fill(out.View(), 0xffffffff); err != nil {
					return err
				}
				return record(rec, len(s.args)-1)
			}); err != nil {
				return verify.Result{}, err
			}
			return s.compare(ctx, out, t, keys)
		}
		return nil
	}
}

// compare holds the first, some middle and the last visible entries of up to 3 tokens
// against the reference.
func (s *scene) compare(ctx context.Context, out tensor.Tensor, t, keys int) (verify.Result, error) {
	c := verify.NewComparison(verify.ClassTolerance)
	for _, i := range some(3, t) {
		row := out.Rows(i, i+1)
		got, err := fetch[float32](ctx, row)
		if err != nil {
			return verify.Result{}, err
		}
		n := int(s.host.Lens[i])
		width := min(256, n)
		for _, first := range []int{0, (n - width) / 2, n - width} {
			want := make([]float32, width)
			if err := indexer.LogitsRef(s.token(i, first, width), want); err != nil {
				return verify.Result{}, err
			}
			c.CalcDiff(fmt.Sprintf("logits of token %d from entry %d", i, first), vectors.FromF32(got[first:first+width], width), vectors.FromF32(want, width), logitsDiff)
		}
	}
	return c.Result(), nil
}
