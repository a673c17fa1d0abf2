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
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "flashmla_sparse_prefill", Class: ClassTolerance, Variants: opkit.Builds("attn_prefill"),
		Of:     Of{"attention.Prefill", "attn_prefill attn_prefill_cm attn_prefill_lanes attn_merge", ""},
		NaN:    Spoilt{"q", true, "max_logits"},
		Random: randomPrefill, Ref: refBy(readPrefill, refPrefill), Bind: bindBy(readPrefill, bindPrefill), After: markRounded,
		Timing: Timing{Suite: "attention", Sizes: prefillSizes, Axes: map[string]string{
			"q": "TH", "attn_sink": "H", "indices": "T", "topk_length": "T", "out": "TH", "lse": "TH",
		}},
		Compare: compareBy(ClassTolerance, readPrefill, func(cmp *Comparison, c Case, x prefillInput, got, want Arrays) {
			cmp.prefill(c, x, "", got, want)
			if _, ok := want[withoutSink+"out"]; ok {
				x.Sink = Array{}
				cmp.prefill(c, x, withoutSink, got, finiteMarks(want))
			}
		}),
	})
}

// withoutSink is in front of the names of outputs that vLLM's portable kernel gave for the
// same inputs; it knows no sinks.
const withoutSink = "xpu_"

// prefill compares the outputs of one kernel.
func (cmp *Comparison) prefill(c Case, x prefillInput, prefix string, got, want Arrays) {
	out := prefix + "out"
	cmp.CloseWeighted(out, got[out], want[out], PrefillOut, roundings(c, got), func() ([]float32, error) {
		return attention.PrefillSpreadRef(x.q, x.H, x.KV.U16(), x.Indices.I32(), x.Width, x.Lens.I32(), x.Sink.F32(), x.Scale), nil
	})
	for _, name := range []string{prefix + "max_logits", prefix + "lse"} {
		if w, ok := want[name]; ok && !(x.Timed && name == "max_logits") {
			cmp.Close(name, got[name], w, PrefillLSE)
		}
	}
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
		{3, 64, 640, 700, false, true, false},
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

// prefillInput is a case. With a table of angles its queries are raw.
type prefillInput struct {
	Q         Array   `in:"q u16 T H 512"`
	KV        Array   `in:"kv u16 Rows 1 512"`
	Indices   Array   `in:"indices i32 T Width"`
	Lens      Array   `in:"topk_length? i32 T"`
	Sink      Array   `in:"attn_sink? f32 H"`
	Table     Array   `in:"cos_sin_rows? f32 * 64"`
	Positions Array   `in:"positions? rows T"`
	Eps       float32 `in:"eps=0"`
	Scale     float32 `in:"sm_scale"`
	Timed     bool    `in:"timed=0"` // as a step would have it: without the largest logits

	T, H, Width, Rows int
	q                 []uint16 // queries as they are attended with
	c                 Case
}

func readPrefill(c Case) (prefillInput, error) {
	x, err := fields[prefillInput](c)
	if x.c = c; err == nil {
		x.q, err = attended(x.Q, x.Positions, x.Table, x.Eps)
	}
	return x, err
}

func refPrefill(x prefillInput) (Arrays, error) {
	all := Arrays{}
	for prefix, sink := range prefillSinks(x.c, x.Sink, Array{}) {
		out, maxLogits, lse := attention.PrefillRef(x.q, x.H, x.KV.U16(), x.Indices.I32(), x.Width, x.Lens.I32(), sink.F32(), x.Scale)
		all[prefix+"out"] = vectors.FromF32(out, x.T, x.H, cache.D)
		all[prefix+"max_logits"], all[prefix+"lse"] = vectors.FromF32(maxLogits, x.T, x.H), vectors.FromF32(lse, x.T, x.H)
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

func bindPrefill(b Build, x prefillInput) (Bound, error) {
	op, err := attention.NewPrefill(b.Dev, attention.PrefillConfig{Heads: x.H, Scale: x.Scale, Variant: b.Variant, Norm: x.Eps > 0})
	return bound(op, err, func(r *Rig) Launch {
		in := attention.PrefillArgs{
			Q: r.In(vectors.FromU16(x.q, x.Q.Shape...), tensor.BF16), KV: r.Shared(reshaped(x.KV, x.Rows, cache.D), tensor.BF16),
			Indices: r.In(x.Indices, tensor.I32), Lens: r.Shared(x.Lens, tensor.I32), Scratch: r.Scratch(op.ScratchBytes(x.T, x.Width)),
		}
		if op.NormsQueries(x.T, x.Width) {
			in.Q, in.Norm = r.In(x.Q, tensor.BF16), normOf(r, x.Positions, x.Table, x.Eps)
		}
		out, all := map[string]tensor.Tensor{}, []attention.PrefillArgs{}
		for prefix, sink := range prefillSinks(x.c, r.Shared(x.Sink, tensor.F32), tensor.Tensor{}) {
			a := in
			a.Sink, a.Out, a.LSE = sink, r.SharedOut(tensor.BF16, x.T, x.H, cache.D), r.SharedOut(tensor.F32, x.T, x.H)
			out[prefix+"out"], out[prefix+"lse"] = a.Out, a.LSE
			if !x.Timed {
				a.MaxLogits = r.Out(tensor.F32, x.T, x.H)
				out[prefix+"max_logits"] = a.MaxLogits
			}
			all = append(all, a)
		}
		return Launch{Out: out, Args: &all[0], Record: func(rec *vk.Recorder) error {
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
	})
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
		"q": normalBF16(rng, 1, tokens, heads, cache.D), "kv": normalBF16(rng, 1, rows, 1, cache.D), "attn_sink": normalF32(rng, heads),
		"indices":     vectors.FromI32(list, tokens, topk),
		"topk_length": vectors.FromI32(slices.Repeat([]int32{int32(topk)}, tokens), tokens),
	}}
}
