package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Slots of a page of each cache. Those of the window and of C4A entries are what vLLM
// has. Entries of C128A cover 128 tokens each, so that a page of a few wastes little;
// pages of states are large enough for short tables, which have an entry for every page
// of a sequence, although the last few are all that there is.
const (
	windowPage     = 64
	c4aPage        = 64 // of indexer keys, too
	c4aStatePage   = 16
	c128aPage      = 16
	c128aStatePage = 32
)

// The caches of an engine, each with page ids of its own.
const (
	poolWindow     = iota
	poolC4A        // entries and indexer keys
	poolC4AState   // of both compressors
	poolC128A      // entries
	poolC128AState // of the compressor
	poolCount
)

// enginePool is what the caches of one sort have in common in all layers.
type enginePool struct {
	page, ratio int    // slots of a page, tokens of a slot
	keep        int    // tokens before the next one that a step reads; 0: all
	width       int    // entries of a row of the block table
	most        int    // pages that sessions can ever have
	bytes       uint64 // of a page in all layers
	ids         *cache.BlockPool
	table       tensor.Tensor // [MaxSessions, width] i32
}

// pools returns the pools of a layer whose pages are of a sort: each [pages, stride] u8.
func (l *engineLayer) pools(sort int) []*tensor.Tensor {
	c, ratio := &l.caches, l.ratio()
	switch {
	case sort == poolWindow:
		return []*tensor.Tensor{&c.Window.Pool}
	case sort == poolC4A && ratio == RatioC4A:
		return []*tensor.Tensor{&c.Compressed.Pool, &c.Keys.Pool}
	case sort == poolC4AState && ratio == RatioC4A:
		return []*tensor.Tensor{&c.State.Pool, &c.IndexState.Pool}
	case sort == poolC128A && ratio == RatioC128A:
		return []*tensor.Tensor{&c.Compressed.Pool}
	case sort == poolC128AState && ratio == RatioC128A:
		return []*tensor.Tensor{&c.State.Pool}
	}
	return nil
}

// layouts fills in the layouts of a layer's caches, and pools that have no memory yet
// but the shape of one page.
func (l *engineLayer) layouts(keys cache.IndexKeyFormat) (err error) {
	c := &l.caches
	page := func(to *tensor.Tensor, stride int) { *to = tensor.Tensor{DType: tensor.U8, Shape: []int{1, stride}} }
	kv := func(to *cache.KVCache, slots int) {
		if err == nil {
			to.Layout, err = cache.NewLayout(slots, 0)
			page(&to.Pool, to.Layout.Stride)
		}
	}
	state := func(to *cache.StateCache, comp cache.Compression, slots int) {
		if err == nil {
			to.Layout, err = cache.NewStateLayout(comp, slots, 0)
			page(&to.Pool, to.Layout.Stride)
		}
	}
	kv(&c.Window, windowPage)
	switch l.ratio() {
	case RatioC4A:
		kv(&c.Compressed, c4aPage)
		state(&c.State, cache.C4Main, c4aStatePage)
		state(&c.IndexState, cache.C4Index, c4aStatePage)
		if err == nil {
			c.Keys.Layout, err = cache.NewIndexKeyLayout(keys, c4aPage, 0)
			page(&c.Keys.Pool, c.Keys.Layout.Stride)
		}
	case RatioC128A:
		kv(&c.Compressed, c128aPage)
		state(&c.State, cache.C128Main, c128aStatePage)
	}
	return err
}

// buildPools decides how many pages there are and can be.
func (e *Engine) buildPools() error {
	sorts := [poolCount]enginePool{
		poolWindow:     {page: windowPage, ratio: 1, keep: e.cfg.Window - 1},
		poolC4A:        {page: c4aPage, ratio: RatioC4A},
		poolC4AState:   {page: c4aStatePage, ratio: 1, keep: cache.C4Main.Window() - 1},
		poolC128A:      {page: c128aPage, ratio: RatioC128A},
		poolC128AState: {page: c128aStatePage, ratio: 1, keep: cache.C128Main.Window() - 1},
	}
	addresses := len(e.dev.Caps().Missing([]string{"bufferDeviceAddress", "shaderInt64"})) == 0
	for i := range sorts {
		p, limit := sorts[i], math.MaxInt32
		for _, l := range e.layers {
			if err := l.layouts(e.opts.Keys); err != nil {
				return err
			}
			for _, t := range l.pools(i) {
				p.bytes += t.Bytes()
				if !addresses { // then a descriptor has to hold the pool
					limit = min(limit, int(e.dev.Caps().MaxStorageBufferRange/t.Bytes()))
				}
			}
		}
		if p.bytes > 0 {
			p.width = max(1, ceilDiv(e.opts.MaxTokens/p.ratio, p.page))
			p.most = min(p.useful(e.opts, e.opts.MaxSessions), limit, math.MaxInt32/p.page)
			e.pools[i] = &p
		}
	}
	return e.firstPages()
}

// useful is how many pages so many sessions can have: those of their longest sequences,
// or of what each keeps, with a page begun at either end and one more for a copy, and of
// a step.
func (p *enginePool) useful(o EngineOptions, sessions int) int {
	whole := sessions * (p.width + 1)
	if p.keep == 0 {
		return whole
	}
	return min(whole, sessions*(ceilDiv(p.keep+o.Rewind, p.page)+3)+ceilDiv(o.MaxStep, p.page))
}

// firstTokens is the length of a session for which there are caches at first.
const firstTokens = 4096

// first is how many pages there are at first for sessions with so many tokens in all. What
// is kept of a session whatever its length is there for each of them.
func (p *enginePool) first(o *EngineOptions, tokens, sessions int) int {
	n := ceilDiv(tokens/p.ratio, p.page) + sessions - 1
	if p.keep > 0 {
		n = min(ceilDiv(tokens, p.page)+sessions, p.useful(*o, sessions))
	}
	return max(1, min(n, p.most))
}

// firstPages makes the block pools, with pages for a session of firstTokens or for what
// CacheBytes hold.
func (e *Engine) firstPages() error {
	o := &e.opts
	bytes := func(tokens, sessions int) (sum uint64) {
		for _, p := range e.pools {
			if p != nil {
				sum += uint64(p.first(o, tokens, sessions)) * p.bytes
			}
		}
		return sum
	}
	limit := min(orMost(o.CacheBytes), orMost(o.MaxCacheBytes))
	if bytes(1, 1) > limit {
		return &vk.ArgumentError{Op: opNewEngine, Arg: "CacheBytes, MaxCacheBytes", Got: fmt.Sprint(limit), Want: fmt.Sprintf("at least %d bytes", bytes(1, 1))}
	}
	sessions, most := 1, min(max(o.MaxStep, firstTokens), o.MaxTokens)
	if o.CacheBytes > 0 {
		// For as many sessions as take half of it before they have tokens, if the longest
		// session finds room beside them: there may be few long ones or many short ones.
		sessions += sort.Search(o.MaxSessions-1, func(i int) bool { return bytes(1, i+2) > limit/2 || bytes(o.MaxTokens, i+2) > limit })
		most = o.MaxTokens * sessions
	}
	tokens := 1 + sort.Search(most-1, func(i int) bool { return bytes(i+2, sessions) > limit })
	for _, p := range e.pools {
		if p != nil {
			var err error
			if p.ids, err = cache.NewBlockPool(p.first(o, tokens, sessions)); err != nil {
				return err
			}
		}
	}
	return nil
}

// orMost reads a limit of which 0 says that there is none.
func orMost(limit uint64) uint64 {
	if limit == 0 {
		return math.MaxUint64
	}
	return limit
}

// allocateCaches makes the pools of a layer.
func (e *Engine) allocateCaches(l *engineLayer) error {
	for sort, p := range e.pools {
		for _, t := range l.pools(sort) {
			fresh, err := tensor.New(e.dev, "caches", tensor.U8, p.ids.Capacity(), t.Shape[1])
			if err != nil {
				return err
			}
			*t = fresh
		}
	}
	return nil
}

// greatest returns a layer's caches as they will be at most, without memory: kernels
// are chosen for them.
func (e *Engine) greatest(l *engineLayer) LayerCaches {
	most := engineLayer{w: l.w, spec: l.spec, caches: l.caches}
	for sort, p := range e.pools {
		for _, t := range most.pools(sort) {
			n := p.most
			if limit := e.opts.MaxCacheBytes; limit > 0 {
				n = min(n, int(limit/p.bytes))
			}
			*t = tensor.Tensor{DType: tensor.U8, Shape: []int{max(n, p.ids.Capacity()), t.Shape[1]}}
		}
	}
	return most.caches
}

// buildTables makes the block tables, all -1.
func (e *Engine) buildTables(ctx context.Context) error {
	var list []wanted
	for _, p := range e.pools {
		if p != nil {
			list = append(list, wanted{&p.table, tensor.I32, []int{e.opts.MaxSessions, p.width}})
		}
	}
	var err error
	if e.tables, err = allocate(e.dev, "block tables", list); err != nil {
		return err
	}
	return e.once(ctx, func(rec *vk.Recorder) error { return rec.Fill(e.tables.Whole(), math.MaxUint32) })
}

// words is all block tables as one tensor.
func (e *Engine) words() tensor.Tensor {
	v := e.tables.Whole()
	return tensor.Of(v, tensor.I32, int(v.Size/4))
}

// once records commands, runs them and waits.
func (e *Engine) once(ctx context.Context, record func(*vk.Recorder) error) error {
	rec, err := e.dev.NewRecorder()
	if err != nil {
		return err
	}
	defer rec.Close()
	if err := record(rec); err != nil {
		return err
	}
	cmd, err := rec.End()
	if err != nil {
		return err
	}
	return errors.Join(cmd.Run(ctx), cmd.Close())
}

// ensure makes sure that so many pages of each sort are free, by growing the pools: to
// twice their size, to what MaxCacheBytes leave, or by less where the device has no more.
// It needs the turn, for no command may be in flight.
func (e *Engine) ensure(ctx context.Context, need [poolCount]int) error {
	if !e.short(need) {
		return nil
	}
	for _, s := range e.sessions { // each may have a page that it would give back with the next
		if s == nil {
			continue
		}
		if err := s.recycle(); err != nil {
			return err
		}
	}
	if !e.short(need) {
		return nil
	}
	var least [poolCount]int // pages
	for i, p := range e.pools {
		if p == nil {
			continue
		}
		least[i] = p.ids.Capacity() + max(0, need[i]-p.ids.Free())
		if least[i] > p.most {
			return fmt.Errorf("%w: %d pages of %d tokens are wanted, and there can be at most %d", cache.ErrPoolFull, least[i], p.page*p.ratio, p.most)
		}
	}
	limit := orMost(e.opts.MaxCacheBytes)
	if e.bytes(least) > limit {
		return e.rebalance(ctx, need, least)
	}
	var err error
	for part := 1; part <= 16; part *= 2 { // of the size, that is added
		to := e.larger(least, part)
		if e.bytes(to) > limit {
			if part < 16 && e.bytes(e.larger(least, 2*part)) > limit {
				continue
			}
			to = e.shared(least, limit)
		}
		grown := e.growPools(ctx, to)
		if grown == nil {
			return nil
		}
		if err = grown; !outOfMemory(err) {
			return err
		}
		err = fmt.Errorf("%w: %w", cache.ErrPoolFull, err)
	}
	return err
}

// short reports whether fewer pages of a sort are free than are needed.
func (e *Engine) short(need [poolCount]int) bool {
	for i, p := range e.pools {
		if p != nil && need[i] > p.ids.Free() {
			return true
		}
	}
	return false
}

// bytes are those of so many pages of each sort.
func (e *Engine) bytes(pages [poolCount]int) (sum uint64) {
	for i, p := range e.pools {
		if p != nil {
			sum += uint64(pages[i]) * p.bytes
		}
	}
	return sum
}

// larger returns how many pages pools have of which some are missing, if at least a part
// of their size is added.
func (e *Engine) larger(least [poolCount]int, part int) (to [poolCount]int) {
	for i, p := range e.pools {
		if p == nil {
			continue
		}
		had := p.ids.Capacity()
		if to[i] = least[i]; to[i] > had {
			to[i] = min(max(to[i], had+had/part), p.most)
		}
	}
	return to
}

// shared returns how many pages pools have that share all the bytes there may be, so that
// all are full after about as many more tokens: they do not grow by a page now and a page
// then, each time with all that growing takes, while the last bytes are given away. The
// least pages have to fit.
func (e *Engine) shared(least [poolCount]int, limit uint64) [poolCount]int {
	busy, tokens := 0, 0 // sessions with tokens, and those
	for _, s := range e.sessions {
		if s != nil && s.at.length > 0 {
			busy, tokens = busy+1, tokens+s.at.length
		}
	}
	pages := func(more int) (to [poolCount]int) {
		// Longer sessions keep no more windows and states, new ones do.
		sessions := min(1+float64(more)/float64(max(tokens, 1)), float64(e.opts.MaxSessions)/float64(max(busy, 1)))
		for i, p := range e.pools {
			if p == nil {
				continue
			}
			used := p.ids.Capacity() - p.ids.Free()
			if p.keep > 0 {
				used = int(float64(used) * sessions)
			} else {
				used += more / p.ratio / p.page
			}
			to[i] = max(least[i], min(used, p.most))
		}
		return to
	}
	return pages(sort.Search(e.opts.MaxTokens*e.opts.MaxSessions, func(i int) bool { return e.bytes(pages(i+1)) > limit }))
}

func outOfMemory(err error) bool {
	return errors.Is(err, vk.ErrOutOfDeviceMemory) || errors.Is(err, vk.ErrOutOfHostMemory)
}

// growPools gives each pool more pages, layer by layer, so that there is never more than
// one layer's memory twice. If that fills the device, all pools are as before. After
// another error, such as the context's, some layers have larger pools than others, for
// whoever grows them next: the ids say which pages there are.
func (e *Engine) growPools(ctx context.Context, to [poolCount]int) error {
	if err := e.room(to); err != nil {
		return err
	}
	if err := e.forget(); err != nil {
		return err
	}
	for _, l := range e.layers {
		for sort := range poolCount {
			for _, t := range l.pools(sort) {
				if t.Shape[0] >= to[sort] {
					continue
				}
				if err := e.resize(ctx, t, to[sort]); outOfMemory(err) {
					return errors.Join(err, e.shrinkPools(ctx))
				} else if err != nil {
					return err
				}
			}
		}
	}
	for i, p := range e.pools {
		if p != nil {
			if err := p.ids.Grow(to[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// room reports whether the device has the memory with which pools can grow: what is added,
// and a pool that is there twice. Without it nothing is copied, there and back, and no
// commands are dropped, so that a server with a full device can go on trying.
func (e *Engine) room(to [poolCount]int) (err error) {
	var taken []tensor.Tensor
	take := func(pages, stride int) {
		if err == nil {
			var t tensor.Tensor
			if t, err = tensor.New(e.dev, "caches", tensor.U8, pages, stride); err == nil {
				taken = append(taken, t)
			}
		}
	}
	var largest *tensor.Tensor
	for _, l := range e.layers {
		for sort := range poolCount {
			for _, t := range l.pools(sort) {
				if more := to[sort] - t.Shape[0]; more > 0 {
					take(more, t.Shape[1])
					if largest == nil || t.Bytes() > largest.Bytes() {
						largest = t
					}
				}
			}
		}
	}
	if largest != nil {
		take(largest.Shape[0], largest.Shape[1])
	}
	for _, t := range taken {
		err = errors.Join(err, t.Close())
	}
	return err
}

// rebalance makes room within MaxCacheBytes where some pools are full and others are not,
// which had another mixture of sessions: free pages at the end of those give way. For
// less than a part of all bytes that is not worth the copying.
func (e *Engine) rebalance(ctx context.Context, need, least [poolCount]int) error {
	limit := e.opts.MaxCacheBytes
	wanted := e.bytes(least)
	for i, p := range e.pools {
		if p != nil {
			least[i] = max(1, p.ids.Least(), p.ids.Capacity()-p.ids.Free()+need[i])
		}
	}
	if e.bytes(least) > limit-limit/16 {
		return fmt.Errorf("%w: %d bytes wanted, at most %d are allowed", cache.ErrPoolFull, wanted, limit)
	}
	// A copy that is pending may go to a page that was given up since.
	err := errors.Join(e.forget(), e.copyPages(ctx))
	to := e.shared(least, limit)
	for i, p := range e.pools {
		if p != nil && err == nil {
			err = p.ids.Shrink(min(to[i], p.ids.Capacity()))
		}
	}
	if err == nil {
		err = e.shrinkPools(ctx)
	}
	if err == nil {
		err = e.growPools(ctx, to)
	}
	if outOfMemory(err) {
		err = fmt.Errorf("%w: %w", cache.ErrPoolFull, err)
	}
	return err
}

// shrinkPools takes pages back that growPools gave to some layers. It goes backwards: for
// the last of them there is the room that it left when it grew, and each makes room for
// the one before. A pool that finds none, for somebody else took it, stays large.
func (e *Engine) shrinkPools(ctx context.Context) error {
	for _, l := range slices.Backward(e.layers) {
		for sort := poolCount - 1; sort >= 0; sort-- {
			for _, t := range slices.Backward(l.pools(sort)) {
				if n := e.pools[sort].ids.Capacity(); t.Shape[0] > n {
					if err := e.resize(ctx, t, n); err != nil && !outOfMemory(err) {
						return err
					}
				}
			}
		}
	}
	return nil
}

// resize moves a pool to memory of another size, with the pages that are in both.
func (e *Engine) resize(ctx context.Context, t *tensor.Tensor, pages int) error {
	fresh, err := tensor.New(e.dev, "caches", tensor.U8, pages, t.Shape[1])
	if err != nil {
		return err
	}
	n := min(pages, t.Shape[0])
	err = e.once(ctx, func(rec *vk.Recorder) error { return rec.Copy(fresh.Rows(0, n).View(), t.Rows(0, n).View()) })
	if err != nil {
		return errors.Join(err, fresh.Close())
	}
	old := *t
	*t = fresh
	return old.Close()
}

// pendingCopy is a page that has to be copied, in every layer, before the next step. The
// page it comes from is held meanwhile.
type pendingCopy struct {
	sort int
	cache.PageCopy
}

// copyPages makes the pending copies.
func (e *Engine) copyPages(ctx context.Context) error {
	if len(e.copies) == 0 {
		return nil
	}
	err := e.once(ctx, func(rec *vk.Recorder) error {
		for _, c := range e.copies {
			for _, l := range e.layers {
				for _, t := range l.pools(c.sort) {
					from, to := int(c.From), int(c.To)
					if err := rec.Copy(t.Rows(to, to+1).View(), t.Rows(from, from+1).View()); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range e.copies {
		err = errors.Join(err, e.pools[c.sort].ids.Release(c.From))
	}
	e.copies = e.copies[:0]
	return err
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
