package verify

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "xpu_sparse_prefill", Class: ClassTolerance, Variants: opkit.Builds("attn_prefill"),
		Of:     Of{"attention.Gathered", "attn_placed_indices kv_gather_runs attn_prefill", "attention"},
		Random: randomGathered, Ref: refBy(readGathered, refGathered),
		Bind: bindBy(readGathered, bindGathered), After: markRounded, Compare: compareGathered,
	})
}

// randomGathered makes mixed steps of layers of each kind, with a workspace for all of their rows
// and with one so small that they go in pieces.
func randomGathered(seed uint64) []Case {
	var cases []Case
	requests := []int32{0, 23, 151, 2, 1, 140, 3, 3, 3, 5, 14, 40, 6, 1, 5} // page table, tokens, length
	for i, rows := range []attention.RowConfig{
		{Window: 9}, {Window: 9, Ratio: 4, Width: 5, Picks: true}, {Window: 9, Ratio: 8, Width: 32},
	} {
		for j, room := range []int{1 << 12, 3 * rows.LeastRows(), rows.LeastRows()} {
			rng := rand.New(rand.NewPCG(seed, uint64(8*i+j)))
			b := gatheredBuilder{rng: rng, rows: rows, requests: requests, records: map[string]cache.Record{}}
			if i == 1 && j == 1 || i == 0 && j == 2 { // as DeepSeek-V4.1 has them
				b.records = map[string]cache.Record{"window": cache.RecordFP8, "entry": cache.RecordFP4}
			}
			cases = append(cases, b.build(5, room))
		}
	}
	return cases
}

type gatheredBuilder struct {
	rng      *rand.Rand
	rows     attention.RowConfig
	requests []int32
	records  map[string]cache.Record // of the caches

	positions, window, windowLens, entries, entryLens, picks []int32
}

func (b *gatheredBuilder) build(heads, room int) Case {
	const tables, longest, padding = 7, 151, 2
	in := Arrays{"requests": vectors.FromI32(b.requests, len(b.requests)/3, 3)}
	windows := b.pages(in, "window", 4, tables, longest)
	var entries attention.Table
	if b.rows.Ratio > 0 {
		entries = b.pages(in, "entry", 2, tables, longest/b.rows.Ratio+1)
	}
	for x := range slices.Chunk(b.requests, 3) {
		for p := int(x[2] - x[1]); p < int(x[2]); p++ {
			b.token(windows, entries, x[0], p)
		}
	}
	for range padding {
		b.positions = append(b.positions, 0)
		b.window, b.windowLens = append(b.window, make([]int32, b.rows.Window)...), append(b.windowLens, 0)
		b.entries, b.entryLens = append(b.entries, make([]int32, b.rows.Width)...), append(b.entryLens, 0)
		b.picks = append(b.picks, make([]int32, b.rows.Width)...)
	}
	t, sink := len(b.positions), make([]float32, heads)
	for h := range sink {
		sink[h] = float32(b.rng.NormFloat64())
	}
	in["q"], in["sink"] = manyBF16(b.rng, 1, t, heads, cache.D), vectors.FromF32(sink, heads)
	in["positions"], in["window_lens"] = vectors.FromI32(b.positions, t), vectors.FromI32(b.windowLens, t)
	in["window_slots"] = vectors.FromI32(b.window, t, b.rows.Window)
	if b.rows.Ratio > 0 {
		in["entry_slots"], in["entry_lens"] = vectors.FromI32(b.entries, t, b.rows.Width), vectors.FromI32(b.entryLens, t)
		in["topk"] = vectors.FromI32(b.picks, t, b.rows.Width)
	}
	picks := 0
	if b.rows.Picks {
		picks = 1
	}
	return Case{
		Name: fmt.Sprintf("t%d_ratio%d_width%d_room%d", t, b.rows.Ratio, b.rows.Width, room),
		Params: map[string]any{"ratio": b.rows.Ratio, "width": b.rows.Width, "picks": picks, "room": room,
			"window_record": int(b.records["window"]), "entry_record": int(b.records["entry"])}, In: in,
	}
}

// pages makes a pool of rows of requests at random places, and their page table.
func (b *gatheredBuilder) pages(in Arrays, name string, page, requests, length int) attention.Table {
	record := b.records[name]
	stride, w := record.DefaultStride(page), (length+page-1)/page
	tab := attention.Table{R: requests, W: w, Page: page}
	pages := requests*w + 3
	pool := vectors.Filled(0xFF, vectors.U8, pages, stride)
	for _, id := range b.rng.Perm(pages)[:requests*w] {
		tab.Blocks = append(tab.Blocks, int32(id))
	}
	var slots []int64
	for r := range requests {
		for i := range length {
			slots = append(slots, int64(tab.Slot(int32(r), i)))
		}
	}
	rows := manyBF16(b.rng, 1, len(slots), cache.D).U16()
	if err := cache.InsertRef(pool.Data, cache.Layout{Page: page, Stride: stride, Record: record}, rows, slots); err != nil {
		panic(err) // of sizes that are written above
	}
	in[name+"_pool"], in[name+"_table"] = pool, vectors.FromI32(tab.Blocks, requests, w)
	return tab
}

// token appends the lists of a token.
func (b *gatheredBuilder) token(windows, entries attention.Table, request int32, p int) {
	b.positions = append(b.positions, int32(p))
	first := max(0, p-b.rows.Window+1)
	for j := range b.rows.Window {
		b.window = append(b.window, windows.Slot(request, min(first+j, p)))
	}
	b.windowLens = append(b.windowLens, int32(p-first+1))
	if b.rows.Ratio == 0 {
		return
	}
	seen := (p + 1) / b.rows.Ratio
	picks := b.rng.Perm(max(seen, 1))[:min(seen, b.rows.Width)]
	if slices.Sort(picks); !b.rows.Picks {
		for i := range picks {
			picks[i] = i
		}
	}
	for j := range b.rows.Width {
		e, slot := int32(-1), int32(-1)
		if j < len(picks) {
			e, slot = int32(picks[j]), entries.Slot(request, picks[j])
		}
		b.picks, b.entries = append(b.picks, e), append(b.entries, slot)
	}
	b.entryLens = append(b.entryLens, int32(len(picks)))
}

// gatheredInput is a case.
type gatheredInput struct {
	rows                       attention.RowConfig
	q, sink, positions, topk   Array
	window, entries            *attention.Slots // entries: nil without
	windowTable, entryTable    Array
	windowPool, entryPool      Array
	requests                   []int32
	tokens, heads, room, picks int
}

func readGathered(c Case) (x gatheredInput, err error) {
	in := c.Input()
	x.q = in.Array("q", vectors.U16, -1, -1, cache.D)
	x.tokens, x.heads = x.q.Dim(0), x.q.Dim(1)
	x.sink, x.positions = in.Array("sink", vectors.F32, x.heads), in.Array("positions", vectors.I32, x.tokens)
	x.requests, x.room, x.picks = in.Array("requests", vectors.I32, -1, 3).I32(), in.Int("room"), in.Int("picks")
	slots := func(name string) (*attention.Slots, Array, Array) {
		list, pool := in.Array(name+"_slots", vectors.I32, x.tokens, -1), in.Array(name+"_pool", vectors.U8, -1, -1)
		page := 4
		if name == "entry" {
			page = 2
		}
		return &attention.Slots{Width: list.Dim(1), Indices: list.I32(), Lens: in.Array(name+"_lens", vectors.I32, x.tokens).I32(),
				Pool: pool.Data, Layout: cache.Layout{Page: page, Stride: pool.Dim(1), Record: recordOf(in, name+"_record")}},
			in.Array(name+"_table", vectors.I32, -1, -1), pool
	}
	x.window, x.windowTable, x.windowPool = slots("window")
	x.rows = attention.RowConfig{Window: x.window.Width, Ratio: in.Int("ratio"), Width: in.Int("width"), Picks: x.picks != 0}
	if x.rows.Ratio > 0 {
		x.entries, x.entryTable, x.entryPool = slots("entry")
		x.topk = in.Array("topk", vectors.I32, x.tokens, x.rows.Width)
	}
	if err := in.Err(); err != nil {
		return x, err
	}
	longest := 0
	for r := range slices.Chunk(x.requests, 3) {
		longest = max(longest, int(r[2]))
	}
	x.rows = x.rows.Divide(uint64(x.room)*2*cache.D, x.tokens, len(x.requests)/3, longest)
	return x, nil
}

func refGathered(x gatheredInput) (Arrays, error) {
	out, lse, err := attention.DecodeRef(x.q.U16(), x.heads, x.window, x.entries, x.sink.F32(), attention.DefaultScale)
	if err != nil {
		return nil, err
	}
	return Arrays{"out": vectors.FromBF16(out, x.tokens, x.heads, cache.D), "lse": vectors.FromF32(lse, x.tokens, x.heads)}, nil
}

func bindGathered(b Build, x gatheredInput) (Bound, error) {
	cfg := attention.GatheredConfig{Heads: x.heads, WindowPage: x.window.Layout.Page, WindowRecord: x.window.Layout.Record,
		Rows: x.rows, Variant: b.Variant}
	if x.entries != nil {
		cfg.CompressedPage, cfg.CompressedRecord = x.entries.Layout.Page, x.entries.Layout.Record
	}
	op, err := attention.NewGathered(b.Dev, cfg)
	if err != nil {
		return Bound{}, err
	}
	var plan attention.RowPlan
	plan.Begin(x.rows)
	for r := range slices.Chunk(x.requests, 3) {
		plan.Add(int(r[0]), int(r[1]), int(r[2]))
	}
	plan.End(x.tokens)
	plan.Pad(plan.Pieces() + plan.Pieces()%2)
	return Bound{op.Variant(), func(r *Rig) Launch {
		flat := func(list [][4]int32, shape ...int) tensor.Tensor {
			var all []int32
			for i := range list {
				all = append(all, list[i][:]...)
			}
			return r.In(vectors.FromI32(all, shape...), tensor.I32)
		}
		a := attention.GatheredArgs{Q: r.In(x.q, tensor.BF16), Positions: r.In(x.positions, tensor.I32), Pieces: len(plan.Heads),
			Plan: attention.PlanTensors{Places: flat(plan.Places, x.tokens, 4), Heads: flat(plan.Heads, len(plan.Heads), 2, 2),
				Runs: flat(plan.Runs, len(plan.Runs), 4)},
			Workspace: r.Out(tensor.BF16, x.rows.Rows(), cache.D), Sink: r.In(x.sink, tensor.F32),
			Out: r.Out(tensor.BF16, x.tokens, x.heads, cache.D), LSE: r.Out(tensor.F32, x.tokens, x.heads),
			Scratch: r.Scratch(op.ScratchBytes(x.tokens)),
			Window:  attention.PagedRows{Cache: kvCache(r.In(x.windowPool, tensor.U8), x.window.Layout), Table: r.In(x.windowTable, tensor.I32)}}
		if x.entries != nil {
			pool := kvCache(r.In(x.entryPool, tensor.U8), x.entries.Layout)
			a.Compressed = attention.PagedRows{Cache: pool, Table: r.In(x.entryTable, tensor.I32)}
			a.Slots = r.In(vectors.FromI32(x.entries.Indices, x.tokens, x.entries.Width), tensor.I32)
		}
		if x.picks != 0 {
			a.TopK = r.In(x.topk, tensor.I32)
		}
		return launch(op, a, outs{"out": a.Out, "lse": a.LSE})
	}}, nil
}

func compareGathered(c Case, got, want Arrays) Result {
	cmp := NewComparison(ClassTolerance)
	x, err := readGathered(c)
	if err != nil {
		return cmp.Fail("%v", err).Result()
	}
	return cmp.CloseWeighted("out", got["out"], want["out"], DecodeOut, roundings(c, got), func() ([]float32, error) {
		return attention.DecodeSpreadRef(x.q.U16(), x.heads, x.window, x.entries, x.sink.F32(), attention.DefaultScale)
	}).Close("lse", got["lse"], want["lse"], DecodeLSE).Result()
}
