package verify

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "dequantize_and_gather_k_cache", Class: ClassExact, Variants: opkit.Builds("kv_gather"),
		Of:     Of{"cache.Gather", "kv_gather", ""},
		Random: randomGather, Ref: refBy(readGather, refGather), Bind: bindBy(readGather, bindGather), Compare: exactly("out_after"),
		Timing: Timing{Suite: "memory", Sizes: gatherSizes},
	})
}

func randomGather(seed uint64) []Case {
	var cases []Case
	// add makes a case of requests with the given lengths in slots; windows caps
	// what is gathered of each, 0 for all.
	add := func(lens []int32, window int, l cache.Layout, offset, spare int) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		need, width, rows := 0, 1, 0
		var gather []int32
		for _, n := range lens {
			entries := (int(n) + l.Page - 1) / l.Page
			need, width = need+entries, max(width, entries+1)
			g := n
			if window > 0 {
				g = min(n, int32(1+rng.IntN(window)))
			}
			gather = append(gather, g)
			rows = max(rows, offset+int(g))
		}
		rows += spare
		pages := need + 2
		ids, pool := permutation[int32](rng, need, pages), poisonedPool(pages, l)
		table := slices.Repeat([]int32{-1}, len(lens)*width)
		for r, n := range lens {
			row := table[r*width:][:width]
			entries := (int(n) + l.Page - 1) / l.Page
			copy(row, ids[:entries])
			ids = ids[entries:]
			for p := int(n - gather[r]); p < int(n); p++ {
				fillSlot(rng, pool, l, int64(row[p/l.Page])*int64(l.Page)+int64(p%l.Page))
			}
			for e := range int(n-gather[r]) / l.Page { // pages before the window are gone
				row[e] = -1
			}
		}
		in := Arrays{
			"cache": pool, "seq_lens": vectors.FromI32(lens, len(lens)), "block_table": vectors.FromI32(table, len(lens), width),
			"out_before": vectors.Filled(0xFF, vectors.U16, len(lens), rows, cache.D),
		}
		if window > 0 {
			in["gather_lens"] = vectors.FromI32(gather, len(lens))
		}
		params := layoutParams(l)
		params["offset"] = offset
		cases = append(cases, Case{
			Name:   fmt.Sprintf("r%d_n%d_%s_page%d_stride%d_offset%d", len(lens), lens[0], l.Record, l.Page, l.Stride, offset),
			Params: params,
			In:     in,
		})
	}
	add([]int32{1}, 0, pageShapes[0], 0, 0)
	add([]int32{2, 17, 0}, 0, pageShapes[1], 3, 1)
	add([]int32{61, 69}, 0, pageShapes[2], 1, 2)
	add([]int32{321, 1}, 0, pageShapes[0], 0, 5)
	add([]int32{321, 2, 61, 17}, 70, pageShapes[7], 7, 0)
	add([]int32{69, 70}, 17, pageShapes[3], 2, 3)
	add([]int32{17, 61, 2}, 10, pageShapes[4], 0, 1)
	add([]int32{61, 17}, 0, pageShapes[5], 5, 0)
	add([]int32{69, 1, 2}, 69, pageShapes[6], 1, 1)
	add([]int32{61, 2, 17}, 40, recordShapes[0], 1, 1)
	add([]int32{69, 5}, 0, recordShapes[3], 2, 0)
	cases = append(cases, gatherHostBugs(seed))
	return cases
}

// gatherHostBugs returns a case whose lengths and page ids go beyond everything. Its
// result is defined all the same, and nothing outside the tensors may be touched.
func gatherHostBugs(seed uint64) Case {
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	l, pages := cache.Layout{Page: 2, Stride: 1168}, 5
	pool := poisonedPool(pages, l)
	for s := range int64(pages * l.Page) {
		fillSlot(rng, pool, l, s)
	}
	return Case{
		Name:   "host_bugs",
		About:  "page ids that are negative or beyond the pool, positions beyond the table or below 0, more rows than there is room",
		Params: map[string]any{"block_size": 2, "block_stride_bytes": 1168, "offset": 1},
		In: Arrays{
			"cache":       pool,
			"seq_lens":    vectors.FromI32([]int32{6, 100, 3, -5, 4, 1 << 30}, 6),
			"gather_lens": vectors.FromI32([]int32{6, 100, 9, 2, -3, 1 << 30}, 6),
			"block_table": vectors.FromI32([]int32{-1, 5, 4, 3, 2, 1, 0, -9, 1 << 30, 4, 3, 2, 1, 1, 1, 0, 0, 0}, 6, 3),
			"out_before":  vectors.Filled(0xFF, vectors.U16, 6, 9, cache.D),
		},
	}
}

type gatherInput struct {
	Pool   Array        `in:"cache u8 * Stride"`
	Seq    Array        `in:"seq_lens i32 R"`
	Gather Array        `in:"gather_lens? i32 R"`
	Table  Array        `in:"block_table+ i32 R W"`
	Out    Array        `in:"out_before? u16 R Rows 512"`
	Page   int          `in:"block_size"`
	Record cache.Record `in:"record=0"`
	Offset int          `in:"offset"`

	Stride, R, W, Rows int
	layout             cache.Layout
}

// readGather reads a case. A recorded one without out_before has every row of out_after written.
func readGather(c Case) (x gatherInput, err error) {
	x, err = fields[gatherInput](c)
	if after := c.Want["out_after"]; x.Out.IsZero() && len(after.Shape) == 3 {
		x.Out, x.Rows = vectors.Filled(0xFF, vectors.U16, after.Shape...), after.Dim(1)
	}
	if err == nil && x.Out.IsZero() {
		return x, fmt.Errorf("verify: %s.%s: no out_before: %w", c.Op, c.Name, vectors.ErrFormat)
	}
	x.layout = cache.Layout{Page: x.Page, Stride: x.Stride, Record: x.Record}
	return x, err
}

func refGather(x gatherInput) (Arrays, error) {
	out := x.Out.U16()
	err := cache.GatherRef(out, x.Rows, x.Pool.Data, x.layout, x.Seq.I32(), x.Gather.I32(), x.Table.I32(), x.W, x.Offset)
	return Arrays{"out_after": vectors.FromU16(out, x.Out.Shape...)}, err
}

func bindGather(b Build, x gatherInput) (Bound, error) {
	op, err := cache.NewGather(b.Dev, cache.PagesConfig{Page: x.Page, Record: x.Record, MaxBytes: b.MaxBytes, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		pool := r.Pool(x.Pool, Pages{Page: x.Page, Spread: SpreadPages, Numbers: x.Table.Len()})
		a := cache.GatherArgs{
			Out: r.Shared(x.Out, tensor.BF16), Cache: kvCache(pool.Tensor, x.layout), SeqLens: r.Shared(x.Seq, tensor.I32),
			GatherLens: r.Shared(x.Gather, tensor.I32), Table: r.Index(pool, x.Table, tensor.I32, false), Offset: x.Offset,
		}
		return launch(op, a, outs{"out_after": a.Out})
	})
}

// gatherSizes are rows of one request and of four.
func gatherSizes(o SizeOptions) (all []Size) {
	const page, pages = 64, 64 // slots; different pages
	for _, requests := range []int{1, 4} {
		for _, total := range o.pick(o.Rows, []int{65536}, []int{512}) {
			rows := total / requests
			width, bytes := (rows+page-1)/page, requests*rows*(cache.RecordV4.SlotBytes()+2*cache.D)
			l := leastLayout(page)
			all = append(all, Size{
				Name: fmt.Sprintf("requests=%d/rows=%d", requests, requests*rows), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
				MaxBytes: uint64(max((requests*width+pages)*l.Stride+RotateBytes, requests*rows*2*cache.D)),
				Make: func(rng *rand.Rand) Case {
					pool := poisonedPool(min(pages, requests*width), l)
					for s := range int64(pool.Dim(0) * page) {
						fillSlot(rng, pool, l, s)
					}
					table := make([]int32, requests*width)
					for i, p := range rng.Perm(len(table)) {
						table[i] = int32(p % pool.Dim(0))
					}
					return Case{Params: map[string]any{"block_size": page, "offset": 0}, In: Arrays{
						"cache": pool, "seq_lens": vectors.FromI32(slices.Repeat([]int32{int32(rows)}, requests), requests),
						"block_table": vectors.FromI32(table, requests, width), "out_before": vectors.Filled(0xFF, vectors.U16, requests, rows, cache.D),
					}}
				},
			})
		}
	}
	return all
}
