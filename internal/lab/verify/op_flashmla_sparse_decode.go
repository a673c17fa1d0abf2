package verify

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "flashmla_sparse_decode", Class: ClassTolerance, Variants: opkit.Decodes(),
		Of:     Of{"attention.Decoder", "attn_decode attn_decode_cm attn_decode_lanes attn_merge", "attention"},
		NaN:    Spoilt{Input: "q", Zero: true},
		Random: randomDecode, Ref: refBy(readDecode, refDecode), Bind: bindBy(readDecode, bindDecode), After: markRounded,
		Timing: Timing{Suite: "attention", Sizes: decodeSizes, Axes: map[string]string{
			"q": "TH", "attn_sink": "H", "swa_indices": "T", "swa_lens": "T", "extra_indices": "T", "extra_lens": "T", "out": "TH", "lse": "TH",
		}},
		Compare: compareBy(ClassTolerance, readDecode, func(cmp *Comparison, c Case, x decodeInput, got, want Arrays) {
			cmp.CloseWeighted("out", got["out"], want["out"], DecodeOut, roundings(c, got), func() ([]float32, error) {
				return attention.DecodeSpreadRef(x.q, x.H, x.win, x.comp, x.Sink.F32(), x.Scale)
			})
			if lse, ok := want["lse"]; ok {
				cmp.Close("lse", got["lse"], lse, DecodeLSE)
			}
		}),
	})
}

func randomDecode(seed uint64) []Case {
	page := func(p, extra int) cache.Layout { return cache.Layout{Page: p, Stride: p*584 + extra} }
	rows8 := func(p, extra int) cache.Layout {
		return cache.Layout{Page: p, Stride: p*528 + extra, Record: cache.RecordFP8}
	}
	rows4 := func(p, extra int) cache.Layout {
		return cache.Layout{Page: p, Stride: p*288 + extra, Record: cache.RecordFP4}
	}
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
		{"V4.1-Flash, a layer with entries", 1, 64, 128, 321, rows8(32, 0), rows4(64, 0), true, false, false, 1, false},
		{"V4.1, odd sizes", 3, 17, 61, 69, rows8(32, 0), rows4(3, 32), true, true, true, 1, false},
		{"V4.1, window only", 5, 64, 69, 0, rows8(32, 0), cache.Layout{}, true, true, false, 1, false},
		{"V4.1, entries of the window's record", 1, 8, 17, 33, rows8(5, 16), rows8(7, 48), false, true, false, 1, false},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		c := Case{
			Name:   fmt.Sprintf("t%d_h%d_swa%d_topk%d", x.t, x.h, x.window, x.topk),
			About:  x.about,
			Params: map[string]any{"softmax_scale": float64(attention.DefaultScale)},
			In:     Arrays{"q": normalBF16(rng, x.deviation, x.t, x.h, cache.D)},
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
			if s.l.Record != cache.RecordV4 {
				c.Params[s.name+"_record"] = int(s.l.Record)
				c.Name += "_" + s.l.Record.String()
			}
		}
		if x.raw {
			c.Name, c.Params["eps"] = c.Name+"_raw", 1e-6
			c.In["cos_sin_rows"], c.In["positions"] = randomTurns(rng, x.t)
			settle(rng, c, 1e-6, x.deviation)
		}
		if x.sink {
			c.In["attn_sink"] = randomSink(rng, x.h)
		}
		cases = append(cases, c)
	}
	return cases
}

// decodeInput is a case of flashmla_sparse_decode or xpu_sparse_decode. With a table of angles its
// queries are raw.
type decodeInput struct {
	Q         Array   `in:"q u16 T H 512"`
	Sink      Array   `in:"attn_sink? f32 H"`
	Table     Array   `in:"cos_sin_rows? f32 * 64"`
	Positions Array   `in:"positions? rows T"`
	Eps       float32 `in:"eps=0"`
	Scale     float32 `in:"softmax_scale"`

	T, H      int
	q         []uint16 // queries as they are attended with
	win, comp *attention.Slots
}

func readDecode(c Case) (decodeInput, error) {
	x, err := fields[decodeInput](c)
	in := c.Input()
	x.win, x.comp = slotsInput(in, "swa", x.T), slotsInput(in, "extra", x.T)
	if x.win == nil {
		in.Array("swa_cache", vectors.U8, -1, -1) // fails, and says that it is missing
	}
	if err = cmp.Or(err, in.Err()); err == nil {
		x.q, err = attended(x.Q, x.Positions, x.Table, x.Eps)
	}
	return x, err
}

// attended returns the queries that are attended with: raw ones, which come with a table of angles,
// are normed and turned, as projection.QInsertRef defines it.
func attended(raw, rows, table Array, eps float32) ([]uint16, error) {
	q, t := raw.U16(), raw.Dim(0)
	if table.IsZero() {
		return q, nil
	}
	return q, projection.QInsertRef(q, raw.Dim(1), make([]uint16, t*cache.D), slices.Repeat([]int64{-1}, t), rows.I32(), table.F32(),
		eps, nil, cache.Layout{Page: 1, Stride: cache.RecordV4.SlotBytes()})
}

// normOf returns what a kernel needs that norms raw queries.
func normOf(r *Rig, rows, table Array, eps float32) attention.QueryNorm {
	return attention.QueryNorm{Eps: eps, Positions: r.In(rows, tensor.I32), Table: r.In(table, tensor.F32)}
}

func refDecode(x decodeInput) (Arrays, error) {
	out, lse, err := attention.DecodeRef(x.q, x.H, x.win, x.comp, x.Sink.F32(), x.Scale)
	if err != nil {
		return nil, err
	}
	return Arrays{"out": vectors.FromF32(out, x.T, x.H, cache.D), "lse": vectors.FromF32(lse, x.T, x.H)}, nil
}

func bindDecode(b Build, x decodeInput) (Bound, error) {
	topk, compPage := setSize(x.comp)
	op, err := attention.NewDecoder(b.Dev, attention.DecoderConfig{Heads: x.H, WindowPage: x.win.Layout.Page, CompressedPage: compPage,
		WindowRecord: x.win.Layout.Record, CompressedRecord: setRecord(x.comp), Scale: x.Scale, MaxBytes: b.MaxBytes, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		a := attention.DecodeArgs{
			Window: SlotSet(r, x.win, decodeWindowSlots), Compressed: SlotSet(r, x.comp, decodeSlots), Sink: r.Shared(x.Sink, tensor.F32),
			Out: r.SharedOut(tensor.BF16, x.T, x.H, cache.D), LSE: r.SharedOut(tensor.F32, x.T, x.H),
			Scratch: r.Scratch(op.ScratchBytes(x.T, x.win.Width, topk)),
		}
		if !x.Table.IsZero() && op.NormsQueries(x.T, x.win.Width, topk) {
			a.Q, a.Norm = r.In(x.Q, tensor.BF16), normOf(r, x.Positions, x.Table, x.Eps)
		} else {
			a.Q = r.In(vectors.FromU16(x.q, x.Q.Shape...), tensor.BF16)
		}
		return launch(op, a, outs{"out": a.Out, "lse": a.LSE})
	})
}

// Slots of the caches of timed cases: rows are drawn from all of them, as different tokens of a
// large batch would.
const decodeSlots, decodeWindowSlots = 1 << 20, 1 << 18

// decodeSizes returns the window's rows with the picks of a C4A layer (512 for up to 64 heads, else
// 1024), the window alone, and the window with 8192 entries of a C128A layer, as at a million
// tokens.
func decodeSizes(o SizeOptions) (all []Size) {
	const window = 128
	for _, batch := range o.pick(o.Batches, []int{1, 8, 32, 128, 256}, []int{1}) { // a layer of DeepSeek-V4.1 with entries
		all = append(all, decodeRecords(batch, 64, o.pick(o.TopK, []int{512}, []int{64})[0], window, 64, cache.RecordFP8, cache.RecordFP4))
	}
	for _, heads := range o.pick(o.Heads, []int{64, 128}, []int{64}) {
		for _, s := range []struct {
			page         int // slots of a compressed page; 0: no compressed cache
			batches, top []int
		}{
			{64, o.pick(o.Batches, []int{1, 2, 8, 32, 64, 128, 256}, []int{1}), o.pick(o.TopK, []int{512 * max(1, heads/64)}, []int{64})},
			{0, o.pick(o.Batches, []int{1, 2, 8, 32, 64, 128, 256}, []int{1}), []int{0}},
			{2, o.pick(o.Batches, []int{1, 8, 32}, []int{1}), o.pick(nil, []int{8192}, []int{512})},
		} {
			for _, topk := range s.top {
				for _, batch := range s.batches {
					size := decodeSize(batch, heads, topk, window, s.page)
					if !slices.ContainsFunc(all, func(x Size) bool { return x.Name == size.Name }) {
						all = append(all, size)
					}
				}
			}
		}
	}
	return all
}

func decodeSize(batch, heads, topk, window, page int) Size {
	return decodeRecords(batch, heads, topk, window, page, cache.RecordV4, cache.RecordV4)
}

// decodeRecords returns a size with caches of any record.
func decodeRecords(batch, heads, topk, window, page int, win, comp cache.Record) Size {
	rows := float64(batch * (topk + window))
	bytes := float64(batch * (window*(win.SlotBytes()+4) + topk*(comp.SlotBytes()+4) + heads*2*2*cache.D))
	work := Work{Bytes: bytes, Flop: 4 * rows * float64(heads) * cache.D}
	name := fmt.Sprintf("heads=%d/topk=%d/window=%d/batch=%d", heads, topk, window, batch)
	if win != cache.RecordV4 {
		name += fmt.Sprintf("/records=%s+%s", win, comp)
	}
	return Size{
		Name: name,
		Work: work, Touched: int(work.Bytes), MostSets: 512, MaxBytes: decodeSlots * 600, Launches: 8, Floor: true,
		Make: func(rng *rand.Rand) Case {
			c := Case{Params: map[string]any{"softmax_scale": float64(attention.DefaultScale)}, In: Arrays{
				"q": normalBF16(rng, 1, batch, heads, cache.D), "attn_sink": normalF32(rng, heads)}}
			addRows(rng, c, "swa", batch, window, 64, win)
			if page > 0 {
				addRows(rng, c, "extra", batch, topk, page, comp)
			}
			return c
		},
	}
}

// addRows adds a cache of random rows and full lists of them, slots of a page being neighbours
// where pages are short.
func addRows(rng *rand.Rand, c Case, name string, tokens, width, page int, record cache.Record) {
	const slots = 4096
	l, err := cache.NewRecordLayout(record, page, 0)
	if err != nil {
		panic(err) // a page of this file that cannot be
	}
	pool, at := vectors.New(vectors.U8, slots/page, l.Stride), make([]int64, slots)
	for i := range at {
		at[i] = int64(i)
	}
	insertNormal(rng, pool, l, at)
	list := make([]int32, tokens*width)
	for i := range list {
		switch {
		case page == 64:
			list[i] = rng.Int32N(slots)
		case i%page == 0:
			list[i] = rng.Int32N(int32(slots/page)) * int32(page)
		default:
			list[i] = list[i-1] + 1
		}
	}
	c.In[name+"_cache"], c.In[name+"_indices"] = pool, vectors.FromI32(list, tokens, width)
	c.In[name+"_lens"] = vectors.FromI32(slices.Repeat([]int32{int32(width)}, tokens), tokens)
	c.Params[name+"_block_size"] = page
	if record != cache.RecordV4 {
		c.Params[name+"_record"] = int(record)
	}
}
