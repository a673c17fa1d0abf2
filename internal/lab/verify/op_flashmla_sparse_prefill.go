package verify

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "flashmla_sparse_prefill", Class: ClassTolerance, Variants: attention.PrefillVariants,
		Random: randomPrefill, Ref: refPrefill, Run: runPrefill,
		Compare: func(c Case, got, want Arrays) Result {
			cmp := NewComparison(ClassTolerance).prefill(c, "", got, want)
			if _, ok := want[withoutSink+"out"]; ok {
				cmp.prefill(c, withoutSink, got, finiteMarks(want))
			}
			return cmp.Result()
		},
	})
}

// withoutSink is in front of the names of outputs that vLLM's portable kernel gave for the
// same inputs; it knows no sinks.
const withoutSink = "xpu_"

// prefill compares the outputs of one kernel.
func (cmp *Comparison) prefill(c Case, prefix string, got, want Arrays) *Comparison {
	out := prefix + "out"
	cmp.CloseWeighted(out, got[out], want[out], PrefillOut, roundings(c, got), func() ([]float32, error) {
		x, err := readPrefill(c)
		if err != nil {
			return nil, err
		}
		if prefix == withoutSink {
			x.sink = Array{}
		}
		return attention.PrefillSpreadRef(x.q.U16(), x.heads, x.kv.U16(), x.indices.I32(), x.width, x.lens.I32(), x.sink.F32(), x.scale), nil
	})
	for _, name := range []string{prefix + "max_logits", prefix + "lse"} {
		if w, ok := want[name]; ok {
			cmp.Close(name, got[name], w, PrefillLSE)
		}
	}
	return cmp
}

// finiteMarks are outputs of the portable kernel with infinities in rows without an entry,
// where it leaves the finite number that its maximum starts with.
func finiteMarks(want Arrays) Arrays {
	out := maps.Clone(want)
	for name, mark := range map[string]int{withoutSink + "max_logits": -1, withoutSink + "lse": 1} {
		v := want[name].F32()
		for i := range v {
			if v[i] < -1e29 {
				v[i] = float32(math.Inf(mark))
			}
		}
		if v != nil {
			out[name] = vectors.FromF32(v, want[name].Shape...)
		}
	}
	return out
}

func randomPrefill(seed uint64) []Case {
	var cases []Case
	for i, x := range []struct {
		t, h, k, s int
		lens, sink bool
	}{
		{1, 1, 1, 1, false, false}, {2, 8, 17, 61, true, true}, {17, 17, 61, 69, true, true}, {1, 64, 321, 500, false, true},
		{61, 2, 2, 17, true, false}, {2, 128, 69, 321, true, true}, {69, 4, 17, 2, false, true}, {1, 8, 700, 321, true, false},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		kv := normalBF16(rng, 1, x.s, 1, attention.D).U16()
		used, idx := map[int32]bool{}, make([]int32, x.t*x.k)
		for j := range idx {
			idx[j] = int32(rng.IntN(x.s))
			if x.s > 2 && rng.IntN(6) == 0 {
				idx[j] = []int32{-1, -2, int32(x.s), 1<<31 - 1, -1 << 31}[rng.IntN(5)]
			}
			used[idx[j]] = true
		}
		for row := range x.s { // a row on no list must not be read
			if !used[int32(row)] {
				for d := range attention.D {
					kv[row*attention.D+d] = 0xFFFF
				}
			}
		}
		c := Case{
			Name:   fmt.Sprintf("t%d_h%d_topk%d_s%d", x.t, x.h, x.k, x.s),
			Params: map[string]any{"sm_scale": float64(attention.DefaultScale)},
			In: Arrays{"q": normalBF16(rng, 1+float64(i%3), x.t, x.h, attention.D), "kv": vectors.FromU16(kv, x.s, 1, attention.D),
				"indices": vectors.FromI32(idx, x.t, x.k)},
		}
		if x.lens {
			lens := make([]int32, x.t)
			for j := range lens {
				lens[j] = int32(rng.IntN(x.k + 2)) // one more than the width counts as the width
				if rng.IntN(4) == 0 {
					lens[j] = int32(rng.IntN(2)) - 1
				}
			}
			c.In["topk_length"] = vectors.FromI32(lens, x.t)
		}
		if x.sink {
			c.In["attn_sink"] = randomSink(rng, x.h)
		}
		cases = append(cases, c)
	}
	return cases
}

type prefillInput struct {
	q, kv, indices, lens, sink Array
	tokens, heads, width, rows int
	scale                      float32
}

func readPrefill(c Case) (x prefillInput, err error) {
	in := c.Input()
	x.q = in.Array("q", vectors.U16, -1, -1, attention.D)
	x.tokens, x.heads = x.q.Dim(0), x.q.Dim(1)
	x.kv = in.Array("kv", vectors.U16, -1, 1, attention.D)
	x.rows = x.kv.Dim(0)
	x.indices = in.Array("indices", vectors.I32, x.tokens, -1)
	x.width = x.indices.Dim(1)
	x.lens, x.sink = in.Optional("topk_length", vectors.I32, x.tokens), in.Optional("attn_sink", vectors.F32, x.heads)
	x.scale = float32(in.Float("sm_scale"))
	return x, in.Err()
}

func refPrefill(c Case) (Arrays, error) {
	x, err := readPrefill(c)
	if err != nil {
		return nil, err
	}
	all := Arrays{}
	for prefix, sink := range prefillSinks(c, x.sink, Array{}) {
		out, maxLogits, lse := attention.PrefillRef(x.q.U16(), x.heads, x.kv.U16(), x.indices.I32(), x.width, x.lens.I32(), sink.F32(), x.scale)
		all[prefix+"out"] = vectors.FromF32(out, x.tokens, x.heads, attention.D)
		all[prefix+"max_logits"], all[prefix+"lse"] = vectors.FromF32(maxLogits, x.tokens, x.heads), vectors.FromF32(lse, x.tokens, x.heads)
	}
	return all, nil
}

// prefillSinks are the sinks of each kernel that a case has outputs of, by the prefix of
// their names.
func prefillSinks[T any](c Case, sink, none T) map[string]T {
	sinks := map[string]T{"": sink}
	if _, ok := c.Want[withoutSink+"out"]; ok {
		sinks[withoutSink] = none
	}
	return sinks
}

func runPrefill(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error) {
	x, err := readPrefill(c)
	if err != nil {
		return nil, err
	}
	op, err := attention.NewPrefill(dev, attention.PrefillConfig{Heads: x.heads, Scale: x.scale, Variant: variant})
	if err != nil {
		return nil, err
	}
	r := NewRig(ctx, dev)
	defer r.Close()
	kv := x.kv
	kv.Shape = []int{x.rows, attention.D}
	in := attention.PrefillArgs{
		Q: r.In(x.q, tensor.BF16), KV: r.In(kv, tensor.BF16), Indices: r.In(x.indices, tensor.I32), Lens: r.In(x.lens, tensor.I32),
	}
	if n := op.ScratchBytes(x.tokens, x.width); n > 0 {
		in.Scratch = r.Out(tensor.F32, int(n+3)/4).View()
	}
	results := map[string]tensor.Tensor{}
	for prefix, sink := range prefillSinks(c, r.In(x.sink, tensor.F32), tensor.Tensor{}) {
		a := in
		a.Sink, a.Out = sink, r.Out(tensor.BF16, x.tokens, x.heads, attention.D)
		a.MaxLogits, a.LSE = r.Out(tensor.F32, x.tokens, x.heads), r.Out(tensor.F32, x.tokens, x.heads)
		results[prefix+"out"], results[prefix+"max_logits"], results[prefix+"lse"] = a.Out, a.MaxLogits, a.LSE
		r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	}
	got, err := r.Results(results)
	return markRounded(got, err, variant)
}
