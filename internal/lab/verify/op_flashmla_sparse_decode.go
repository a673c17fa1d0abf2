package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "flashmla_sparse_decode", Class: ClassTolerance, Variants: attention.DecodeVariants,
		Random: randomDecode, Ref: refDecode, Run: runDecode,
		Compare: func(c Case, got, want Arrays) Result {
			cmp := NewComparison(ClassTolerance).CloseWeighted("out", got["out"], want["out"], DecodeOut, roundings(c, got), func() ([]float32, error) {
				x, err := readDecode(c)
				if err != nil {
					return nil, err
				}
				return attention.DecodeSpreadRef(x.q.U16(), x.heads, x.win, x.comp, x.sink.F32(), x.scale)
			})
			if lse, ok := want["lse"]; ok {
				cmp.Close("lse", got["lse"], lse, DecodeLSE)
			}
			return cmp.Result()
		},
	})
}

func randomDecode(seed uint64) []Case {
	page := func(p, extra int) cache.Layout { return cache.Layout{Page: p, Stride: p*584 + extra} }
	var cases []Case
	for i, x := range []struct {
		about         string
		t, h          int
		window, topk  int
		win, comp     cache.Layout
		sink          bool
		masked, dirty bool
		deviation     float64 // of q
		raw           bool    // q is neither normed nor turned
	}{
		{"one key", 1, 1, 1, 0, page(64, 64), cache.Layout{}, false, false, false, 1, false},
		{"one key in each set", 2, 8, 1, 1, page(64, 64), page(2, 560), true, false, false, 1, false},
		{"V4-Flash C4A", 1, 64, 128, 321, page(64, 64), page(64, 0), true, false, false, 1, false},
		{"V4-Pro C128A", 1, 128, 69, 61, page(64, 64), page(2, 560), true, true, false, 1, false},
		{"odd sizes", 17, 17, 61, 69, page(16, 8), page(2, 0), true, true, false, 2, false},
		{"window only", 17, 8, 69, 0, page(2, 24), cache.Layout{}, true, true, false, 1, false},
		{"two heads", 61, 2, 17, 2, page(64, 64), page(1, 40), false, true, true, 1, false},
		{"lengths and indices out of range", 9, 5, 17, 33, page(3, 0), page(7, 64), true, true, true, 4, false},
		{"peaked", 2, 64, 128, 17, page(64, 64), page(64, 64), true, true, false, 8, false},
		{"every slot twice", 1, 8, 128, 61, page(64, 64), page(2, 560), false, false, false, 1, false},
		{"V4-Flash C4A, queries to be normed", 1, 64, 128, 321, page(64, 64), page(64, 0), true, true, false, 0.01, true},
		{"odd sizes, queries to be normed", 3, 17, 69, 61, page(64, 64), page(2, 560), true, true, false, 30, true},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		c := Case{
			Name:   fmt.Sprintf("t%d_h%d_swa%d_topk%d", x.t, x.h, x.window, x.topk),
			About:  x.about,
			Params: map[string]any{"softmax_scale": float64(attention.DefaultScale)},
			In:     Arrays{"q": normalBF16(rng, x.deviation, x.t, x.h, attention.D)},
		}
		for _, s := range []struct {
			name  string
			width int
			l     cache.Layout
		}{{"swa", x.window, x.win}, {"extra", x.topk, x.comp}} {
			if s.width == 0 {
				continue
			}
			pool, idx, lens := randomSet(rng, x.t, s.width, s.l, x.masked, x.dirty)
			c.In[s.name+"_cache"], c.In[s.name+"_indices"], c.In[s.name+"_lens"] = pool, idx, lens
			c.Params[s.name+"_block_size"], c.Params[s.name+"_block_stride_bytes"] = s.l.Page, s.l.Stride
		}
		if x.raw {
			c.Name, c.Params["eps"] = c.Name+"_raw", 1e-6
			c.In["cos_sin_rows"], c.In["positions"] = randomTurns(rng, x.t)
		}
		if x.sink {
			c.In["attn_sink"] = randomSink(rng, x.h)
		}
		cases = append(cases, c)
	}
	return cases
}

// decodeInput is a case of flashmla_sparse_decode or xpu_sparse_decode.
type decodeInput struct {
	q, sink       Array // q as it is attended with
	raw           Array // q before it is normed and turned, by eps and a table's rows; absent where it was not
	table, rows   Array
	eps           float32
	win, comp     *attention.Slots
	tokens, heads int
	scale         float32
}

func readDecode(c Case) (x decodeInput, err error) {
	in := c.Input()
	x.q = in.Array("q", vectors.U16, -1, -1, attention.D)
	x.tokens, x.heads = x.q.Dim(0), x.q.Dim(1)
	x.sink = in.Optional("attn_sink", vectors.F32, x.heads)
	x.win, x.comp = slotsInput(in, "swa", x.tokens), slotsInput(in, "extra", x.tokens)
	x.scale = float32(in.Float("softmax_scale"))
	if x.win == nil {
		in.Array("swa_cache", vectors.U8, -1, -1) // fails, and says that it is missing
	}
	if in.Has("cos_sin_rows") {
		x.table, x.eps = in.Array("cos_sin_rows", vectors.F32, -1, projection.RopeDim), float32(in.Float("eps"))
		x.rows = in.Array("positions", vectors.I64, x.tokens)
		if in.Err() == nil {
			err = x.norm(c)
			return x, err
		}
	}
	return x, in.Err()
}

// norm makes of raw queries those that are attended with, as projection.QInsertRef defines
// them.
func (x *decodeInput) norm(c Case) error {
	var err error
	if x.rows, err = tableRows(c, x.rows, Array{}); err != nil {
		return err
	}
	q, none := slices.Clone(x.q.U16()), make([]int64, x.tokens)
	for i := range none {
		none[i] = -1
	}
	err = projection.QInsertRef(q, x.heads, make([]uint16, x.tokens*attention.D), none, x.rows.I32(), x.table.F32(), x.eps, nil, cache.Layout{Page: 1, Stride: cache.SlotBytes})
	x.raw, x.q = x.q, vectors.FromU16(q, x.tokens, x.heads, attention.D)
	return err
}

func refDecode(c Case) (Arrays, error) {
	x, err := readDecode(c)
	if err != nil {
		return nil, err
	}
	out, lse, err := attention.DecodeRef(x.q.U16(), x.heads, x.win, x.comp, x.sink.F32(), x.scale)
	if err != nil {
		return nil, err
	}
	return Arrays{"out": vectors.FromF32(out, x.tokens, x.heads, attention.D), "lse": vectors.FromF32(lse, x.tokens, x.heads)}, nil
}

func runDecode(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error) {
	x, err := readDecode(c)
	if err != nil {
		return nil, err
	}
	topk, compPage := setSize(x.comp)
	cfg := attention.DecoderConfig{Heads: x.heads, WindowPage: x.win.Layout.Page, CompressedPage: compPage, Scale: x.scale, Variant: variant}
	op, err := attention.NewDecoder(dev, cfg)
	if err != nil {
		return nil, err
	}
	r := NewRig(ctx, dev)
	defer r.Close()
	a := attention.DecodeArgs{
		Q: r.In(x.q, tensor.BF16), Window: slotSet(r, x.win), Compressed: slotSet(r, x.comp), Sink: r.In(x.sink, tensor.F32),
		Out: r.Out(tensor.BF16, x.tokens, x.heads, attention.D), LSE: r.Out(tensor.F32, x.tokens, x.heads),
	}
	if n := op.ScratchBytes(x.tokens, x.win.Width, topk); n > 0 {
		a.Scratch = r.Out(tensor.F32, int(n+3)/4).View() // a NaN wherever a part is read that was not written
	}
	if len(x.raw.Shape) > 0 && op.NormsQueries(x.tokens, x.win.Width, topk) {
		a.Q = r.In(x.raw, tensor.BF16)
		a.Norm = attention.QueryNorm{Eps: x.eps, Positions: r.In(x.rows, tensor.I32), Table: r.In(x.table, tensor.F32)}
	}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	got, err := r.Results(map[string]tensor.Tensor{"out": a.Out, "lse": a.LSE})
	return markRounded(got, err, variant)
}
