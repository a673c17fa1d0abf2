package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/blocks"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// enginePool holds what the caches of one model.PoolSpec share in all layers: page numbers and a
// block table.
type enginePool struct {
	model.PoolSpec
	index int    // in Engine.pools
	keep  int    // tokens before the next one that a step reads, or model.KeepAll
	width int    // entries of a row of the block table
	reach int    // pages that sessions can ever use, if memory has room
	most  int    // those that a buffer holds
	bytes uint64 // of a page in all layers
	slot  uint64 // bytes of a slot in all layers
	ids   *blocks.Pool
	table tensor.Tensor // [MaxSessions, width] i32

	caches []*layerCache // in the order of layers
}

// keepsAll reports whether pages stay as long as their tokens.
func (p *enginePool) keepsAll() bool { return p.keep == model.KeepAll }

// slots returns the number of slots that `tokens` tokens fill.
func (p *enginePool) slots(tokens int) int { return tokens / p.Tokens }

// oldest is the first slot that a sequence still reads after it is truncated to floor tokens.
func (p *enginePool) oldest(floor int) int {
	if p.keepsAll() {
		return 0
	}
	return max(0, floor-p.keep)
}

// gone is the number of pages before that slot.
func (p *enginePool) gone(floor int) int { return p.oldest(floor) / p.Page }

// pageCounts are numbers of pages, of each pool of an engine.
type pageCounts []int

// layerCache is a cache of a layer.
type layerCache struct {
	layer  *engineLayer
	pool   *enginePool
	store  model.Store
	stride int // bytes of a page
	// parts are the bytes of a slot's parts: a page has the first part of all its slots, then
	// the second.
	parts []int
}

// slotBytes is the sum of a slot's parts.
func (c *layerCache) slotBytes() (sum int) {
	for _, n := range c.parts {
		sum += n
	}
	return sum
}

// memory returns the tensor of the pages: [pages, stride] u8.
func (c *layerCache) memory() *tensor.Tensor { return memoryOf(&c.layer.caches, c.store) }

func memoryOf(c *layer.Caches, s model.Store) *tensor.Tensor {
	switch s {
	case model.StoreWindow:
		return &c.Window.Pool
	case model.StoreEntries:
		return &c.Compressed.Pool
	case model.StoreKeys:
		return &c.Keys.Pool
	case model.StoreState:
		return &c.State.Pool
	}
	return &c.IndexState.Pool
}

// lay fills in the layout of the cache, and gives its memory the shape of a page.
func (c *layerCache) lay(o *EngineOptions) (err error) {
	to, page, spec := &c.layer.caches, c.pool.Page, &c.layer.spec.LayerSpec
	state := func(s *cache.StateCache, dim int) {
		s.Layout, err = cache.NewStateLayout(spec.Compression(dim), page, 0)
		c.stride, c.parts = s.Layout.Stride, []int{s.Layout.SlotBytes()}
	}
	rows := func(kv *cache.KVCache) {
		record := o.Records.Record(c.store)
		kv.Layout, err = cache.NewRecordLayout(record, page, 0)
		c.stride, c.parts = kv.Layout.Stride, []int{record.RowBytes(), record.ScaleBytes()}
	}
	switch c.store {
	case model.StoreWindow:
		rows(&to.Window)
	case model.StoreEntries:
		rows(&to.Compressed)
	case model.StoreState:
		state(&to.State, cache.D)
	case model.StoreKeyState:
		state(&to.IndexState, cache.IndexDim)
	case model.StoreKeys:
		to.Keys.Layout, err = cache.NewIndexKeyLayout(o.Keys, page, o.Records.KeyStride(o.Keys, page))
		c.stride, c.parts = to.Keys.Layout.Stride, []int{o.Keys.RowBytes(), cache.IndexScaleBytes}
	}
	*c.memory() = c.shape(1)
	return err
}

// shape returns a tensor of `pages` pages without memory.
func (c *layerCache) shape(pages int) tensor.Tensor {
	return tensor.Tensor{DType: tensor.U8, Shape: []int{pages, c.stride}}
}

// shapePools makes the pools that the layers' specs name, without pages.
func (e *Engine) shapePools() error {
	e.draftPools = math.MaxInt
	for i, l := range e.layers {
		for _, spec := range l.spec.Pools {
			p := e.pool(spec)
			if i >= e.drafts {
				e.draftPools = min(e.draftPools, p.index)
			}
			for _, store := range spec.Stores {
				c := &layerCache{layer: l, pool: p, store: store}
				if err := c.lay(&e.opts); err != nil {
					return err
				}
				e.caches, p.caches = append(e.caches, c), append(p.caches, c)
			}
		}
	}
	for _, p := range e.pools {
		for _, c := range p.caches {
			p.bytes += uint64(c.stride)
			p.slot += uint64(c.slotBytes())
		}
		p.width = max(1, ceilDiv(p.slots(e.opts.MaxTokens), p.Page))
	}
	e.print = e.fingerprint()
	return nil
}

// buildPools makes the pools and decides how many pages there are and can be.
func (e *Engine) buildPools() error {
	if err := e.shapePools(); err != nil {
		return err
	}
	e.now.need = make(pageCounts, len(e.pools))
	addresses := len(e.dev.Caps().Missing([]string{"bufferDeviceAddress", "shaderInt64"})) == 0
	for _, p := range e.pools {
		limit := math.MaxInt32
		for _, c := range p.caches {
			if !addresses { // then a descriptor has to hold the memory
				limit = min(limit, int(e.dev.Caps().MaxStorageBufferRange/uint64(c.stride)))
			}
		}
		p.reach = min(p.useful(e.opts, e.opts.MaxSessions), limit, math.MaxInt32/p.Page)
		p.most = p.reach
		for _, c := range p.caches {
			p.most = int(min(uint64(p.most), orMost(e.dev.Caps().MaxBuffer)/uint64(c.stride)))
		}
	}
	return e.firstPages()
}

// pool returns the pool of a spec, a new one for the first layer that names it.
func (e *Engine) pool(spec model.PoolSpec) *enginePool {
	for _, p := range e.pools {
		if p.Name == spec.Name {
			return p
		}
	}
	p := &enginePool{PoolSpec: spec, index: len(e.pools), keep: spec.Kept(e.cfg.Window)}
	p.Page = cmp.Or(e.opts.Pages[p.Name], p.Page)
	e.pools = append(e.pools, p)
	return p
}

// table is the block table of the pool that holds a store of a layer, a zero tensor without
// one. A layer that borrows its entries has the tables of the layer that it borrows from.
func (e *Engine) table(l *engineLayer, s model.Store) tensor.Tensor {
	if s == model.StoreEntries || s == model.StoreKeys {
		l = l.entries
	}
	if spec := l.spec.Pool(s); spec != nil {
		return e.pool(*spec).table
	}
	return tensor.Tensor{}
}

// useful returns the most pages that sessions can hold. If pages are kept, that is all pages of
// their longest sequences. Otherwise it is, for each session, the pages of what a step reads, a
// page begun at either end and one for a copy, and the pages of the step in progress.
func (p *enginePool) useful(o EngineOptions, sessions int) int {
	whole := sessions * (p.width + 1)
	if p.keepsAll() {
		return whole
	}
	return min(whole, sessions*(ceilDiv(p.keep+o.Rewind, p.Page)+3)+ceilDiv(o.MaxStep, p.Page))
}

// firstTokens is the length of a session for which there are caches at first.
const firstTokens = 4096

// first returns the number of pages at first, for `sessions` sessions with `tokens` tokens in all.
// A session keeps windows and states whatever its length, so each gets pages for those.
func (p *enginePool) first(o *EngineOptions, tokens, sessions int) int {
	n := ceilDiv(p.slots(tokens), p.Page) + sessions - 1
	if !p.keepsAll() {
		n = min(ceilDiv(tokens, p.Page)+sessions, p.useful(*o, sessions))
	}
	return max(1, min(n, p.most))
}

// firstPages makes the block pools, with pages for a session of firstTokens or for what
// CacheBytes hold.
func (e *Engine) firstPages() error {
	o := &e.opts
	bytes := func(tokens, sessions int) (sum uint64) {
		for _, p := range e.pools {
			sum += uint64(p.first(o, tokens, sessions)) * p.bytes
		}
		return sum
	}
	limit := min(orMost(o.CacheBytes), orMost(o.MaxCacheBytes))
	if bytes(1, 1) > limit {
		return badArgument(opNewEngine, "CacheBytes, MaxCacheBytes", limit, "at least %d bytes", bytes(1, 1))
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
		var err error
		if p.ids, err = blocks.NewPool(p.first(o, tokens, sessions)); err != nil {
			return err
		}
	}
	return nil
}

// orMost reads a limit, where 0 means none.
func orMost(limit uint64) uint64 {
	if limit == 0 {
		return math.MaxUint64
	}
	return limit
}

// allocateCaches makes the memory of the caches.
func (e *Engine) allocateCaches(ctx context.Context) error {
	for _, c := range e.caches {
		err := ctx.Err()
		if err == nil {
			*c.memory(), err = tensor.New(e.dev, "caches", tensor.U8, c.pool.ids.Capacity(), c.stride)
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", c.layer.w.Layer, err)
		}
	}
	return nil
}

// reads returns the caches that a layer writes and reads.
func (l *engineLayer) reads() layer.Caches {
	c := l.caches
	if l.entries != l {
		c.Compressed, c.Keys = l.entries.caches.Compressed, l.entries.caches.Keys
	}
	return c
}

// greatest returns the caches that a layer reads at their final size, without memory. Kernels are
// chosen for that size.
func (e *Engine) greatest(l *engineLayer) layer.Caches {
	all := l.reads()
	for _, c := range e.caches {
		if c.layer != l && (c.layer != l.entries || c.store != model.StoreEntries && c.store != model.StoreKeys) {
			continue
		}
		n := c.pool.reach
		if limit := e.opts.MaxCacheBytes; limit > 0 {
			n = min(n, int(limit/c.pool.bytes))
		}
		*memoryOf(&all, c.store) = c.shape(max(n, c.pool.ids.Capacity()))
	}
	return all
}

// buildTables makes the block tables, all -1.
func (e *Engine) buildTables(ctx context.Context) error {
	list := e.tableList()
	var err error
	if e.tables, err = list.Allocate(e.dev, vk.DeviceLocal, "block tables"); err != nil {
		return err
	}
	return e.runOnce(ctx, func(rec *vk.Recorder) error { return rec.Fill(e.tables.Whole(), math.MaxUint32) })
}

// tableList lists the block tables.
func (e *Engine) tableList() (list memory.List) {
	for _, p := range e.pools {
		list.Add(&p.table, tensor.I32, e.opts.MaxSessions, p.width)
	}
	return list
}

// words is all block tables as one tensor.
func (e *Engine) words() tensor.Tensor {
	v := e.tables.Whole()
	return tensor.Of(v, tensor.I32, int(v.Size/4))
}

// runOnce records commands, runs them and waits.
func (e *Engine) runOnce(ctx context.Context, record func(*vk.Recorder) error) error {
	cmd, err := e.record(record)
	if err != nil {
		return err
	}
	return errors.Join(e.await(func() error { return cmd.Run(ctx) }), cmd.Release())
}

// record records commands.
func (e *Engine) record(record func(*vk.Recorder) error) (*vk.Commands, error) {
	rec, err := e.dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if err := record(rec); err != nil {
		return nil, err
	}
	return rec.End()
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
