package bench

import (
	"context"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// attendShape is a decode attention without the rest of its step.
type attendShape struct {
	heads, topk, window, batch int
	compPage                   int // slots of a compressed page; 0: no compressed cache
}

func (s attendShape) String() string {
	return fmt.Sprintf("heads=%d/topk=%d/window=%d/batch=%d", s.heads, s.topk, s.window, s.batch)
}

const (
	// Slots of the caches that rows are drawn from at random. A 4096th of them differ.
	attendCompSlots, attendWinSlots = 1 << 20, 1 << 18

	// attendInner is how many launches a sample has.
	attendInner = 8

	// checkHeads is how many heads of a token are compared with the reference.
	checkHeads = 8
)

// rowsOf draws the lists of all sets at random, as different tokens of a large batch
// would: no row twice in a short time. A page's slots stay together.
func (r *opRig) rowsOf(n, page, slots int) []int32 {
	list := make([]int32, n)
	for i := range list {
		if i%page == 0 || page == 64 {
			list[i] = int32(r.rng.IntN(slots/page) * page)
			if page == 64 {
				list[i] += int32(r.rng.IntN(page))
			}
			continue
		}
		list[i] = list[i-1] + 1
	}
	return list
}

// slotSet makes a cache whose slot s holds row s % pattern, and the lists of all sets.
func (r *opRig) slotSet(rows []uint16, page, slots, width, sets, t int) (attention.SlotSet, []byte, []int32, error) {
	layout, err := cache.NewLayout(page, 0)
	if err != nil {
		return attention.SlotSet{}, nil, nil, err
	}
	at := make([]int64, pattern)
	for i := range at {
		at[i] = int64(i)
	}
	image := make([]byte, layout.PoolBytes(pattern/page))
	if err := cache.InsertRef(image, layout, rows, at); err != nil {
		return attention.SlotSet{}, nil, nil, err
	}
	pool, err := r.pages(slots/page, layout.Stride, image)
	if err != nil {
		return attention.SlotSet{}, nil, nil, err
	}
	index := r.rowsOf(sets*t*width, page, slots)
	lens := make([]int32, t) // of all sets
	for i := range lens {
		lens[i] = int32(width)
	}
	return attention.SlotSet{
		Cache: cache.KVCache{Pool: pool, Layout: layout}, Indices: put(r, tensor.I32, index, sets*t, width), Lens: put(r, tensor.I32, lens, t),
	}, image, index, nil
}

// attend fills a rig with a decode attention: the kernel and the merge of its parts.
func (r *opRig) attend(s attendShape) error {
	op, err := attention.NewDecoder(r.dev, attention.DecoderConfig{
		Heads: s.heads, WindowPage: page, CompressedPage: s.compPage, MaxBytes: attendCompSlots * 600, Variant: r.o.Variant,
	})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	t, h := s.batch, s.heads
	bytes := t * ((s.topk+s.window)*(cache.SlotBytes+4) + h*2*2*attention.D)
	r.rotateUpTo(maxSets, bytes)
	rows := r.normalBF16(pattern * attention.D)
	compSlots, winSlots := attendCompSlots, attendWinSlots
	if r.dev.Adapter().Type == vk.TypeCPU {
		compSlots, winSlots = 4*pattern, 2*pattern
	}
	win, winImage, winIndex, err := r.slotSet(rows, page, winSlots, s.window, r.sets, t)
	if err != nil {
		return err
	}
	var comp attention.SlotSet
	var compImage []byte
	var compIndex []int32
	if s.compPage > 0 {
		if comp, compImage, compIndex, err = r.slotSet(rows, s.compPage, compSlots, s.topk, r.sets, t); err != nil {
			return err
		}
	}
	q := r.queriesOf(r.sets*t, h)
	sinks := r.normal(h)
	sink := put(r, tensor.F32, sinks, h)
	out, lse := r.out(tensor.BF16, t, h, attention.D), r.out(tensor.F32, t, h)
	scratch := r.scratch(op.ScratchBytes(t, s.window, s.topk))
	if r.err != nil {
		return r.err
	}
	record := func(rec *vk.Recorder, i int) error {
		at := i % r.sets * t
		a := attention.DecodeArgs{Q: q.Rows(at, at+t), Window: win, Compressed: comp, Sink: sink, Out: out, LSE: lse, Scratch: scratch}
		a.Window.Indices = win.Indices.Rows(at, at+t)
		if s.compPage > 0 {
			a.Compressed.Indices = comp.Indices.Rows(at, at+t)
		}
		return op.Record(rec, a)
	}
	r.parts = []opPart{{bytes: float64(bytes), flop: 4 * float64(t) * float64(h) * float64(s.topk+s.window) * attention.D, inner: attendInner, floor: true, record: record}}
	r.check = func(ctx context.Context) (verify.Result, error) {
		set := r.sets - 1
		if err := runPoisoned(ctx, r.dev, set, record, out, lse); err != nil {
			return verify.Result{}, err
		}
		c := verify.NewComparison(verify.ClassTolerance)
		for _, i := range some(2, t) {
			at := set*t + i
			local := func(index []int32, width int, image []byte, set attention.SlotSet) *attention.Slots {
				if width == 0 {
					return nil
				}
				list := make([]int32, width)
				for j, g := range index[at*width:][:width] {
					list[j] = g % pattern
				}
				return &attention.Slots{Pool: image, Layout: set.Cache.Layout, Indices: list, Width: width, Lens: []int32{int32(width)}}
			}
			w, cs := local(winIndex, s.window, winImage, win), local(compIndex, s.topk, compImage, comp)
			if err := r.checkToken(ctx, c, i, q.Rows(at, at+1), sinks, out, lse, func(q []uint16, sink []float32) (o, l, spread []float32, err error) {
				if o, l, err = attention.DecodeRef(q, len(sink), w, cs, sink, attention.DefaultScale); err == nil {
					spread, err = attention.DecodeSpreadRef(q, len(sink), w, cs, sink, attention.DefaultScale)
				}
				return o, l, spread, err
			}); err != nil {
				return verify.Result{}, err
			}
		}
		return c.Result(), nil
	}
	return r.err
}

// queriesOf makes random queries of n tokens; far apart they repeat.
func (r *opRig) queriesOf(n, heads int) tensor.Tensor {
	q := r.out(tensor.BF16, n, heads, attention.D)
	if r.err == nil {
		r.err = r.fill(q, bytesOf(r.normalBF16(min(q.Len(), 1<<22))))
	}
	return q
}

// runPoisoned runs a set after filling what it writes with NaNs.
func runPoisoned(ctx context.Context, dev *vk.Device, set int, record func(*vk.Recorder, int) error, written ...tensor.Tensor) error {
	return run(ctx, dev, func(rec *vk.Recorder) error {
		for _, t := range written {
			if err := rec.Fill(t.View(), 0xffffffff); err != nil {
				return err
			}
		}
		return record(rec, set)
	})
}

// checkToken compares some heads of token i with what ref makes of their queries.
func (r *opRig) checkToken(ctx context.Context, c *verify.Comparison, i int, qT tensor.Tensor, sinks []float32, outT, lseT tensor.Tensor,
	ref func(q []uint16, sink []float32) (out, lse, spread []float32, err error)) error {
	all, err := fetch[uint16](ctx, qT)
	if err != nil {
		return err
	}
	allOut, err := fetch[uint16](ctx, outT.Rows(i, i+1))
	if err != nil {
		return err
	}
	allLSE, err := fetch[float32](ctx, lseT.Rows(i, i+1))
	if err != nil {
		return err
	}
	var q, out []uint16
	var sink, lse []float32
	heads := some(checkHeads, len(sinks))
	for _, h := range heads {
		q, out = append(q, all[h*attention.D:][:attention.D]...), append(out, allOut[h*attention.D:][:attention.D]...)
		sink, lse = append(sink, sinks[h]), append(lse, allLSE[h])
	}
	wantOut, wantLSE, spread, err := ref(q, sink)
	if err != nil {
		return err
	}
	sides := 0
	if verify.RoundsWeights(r.variant) {
		sides = 1
	}
	n := len(heads)
	for _, x := range lse {
		if math.IsNaN(float64(x)) {
			return fmt.Errorf("token %d: lse is NaN", i)
		}
	}
	c.CloseWeighted(fmt.Sprintf("out of token %d", i), vectors.FromU16(out, n, attention.D), vectors.FromBF16(wantOut, n, attention.D),
		verify.DecodeOut, sides, func() ([]float32, error) { return spread, nil })
	c.Close(fmt.Sprintf("lse of token %d", i), vectors.FromF32(lse, n), vectors.FromF32(wantLSE, n), verify.DecodeLSE)
	return nil
}
