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
		NaN:    Spoilt{Input: "q", Zero: true},
		Random: randomGathered, Ref: refBy(readGathered, refGathered),
		Bind: bindBy(readGathered, bindGathered), After: markRounded,
		Compare: compareBy(ClassTolerance, readGathered, compareGathered),
	})
}

// Slots of the pages of either pool.
const windowRows, entryRows = 4, 2

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
			cases = append(cases, b.build(5, room, j))
		}
	}
	// Enough heads that the kernels in lanes are taken where lanes are known.
	picks := attention.RowConfig{Window: 9, Ratio: 4, Width: 5, Picks: true}
	b := gatheredBuilder{rng: rand.New(rand.NewPCG(seed, 99)), rows: picks, requests: []int32{0, 3, 70, 1, 1, 30}}
	return append(cases, b.build(33, picks.LeastRows(), 1))
}

type gatheredBuilder struct {
	rng      *rand.Rand
	rows     attention.RowConfig
	requests []int32
	records  map[string]cache.Record // of the caches

	positions, window, windowLens, entries, entryLens, picks []int32
}

func (b *gatheredBuilder) build(heads, room, splits int) Case {
	const tables, longest, padding = 7, 151, 2
	in := Arrays{"requests": vectors.FromI32(b.requests, len(b.requests)/3, 3)}
	windows := b.pages(in, "window", windowRows, tables, longest)
	var entries attention.Table
	if b.rows.Ratio > 0 {
		entries = b.pages(in, "entry", entryRows, tables, longest/b.rows.Ratio+1)
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
	in["q"], in["sink"] = normalBF16(b.rng, 1, t, heads, cache.D), vectors.FromF32(sink, heads)
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
		Params: map[string]any{"ratio": b.rows.Ratio, "width": b.rows.Width, "picks": picks, "room": room, "splits": splits,
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
	insertNormal(b.rng, pool, cache.Layout{Page: page, Stride: stride, Record: record}, slots)
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

// gatheredInput is a case; of the pools' layouts only the pages are not in it.
type gatheredInput struct {
	Q            Array        `in:"q u16 T H 512"`
	Sink         Array        `in:"sink f32 H"`
	Positions    Array        `in:"positions i32 T"`
	Requests     Array        `in:"requests i32 R 3"`
	WindowSlots  Array        `in:"window_slots i32 T Window"`
	WindowLens   Array        `in:"window_lens i32 T"`
	WindowPool   Array        `in:"window_pool u8 * *"`
	WindowTable  Array        `in:"window_table i32 * *"`
	EntrySlots   Array        `in:"entry_slots? i32 T Width"`
	EntryLens    Array        `in:"entry_lens? i32 T"`
	EntryPool    Array        `in:"entry_pool? u8 * *"`
	EntryTable   Array        `in:"entry_table? i32 * *"`
	TopK         Array        `in:"topk? i32 T *"`
	Room         int          `in:"room"`
	Ratio        int          `in:"ratio"`
	Picks        bool         `in:"picks"`
	Splits       int          `in:"splits=0"`
	WindowRecord cache.Record `in:"window_record=0"`
	EntryRecord  cache.Record `in:"entry_record=0"`

	T, H, R, Window, Width int
	rows                   attention.RowConfig
	window, entries        *attention.Slots // entries: nil without
}

func readGathered(c Case) (gatheredInput, error) {
	x, err := fields[gatheredInput](c)
	if err != nil {
		return x, err
	}
	slots := func(list, lens, pool Array, page int, record cache.Record) *attention.Slots {
		return &attention.Slots{Width: list.Dim(1), Indices: list.I32(), Lens: lens.I32(), Pool: pool.Data,
			Layout: cache.Layout{Page: page, Stride: pool.Dim(1), Record: record}}
	}
	x.window = slots(x.WindowSlots, x.WindowLens, x.WindowPool, windowRows, x.WindowRecord)
	x.rows = attention.RowConfig{Window: x.Window, Ratio: x.Ratio, Width: x.Width, Picks: x.Picks}
	if x.Ratio > 0 {
		x.entries = slots(x.EntrySlots, x.EntryLens, x.EntryPool, entryRows, x.EntryRecord)
	}
	longest := 0
	for r := range slices.Chunk(x.Requests.I32(), 3) {
		longest = max(longest, int(r[2]))
	}
	x.rows = x.rows.Divide(uint64(x.Room)*2*cache.D, x.T, x.R, longest)
	return x, nil
}

func refGathered(x gatheredInput) (Arrays, error) {
	out, lse, err := attention.DecodeRef(x.Q.U16(), x.H, x.window, x.entries, x.Sink.F32(), attention.DefaultScale)
	if err != nil {
		return nil, err
	}
	return Arrays{"out": vectors.FromBF16(out, x.T, x.H, cache.D), "lse": vectors.FromF32(lse, x.T, x.H)}, nil
}

func bindGathered(b Build, x gatheredInput) (Bound, error) {
	cfg := attention.GatheredConfig{Heads: x.H, WindowPage: x.window.Layout.Page, WindowRecord: x.window.Layout.Record,
		Rows: x.rows, Variant: b.Variant, Splits: x.Splits}
	if x.entries != nil {
		cfg.CompressedPage, cfg.CompressedRecord = x.entries.Layout.Page, x.entries.Layout.Record
	}
	op, err := attention.NewGathered(b.Dev, cfg)
	if err == nil {
		err = op.Prepare(x.T)
	}
	if err != nil {
		return Bound{}, err
	}
	var plan attention.RowPlan
	plan.Begin(x.rows)
	for r := range slices.Chunk(x.Requests.I32(), 3) {
		plan.Add(int(r[0]), int(r[1]), int(r[2]))
	}
	plan.End(x.T)
	plan.Pad(plan.Pieces() + plan.Pieces()%2)
	return Bound{op.Variant(), func(r *Rig) Launch {
		flat := func(list [][4]int32, shape ...int) tensor.Tensor {
			var all []int32
			for i := range list {
				all = append(all, list[i][:]...)
			}
			return r.In(vectors.FromI32(all, shape...), tensor.I32)
		}
		a := attention.GatheredArgs{Q: r.In(x.Q, tensor.BF16), Positions: r.In(x.Positions, tensor.I32), Pieces: len(plan.Heads),
			Plan: attention.PlanTensors{Places: flat(plan.Places, x.T, 4), Heads: flat(plan.Heads, len(plan.Heads), 2, 2),
				Runs: flat(plan.Runs, len(plan.Runs), 4)},
			Workspace: r.Out(tensor.BF16, x.rows.Rows(), cache.D), Sink: r.In(x.Sink, tensor.F32),
			Out: r.Out(tensor.BF16, x.T, x.H, cache.D), LSE: r.Out(tensor.F32, x.T, x.H),
			Scratch: r.Scratch(op.ScratchBytes(x.T)),
			Window:  attention.PagedRows{Cache: kvCache(r.In(x.WindowPool, tensor.U8), x.window.Layout), Table: r.In(x.WindowTable, tensor.I32)}}
		if x.entries != nil {
			pool := kvCache(r.In(x.EntryPool, tensor.U8), x.entries.Layout)
			a.Compressed = attention.PagedRows{Cache: pool, Table: r.In(x.EntryTable, tensor.I32)}
			a.Slots = r.In(x.EntrySlots, tensor.I32)
		}
		if x.Picks {
			a.TopK = r.In(x.TopK, tensor.I32)
		}
		return launch(op, a, outs{"out": a.Out, "lse": a.LSE})
	}}, nil
}

func compareGathered(cmp *Comparison, c Case, x gatheredInput, got, want Arrays) {
	cmp.CloseWeighted("out", got["out"], want["out"], DecodeOut, roundings(c, got), func() ([]float32, error) {
		return attention.DecodeSpreadRef(x.Q.U16(), x.H, x.window, x.entries, x.Sink.F32(), attention.DefaultScale)
	}).Close("lse", got["lse"], want["lse"], DecodeLSE)
}
