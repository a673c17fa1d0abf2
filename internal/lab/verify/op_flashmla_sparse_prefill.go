package verify

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "flashmla_sparse_prefill", Class: ClassTolerance, Variants: opkit.Builds("attn_prefill"),
		Of:     Of{"attention.Prefill", "attn_prefill attn_prefill_cm attn_prefill_lanes attn_merge", ""},
		Random: randomPrefill, Ref: refPrefill, Bind: bindPrefill, After: markRounded,
		Timing: Timing{Suite: "attention", Sizes: prefillSizes, Axes: map[string]string{
			"q": "TH", "attn_sink": "H", "indices": "T", "topk_length": "T", "out": "TH", "lse": "TH",
		}},
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
	x, err := readPrefill(c)
	if err != nil {
		return cmp.Fail("%v", err)
	}
	for _, name := range []string{prefix + "max_logits", prefix + "lse"} {
		if w, ok := want[name]; ok && !(x.timed && name == "max_logits") {
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
		raw        bool // queries as a projection leaves them
	}{
		{1, 1, 1, 1, false, false, false}, {2, 8, 17, 61, true, true, false}, {17, 17, 61, 69, true, true, false},
		{1, 64, 321, 500, false, true, false}, {61, 2, 2, 17, true, false, false}, {2, 128, 69, 321, true, true, false},
		{69, 4, 17, 2, false, true, false}, {1, 8, 700, 321, true, false, false}, {3, 61, 40, 90, true, true, true},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		kv := normalBF16(rng, 1, x.s, 1, cache.D).U16()
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
				for d := range cache.D {
					kv[row*cache.D+d] = 0xFFFF
				}
			}
		}
		c := Case{
			Name:   fmt.Sprintf("t%d_h%d_topk%d_s%d", x.t, x.h, x.k, x.s),
			Params: map[string]any{"sm_scale": float64(attention.DefaultScale)},
			In: Arrays{"q": normalBF16(rng, 1+float64(i%3), x.t, x.h, cache.D), "kv": vectors.FromU16(kv, x.s, 1, cache.D),
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
		if x.raw {
			c.Name += "_raw"
			c.Params["eps"] = 1e-6
			c.In["cos_sin_rows"], c.In["positions"] = randomTurns(rng, x.t)
			settle(rng, c, 1e-6, 1+float64(i%3))
		}
		cases = append(cases, c)
	}
	return cases
}

type prefillInput struct {
	q, kv, indices, lens, sink Array
	tokens, heads, width, rows int
	scale                      float32
	timed                      bool // as a step would have it: without the largest logits

	raw, positions, table Array // queries before q's norm and rotation, and what these need; absent: q came so
	eps                   float32
}

func readPrefill(c Case) (x prefillInput, err error) {
	in := c.Input()
	x.q = in.Array("q", vectors.U16, -1, -1, cache.D)
	x.tokens, x.heads = x.q.Dim(0), x.q.Dim(1)
	x.kv = in.Array("kv", vectors.U16, -1, 1, cache.D)
	x.rows = x.kv.Dim(0)
	x.indices = in.Array("indices", vectors.I32, x.tokens, -1)
	x.width = x.indices.Dim(1)
	x.lens, x.sink = in.Optional("topk_length", vectors.I32, x.tokens), in.Optional("attn_sink", vectors.F32, x.heads)
	x.scale, x.timed = float32(in.Float("sm_scale")), in.IntOr("timed", 0) != 0
	if err := in.Err(); err != nil || !in.Has("cos_sin_rows") {
		return x, err
	}
	x.raw, x.eps, x.table = x.q, float32(in.Float("eps")), in.Array("cos_sin_rows", vectors.F32, -1, cache.RopeDim)
	positions := in.Array("positions", vectors.I64, x.tokens)
	if err := in.Err(); err != nil {
		return x, err
	}
	if x.positions, err = tableRows(c, positions, Array{}); err != nil {
		return x, err
	}
	return x, x.norm()
}

// norm makes q of the raw queries. No K row goes anywhere.
func (x *prefillInput) norm() error {
	l, err := cache.NewLayout(64, 0)
	if err != nil {
		return err
	}
	q, slots := x.raw.U16(), slices.Repeat([]int64{-1}, x.tokens)
	if err := projection.QInsertRef(q, x.heads, make([]uint16, x.tokens*cache.D), slots, x.positions.I32(), x.table.F32(),
		x.eps, make([]byte, l.PoolBytes(1)), l); err != nil {
		return err
	}
	x.q = vectors.FromU16(q, x.raw.Shape...)
	return nil
}

func refPrefill(c Case) (Arrays, error) {
	x, err := readPrefill(c)
	if err != nil {
		return nil, err
	}
	all := Arrays{}
	for prefix, sink := range prefillSinks(c, x.sink, Array{}) {
		out, maxLogits, lse := attention.PrefillRef(x.q.U16(), x.heads, x.kv.U16(), x.indices.I32(), x.width, x.lens.I32(), sink.F32(), x.scale)
		all[prefix+"out"] = vectors.FromF32(out, x.tokens, x.heads, cache.D)
		all[prefix+"max_logits"], all[prefix+"lse"] = vectors.FromF32(maxLogits, x.tokens, x.heads), vectors.FromF32(lse, x.tokens, x.heads)
	}
	return all, nil
}

// prefillSinks returns the sinks of each kernel that a case has outputs of, by the prefix of
// their names.
func prefillSinks[T any](c Case, sink, none T) map[string]T {
	sinks := map[string]T{"": sink}
	if _, ok := c.Want[withoutSink+"out"]; ok {
		sinks[withoutSink] = none
	}
	return sinks
}

func bindPrefill(b Build, c Case) (Bound, error) {
	x, err := readPrefill(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := attention.NewPrefill(b.Dev, attention.PrefillConfig{Heads: x.heads, Scale: x.scale, Variant: b.Variant, Norm: x.eps > 0})
	if err != nil {
		return Bound{}, err
	}
	kv := x.kv
	kv.Shape = []int{x.rows, cache.D}
	return Bound{op.Variant(), func(r *Rig) Launch {
		in := attention.PrefillArgs{
			Q: r.In(x.q, tensor.BF16), KV: r.Shared(kv, tensor.BF16), Indices: r.In(x.indices, tensor.I32), Lens: r.Shared(x.lens, tensor.I32),
			Scratch: r.Scratch(op.ScratchBytes(x.tokens, x.width)),
		}
		if op.NormsQueries(x.tokens, x.width) {
			in.Q, in.Norm = r.In(x.raw, tensor.BF16), attention.QueryNorm{Eps: x.eps, Positions: r.In(x.positions, tensor.I32),
				Table: r.In(x.table, tensor.F32)}
		}
		out, all := map[string]tensor.Tensor{}, []attention.PrefillArgs{}
		for prefix, sink := range prefillSinks(c, r.Shared(x.sink, tensor.F32), tensor.Tensor{}) {
			a := in
			a.Sink, a.Out, a.LSE = sink, r.SharedOut(tensor.BF16, x.tokens, x.heads, cache.D), r.SharedOut(tensor.F32, x.tokens, x.heads)
			out[prefix+"out"], out[prefix+"lse"] = a.Out, a.LSE
			if !x.timed {
				a.MaxLogits = r.Out(tensor.F32, x.tokens, x.heads)
				out[prefix+"max_logits"] = a.MaxLogits
			}
			all = append(all, a)
		}
		return Launch{Out: out, Record: func(rec *vk.Recorder) error {
			for i, a := range all {
				if i > 0 { // both bind the device's dummy for what is absent, a conflict to validation
					if err := door.Separate(rec); err != nil {
						return err
					}
				}
				if err := op.Record(rec, a); err != nil {
					return err
				}
			}
			return nil
		}}
	}}, nil
}

// prefillSizes are steps of 4096 tokens over a workspace, whose rows are picked at random.
func prefillSizes(o SizeOptions) (all []Size) {
	tokens := 4096
	if o.Slow {
		tokens = 8
	}
	for _, heads := range o.pick(o.Heads, []int{64, 128}, []int{64}) {
		for _, topk := range o.pick(o.TopK, []int{640, 1152}, []int{64}) {
			for _, rows := range o.pick(o.Rows, []int{8192, 32768}, []int{8192}) {
				// The workspace is read over and over within one launch: it is counted once.
				bytes := tokens*(heads*2*2*cache.D+4*topk) + rows*2*cache.D
				all = append(all, Size{
					Name: fmt.Sprintf("tokens=%d/heads=%d/topk=%d/rows=%d", tokens, heads, topk, rows), Touched: bytes,
					Work: Work{float64(bytes), 4 * float64(tokens*heads*topk) * cache.D},
					Make: func(rng *rand.Rand) Case { return largePrefill(rng, tokens, heads, topk, rows) },
				})
			}
		}
	}
	return all
}

func largePrefill(rng *rand.Rand, tokens, heads, topk, rows int) Case {
	list := make([]int32, tokens*topk)
	for i := range list {
		list[i] = rng.Int32N(int32(rows))
	}
	return Case{Params: map[string]any{"sm_scale": float64(attention.DefaultScale), "timed": 1}, In: Arrays{
		"q": manyBF16(rng, 1, tokens, heads, cache.D), "kv": manyBF16(rng, 1, rows, 1, cache.D), "attn_sink": manyF32(rng, heads),
		"indices": vectors.FromI32(list, tokens, topk), "topk_length": vectors.FromI32(vectorsI32(tokens, int32(topk)), tokens),
	}}
}
