package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "quantize_and_insert_k_cache", Class: ClassExact, Variants: opkit.Builds("kv_insert"),
		Of:     Of{"cache.Insert", "kv_insert", ""},
		Random: randomInsert, Ref: refBy(readInsert, refInsert), Bind: bindBy(readInsert, bindInsert), Compare: exactly("cache_after"),
		Timing: Timing{Suite: "memory", Sizes: insertSizes, Axes: map[string]string{"cache_after": "."}},
	})
}

func randomInsert(seed uint64) []Case {
	var cases []Case
	add := func(tokens, extra int, l cache.Layout, invalid int) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		pool, slots := randomSlots(rng, tokens, invalid, l)
		cases = append(cases, Case{
			Name:   fmt.Sprintf("t%d_%s_page%d_stride%d", tokens, l.Record, l.Page, l.Stride),
			About:  fmt.Sprintf("%d rows, %d slots, %d of them invalid", tokens+extra, tokens, invalid),
			Params: layoutParams(l),
			In:     Arrays{"k": randomRows(rng, tokens+extra), "slot_mapping": slots, "cache_before": pool},
		})
	}
	for i, tokens := range []int{1, 2, 17, 61, 69, 321} {
		add(tokens, 0, pageShapes[i%len(pageShapes)], 0)
		add(tokens, i%3, pageShapes[(i+3)%len(pageShapes)], min(i, 5))
	}
	add(69, 0, pageShapes[6], 5)
	add(61, 3, pageShapes[7], 2)
	for i, l := range recordShapes {
		add([]int{61, 17, 1, 69}[i], i%3, l, i)
	}
	return cases
}

type insertInput struct {
	K      Array        `in:"k u16 * 512"`
	Slots  Array        `in:"slot_mapping i64 *"`
	Pool   Array        `in:"cache_before? u8 * *"`
	Page   int          `in:"block_size"`
	Record cache.Record `in:"record=0"`

	layout cache.Layout
}

// readInsert reads a case. A recorded one without cache_before began with every byte 0xA5.
func readInsert(c Case) (x insertInput, err error) {
	x, err = fields[insertInput](c)
	if after, ok := c.Want["cache_after"]; ok && x.Pool.IsZero() && len(after.Shape) == 2 {
		x.Pool = vectors.Filled(0xA5, vectors.U8, after.Shape...)
	}
	if err == nil && x.Pool.IsZero() {
		return x, fmt.Errorf("verify: %s.%s: no cache_before: %w", c.Op, c.Name, vectors.ErrFormat)
	}
	x.layout = cache.Layout{Page: x.Page, Stride: x.Pool.Dim(1), Record: x.Record}
	return x, err
}

func refInsert(x insertInput) (Arrays, error) {
	after := x.Pool.Clone()
	err := cache.InsertRef(after.Data, x.layout, x.K.U16(), x.Slots.I64())
	return Arrays{"cache_after": after}, err
}

func bindInsert(b Build, x insertInput) (Bound, error) {
	op, err := cache.NewInsert(b.Dev, cache.PagesConfig{Page: x.Page, Record: x.Record, MaxBytes: b.MaxBytes, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		pages := r.Pool(x.Pool, Pages{Page: x.Page})
		kv := kvCache(pages.Tensor, x.layout)
		a := cache.InsertArgs{K: r.In(x.K, tensor.BF16), Slots: r.Index(pages, x.Slots, tensor.I64, true), Cache: kv}
		return launch(op, a, outs{"cache_after": kv.Pool})
	})
}

func insertSizes(o SizeOptions) (all []Size) {
	for _, t := range o.steps() {
		bytes := t * (2*cache.D + 8 + cache.RecordV4.SlotBytes())
		all = append(all, Size{
			Name: fmt.Sprintf("tokens=%d", t), Work: Work{Bytes: float64(bytes)}, Touched: bytes, MaxBytes: uint64(insertedBytes(t)),
			Make: func(rng *rand.Rand) Case { return largeInsert(rng, t) },
		})
	}
	return all
}

// insertedBytes returns no less than the pools of all sets take, whose rows go past a cache.
func insertedBytes(tokens int) int { return 64*(tokens+64)*cache.RecordV4.SlotBytes() + 2*RotateBytes }

// largeInsert makes rows for all slots of as many pages as they fill, in random order.
func largeInsert(rng *rand.Rand, tokens int) Case {
	const page = 64
	l := leastLayout(page)
	pages := (tokens + page - 1) / page
	slots := vectors.FromI64(permutation[int64](rng, tokens, pages*page), tokens)
	return Case{Params: map[string]any{"block_size": page}, In: Arrays{
		"k": normalBF16(rng, 1, tokens, cache.D), "slot_mapping": slots, "cache_before": poisonedPool(pages, l)}}
}
