package bench

import (
	"bytes"
	"context"
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// compressTokens is the longest sequence of a decode case of a compressor.
const compressTokens = 4096

func compressCases(op string, o IndexerOptions) (cases []opCase) {
	c, format := cache.C4Main, formatOf(op)
	switch {
	case op == "compress_main128":
		c = cache.C128Main
	case format != 0:
		c = cache.C4Index
	}
	for _, t := range o.Batches {
		cases = append(cases, opCase{op, fmt.Sprintf("decode/tokens=%d", t), compress(t, c, format, false)})
	}
	for _, t := range o.Prefill {
		cases = append(cases, opCase{op, fmt.Sprintf("prefill/tokens=%d", t), compress(t, c, format, true)})
	}
	return cases
}

// compressRun is a case of a compressor.
type compressRun struct {
	c          cache.Compression
	format     cache.IndexKeyFormat
	save       *cache.SaveState
	compress   *cache.Compress
	saves      []cache.SaveStateArgs
	compresses []cache.CompressArgs

	// The operands of the last set on the host.
	ape, norm, cosSin, kvScore []float32
	positions, toReq, table    []int32
	stateSlots, slots          []int64
}

// compress saves the states of t tokens and compresses: for decode each token belongs
// to a request of its own and completes a group, for prefill they are the first of one
// request.
func compress(t int, c cache.Compression, format cache.IndexKeyFormat, prefill bool) func(ctx context.Context, r *opRig) error {
	return func(ctx context.Context, r *opRig) error {
		x := &compressRun{c: c, format: format}
		if err := x.build(r, t, prefill); err != nil {
			return err
		}
		r.variant = x.compress.Variant()
		closing := t
		if prefill {
			closing = t / c.Ratio
		}
		entry := cache.SlotBytes
		if format != 0 {
			entry = format.RowBytes() + cache.IndexScaleBytes
		}
		saved := float64(t * 8 * c.Channels() * 2)
		pooled := float64(closing * (c.Window()*8*c.Dim + entry + 4*cache.RopeDim))
		save := func(rec *vk.Recorder, i int) error { return x.save.Record(rec, x.saves[i%len(x.saves)]) }
		pool := func(rec *vk.Recorder, i int) error { return x.compress.Record(rec, x.compresses[i%len(x.compresses)]) }
		both := func(rec *vk.Recorder, i int) error {
			if err := save(rec, i); err != nil {
				return err
			}
			return pool(rec, i)
		}
		r.parts = []opPart{{name: "save", bytes: saved, record: save}, {name: "compress", bytes: pooled, record: pool}, {name: "both", bytes: saved + pooled, record: both}}
		r.check = func(ctx context.Context) (verify.Result, error) {
			last := len(x.saves) - 1
			if err := run(ctx, r.dev, func(rec *vk.Recorder) error {
				if err := rec.Fill(x.pool(last).View(), 0xa5a5a5a5); err != nil {
					return err
				}
				return both(rec, last)
			}); err != nil {
				return verify.Result{}, err
			}
			return x.verify(ctx)
		}
		return r.err
	}
}

// pool is the memory that a set's entries go to.
func (x *compressRun) pool(set int) tensor.Tensor {
	if x.format != 0 {
		return x.compresses[set].Keys.Pool
	}
	return x.compresses[set].Cache.Pool
}

func (x *compressRun) build(r *opRig, t int, prefill bool) error {
	c := x.c
	statePage, outPage := 4, page
	if !c.Overlap {
		statePage, outPage = 8, page*4/c.Ratio
	}
	layout, err := cache.NewStateLayout(c, statePage, 0)
	if err != nil {
		return err
	}
	requests, width, perRequest := t, compressTokens/statePage, c.Window()/statePage+1
	if prefill {
		requests, width = 1, (t+statePage-1)/statePage
		perRequest = width
	}
	r.rotate(t*c.Window()*8*c.Dim + 16*t*c.Channels())
	statePages, outPages := r.sets*requests*perRequest, (t+outPage-1)/outPage+1
	state, err := r.pages(statePages, layout.Stride, bytesOf(r.normal(min(4<<20, statePages*layout.Stride/4))))
	if err != nil {
		return err
	}
	s := cache.StateCache{Pool: state, Layout: layout}
	if x.save, err = cache.NewSaveState(r.dev, cache.SaveStateConfig{Compression: c, Page: statePage, MaxBytes: state.Bytes()}); err != nil {
		return err
	}
	if x.compress, err = cache.NewCompress(r.dev, cache.CompressConfig{Compression: c, StatePage: statePage, Page: outPage, Keys: x.format, MaxBytes: state.Bytes()}); err != nil {
		return err
	}
	x.ape, x.norm, x.cosSin = r.normal(c.Ratio*c.Channels()), r.normal(c.Dim), r.normal(2*compressTokens*cache.RopeDim)
	ape, norm := put(r, tensor.F32, x.ape, c.Ratio, c.Channels()), put(r, tensor.F32, x.norm, c.Dim)
	cosSin := put(r, tensor.F32, x.cosSin, 2*compressTokens, cache.RopeDim)
	free := r.shuffledPages(statePages)
	for range r.sets {
		x.place(r, t, requests, width, perRequest, statePage, &free, prefill, outPages*outPage)
		x.kvScore = r.normal(t * 2 * c.Channels())
		positions, slots := put(r, tensor.I32, x.positions, t), put(r, tensor.I64, x.stateSlots, t)
		x.saves = append(x.saves, cache.SaveStateArgs{KvScore: put(r, tensor.F32, x.kvScore, t, 2*c.Channels()), Ape: ape, Positions: positions, Slots: slots, State: s})
		a := cache.CompressArgs{
			Positions: positions, TokenToReq: put(r, tensor.I32, x.toReq, t), StateSlots: slots, Slots: put(r, tensor.I64, x.slots, t),
			State: s, StateTable: put(r, tensor.I32, x.table, requests, width), Norm: norm, CosSin: cosSin,
		}
		if err := x.output(r, &a, outPage, outPages); err != nil {
			return err
		}
		x.compresses = append(x.compresses, a)
	}
	return r.err
}

// place gives the tokens of a set positions, state pages and slots for their entries.
func (x *compressRun) place(r *opRig, t, requests, width, perRequest, statePage int, free *[]int32, prefill bool, outSlots int) {
	c := x.c
	x.positions, x.toReq, x.table = make([]int32, t), make([]int32, t), make([]int32, requests*width)
	x.stateSlots, x.slots = make([]int64, t), make([]int64, t)
	for i := range x.table {
		x.table[i] = -1
	}
	out := r.rng.Perm(outSlots)
	for i := range t {
		p := i
		if !prefill {
			first := c.Window() / c.Ratio
			p = (first+r.rng.IntN(compressTokens/c.Ratio-first+1))*c.Ratio - 1
			x.toReq[i] = int32(i)
		}
		x.positions[i] = int32(p)
		row := x.table[int(x.toReq[i])*width:][:width]
		for at := max(p-c.Window()+1, 0) / statePage; at <= p/statePage; at++ {
			if row[at] < 0 && len(*free) > 0 {
				row[at] = (*free)[0]
				*free = (*free)[1:]
			}
		}
		x.stateSlots[i] = int64(row[p/statePage])*int64(statePage) + int64(p%statePage)
		x.slots[i] = -1
		if (p+1)%c.Ratio == 0 {
			x.slots[i] = int64(out[i])
		}
	}
}

// output makes the pool for a set's entries.
func (x *compressRun) output(r *opRig, a *cache.CompressArgs, outPage, pages int) error {
	if x.format != 0 {
		l, err := cache.NewIndexKeyLayout(x.format, outPage, 0)
		a.Keys = cache.IndexKeyCache{Pool: r.out(tensor.U8, pages, l.Stride), Layout: l}
		return err
	}
	l, err := cache.NewLayout(outPage, 0)
	a.Cache = cache.KVCache{Pool: r.out(tensor.U8, pages, l.Stride), Layout: l}
	return err
}

// verify compares the states of the last set, and up to 8 of its entries. An entry's
// bytes may differ where f32 cannot decide a rounding: a fiftieth of them at most.
func (x *compressRun) verify(ctx context.Context) (verify.Result, error) {
	s, a := x.saves[len(x.saves)-1], x.compresses[len(x.compresses)-1]
	got, err := fetch[byte](ctx, x.pool(len(x.compresses)-1))
	if err != nil {
		return verify.Result{}, err
	}
	state, err := fetch[byte](ctx, s.State.Pool)
	if err != nil {
		return verify.Result{}, err
	}
	want := bytes.Clone(state) // saving once more must change nothing
	if err := cache.SaveStateRef(want, s.State.Layout, x.c, x.kvScore, x.ape, x.positions, x.stateSlots); err != nil {
		return verify.Result{}, err
	}
	c := verify.NewComparison(verify.ClassBoundary)
	if !bytes.Equal(state, want) {
		return c.Fail("the saved states differ from the reference").Result(), nil
	}
	host := cache.CompressHost{Compression: x.c, State: state, Layout: s.State.Layout, StateTable: x.table,
		Width: a.StateTable.Shape[1], Norm: x.norm, CosSin: x.cosSin}
	var closing []int
	for i, slot := range x.slots {
		if slot >= 0 {
			closing = append(closing, i)
		}
	}
	size := 0
	for _, j := range some(8, len(closing)) {
		i := closing[j]
		host.Positions, host.TokenToReq = append(host.Positions, x.positions[i]), append(host.TokenToReq, x.toReq[i])
		host.StateSlots, host.Slots = append(host.StateSlots, x.stateSlots[i]), append(host.Slots, x.slots[i])
	}
	pool := bytes.Clone(got)
	if x.format != 0 {
		size = x.format.RowBytes() + cache.IndexScaleBytes
		err = cache.CompressKeysRef(pool, a.Keys.Layout, host)
	} else {
		size = cache.SlotBytes
		err = cache.CompressRef(pool, a.Cache.Layout, host)
	}
	if err != nil {
		return verify.Result{}, err
	}
	differ := 0
	for i := range pool {
		if pool[i] != got[i] {
			differ++
		}
	}
	size *= len(host.Slots)
	r := verify.Result{Class: verify.ClassBoundary, Error: float64(differ), Bound: float64(size)/50 + 1}
	r.Pass = r.Error < r.Bound
	r.Detail = fmt.Sprintf("%d of %d bytes of entries differ", differ, size)
	return r, nil
}
