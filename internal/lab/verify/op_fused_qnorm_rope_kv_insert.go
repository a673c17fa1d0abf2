package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

// normedQuery bounds the error of queries: a bf16 step, or the noise of f32 where two products of
// numbers up to 512^0.5 cancel.
var normedQuery = Tolerance{Abs: 2e-5, Rel: 1.001 / 128, Cos: 1e-6}

func init() {
	Register(Op{
		Name: "fused_qnorm_rope_kv_insert", Class: ClassTolerance, Variants: opkit.Builds("proj_q_insert"),
		Of:     Of{"projection.QInsert", "proj_q_insert", "q_norm_rope_kv_insert"},
		NaN:    Spoilt{Input: "q", Zero: true},
		Random: randomQInsert, Ref: refBy(fields, refQInsert), Bind: bindBy(fields, bindQInsert),
		Timing: Timing{Suite: "memory", Sizes: qInsertSizes, Axes: map[string]string{"q": ".H", "q_out": ".H", "cache_after": "."}},
		Compare: compareBy(ClassTolerance, fields, func(cmp *Comparison, c Case, x qInsertInput, got, want Arrays) {
			cmp.insertedRows("cache_after", x, c.Source != "random", got["cache_after"], want["cache_after"])
			if x.RotateOnly {
				cmp.Exact("q_out", got["q_out"], want["q_out"])
			} else {
				cmp.Close("q_out", got["q_out"], want["q_out"], normedQuery)
			}
		}),
	})
}

func randomQInsert(seed uint64) []Case {
	var cases []Case
	add := func(tokens, padding, heads, invalid int, l cache.Layout, v41 bool) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		n := tokens + padding
		pool, slots := randomSlots(rng, tokens, invalid, l)
		table, positions := randomTurns(rng, n)
		params := layoutParams(l)
		params["eps"] = 1e-6
		if v41 { // queries are rotated only
			params["rotate_only"] = 1
		}
		cases = append(cases, Case{
			Name:   fmt.Sprintf("t%d_pad%d_h%d_%s_page%d_stride%d", tokens, padding, heads, l.Record, l.Page, l.Stride),
			About:  fmt.Sprintf("%d rows, %d slots, %d of them invalid", n, tokens, invalid),
			Params: params,
			In: Arrays{
				"q": reshaped(randomRows(rng, n*heads), n, heads, cache.D), "kv": randomRows(rng, n),
				"slot_mapping": slots, "positions": positions, "cos_sin_rows": table, "cache_before": pool,
			},
		})
	}
	for i, tokens := range sizes {
		add(tokens, 0, []int{64, 5, 8, 1, 2, 3}[i], 0, pageShapes[i%len(pageShapes)], false)
		add(tokens, i%3, []int{1, 128, 7, 8, 4, 1}[i], min(i, 5), pageShapes[(i+3)%len(pageShapes)], false)
	}
	add(69, 5, 3, 5, pageShapes[6], false)
	add(61, 3, 2, 2, pageShapes[7], true)
	for i, l := range recordShapes {
		add([]int{61, 17, 2, 69}[i], i%3, []int{3, 1, 64, 6}[i], i, l, i != 1)
	}
	return cases
}

type qInsertInput struct {
	Q          Array        `in:"q u16 T H 512"`
	KV         Array        `in:"kv u16 T 512"`
	Slots      Array        `in:"slot_mapping i64 *"`
	Table      Array        `in:"cos_sin_rows f32 * 64"`
	Positions  Array        `in:"positions rows T"`
	Pool       Array        `in:"cache_before u8 * Stride"`
	Page       int          `in:"block_size"`
	Record     cache.Record `in:"record=0"`
	Eps        float32      `in:"eps"`
	RotateOnly bool         `in:"rotate_only=0"`

	T, H, Stride int
}

func (x qInsertInput) layout() cache.Layout {
	return cache.Layout{Page: x.Page, Stride: x.Stride, Record: x.Record}
}

func refQInsert(x qInsertInput) (Arrays, error) {
	q, after := x.Q.U16(), x.Pool.Clone()
	heads, kv, slots, positions, table := x.H, x.KV.U16(), x.Slots.I64(), x.Positions.I32(), x.Table.F32()
	var err error
	if x.RotateOnly {
		err = projection.QRotateInsertRef(q, heads, kv, slots, positions, table, after.Data, x.layout())
	} else {
		err = projection.QInsertRef(q, heads, kv, slots, positions, table, x.Eps, after.Data, x.layout())
	}
	return Arrays{"q_out": vectors.FromU16(q, x.Q.Shape...), "cache_after": after}, err
}

func bindQInsert(b Build, x qInsertInput) (Bound, error) {
	op, err := projection.NewQInsert(b.Dev, projection.QInsertConfig{Page: x.Page, Record: x.Record,
		RotateOnly: x.RotateOnly, Eps: x.Eps, MaxBytes: b.MaxBytes,
		Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		pool := r.Pool(x.Pool, Pages{Page: x.Page})
		a := projection.QInsertArgs{ // with sets, a query that was normed is normed again, which costs the same
			Q: r.In(x.Q, tensor.BF16), KV: r.In(x.KV, tensor.BF16), Slots: r.Index(pool, x.Slots, tensor.I64, true),
			Positions: r.Shared(x.Positions, tensor.I32), Table: r.Shared(x.Table, tensor.F32), Cache: kvCache(pool.Tensor, x.layout()),
		}
		return launch(op, a, outs{"q_out": a.Q, "cache_after": a.Cache.Pool})
	})
}

func qInsertSizes(o SizeOptions) (all []Size) {
	for _, t := range o.steps() {
		for _, heads := range o.pick(o.Heads, []int{64, 128}, []int{64, 128}) {
			bytes := t * (2*heads*2*cache.D + 2*cache.D + 8 + 4 + 4*cache.RopeDim + cache.RecordV4.SlotBytes())
			all = append(all, Size{
				Name: fmt.Sprintf("tokens=%d/heads=%d", t, heads), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
				MaxBytes: uint64(max(t*heads*2*cache.D, insertedBytes(t))),
				Make: func(rng *rand.Rand) Case {
					c := largeInsert(rng, t)
					c.In["q"], c.In["kv"] = normalBF16(rng, 1, t, heads, cache.D), c.In["k"]
					c.In["cos_sin_rows"], c.In["positions"] = manyTurns(rng, t)
					c.Params["eps"] = 1e-6
					delete(c.In, "k")
					return c
				},
			})
		}
	}
	return all
}
