package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// ensure makes sure that `need` pages of each pool are free, by growing the pools: to twice their
// size, to what MaxCacheBytes leaves, or by less where the device has no more. The step lock is
// held.
func (e *Engine) ensure(ctx context.Context, need pageCounts) error {
	if !e.short(need) {
		return nil
	}
	err := e.makeRoom(ctx, need)
	if errors.Is(err, cache.ErrPoolFull) {
		e.stats.Full++
	}
	return err
}

// makeRoom is ensure where a pool is short of pages.
func (e *Engine) makeRoom(ctx context.Context, need pageCounts) error {
	for _, s := range e.sessions { // each may hold a page that it would give back with its next step
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
	least := make(pageCounts, len(e.pools))
	for i, p := range e.pools {
		least[i] = p.ids.Capacity() + max(0, need[i]-p.ids.Free())
		if least[i] > p.most {
			return fmt.Errorf("%w: %s: %d pages of %d tokens needed, at most %d possible",
				cache.ErrPoolFull, p.Name, least[i], p.Page*p.Tokens, p.most)
		}
	}
	limit := orMost(e.opts.MaxCacheBytes)
	if e.bytes(least) > limit {
		return e.rebalance(ctx, need, least)
	}
	var err error
	before, began := e.bytes(e.capacities()), time.Now()
	for part := 1; part <= 16; part *= 2 { // try to add all of the size, then half of it, and so on
		to := e.larger(least, part)
		if e.bytes(to) > limit {
			if part < 16 && e.bytes(e.larger(least, 2*part)) > limit {
				continue
			}
			to = e.shared(least, limit)
		}
		grown := e.growPools(ctx, to)
		if grown == nil {
			e.growth("caches grew", before, began)
			return nil
		}
		if err = grown; !outOfMemory(err) {
			return err
		}
		e.cannotGrow(before, e.bytes(to), err)
		err = fmt.Errorf("%w: %w", cache.ErrPoolFull, err)
	}
	return err
}

// short reports whether a pool has fewer free pages than needed.
func (e *Engine) short(need pageCounts) bool {
	for i, p := range e.pools {
		if need[i] > p.ids.Free() {
			return true
		}
	}
	return false
}

// bytes returns the size of `pages` pages of each pool.
func (e *Engine) bytes(pages pageCounts) (sum uint64) {
	for i, p := range e.pools {
		sum += uint64(pages[i]) * p.bytes
	}
	return sum
}

// larger returns new capacities of at least `least` pages; a pool that grows gains 1/part of its
// size or more, up to its most.
func (e *Engine) larger(least pageCounts, part int) pageCounts {
	to := make(pageCounts, len(e.pools))
	for i, p := range e.pools {
		had := p.ids.Capacity()
		if to[i] = least[i]; to[i] > had {
			to[i] = min(max(to[i], had+had/part), p.most)
		}
	}
	return to
}

// shared divides limit bytes among the pools so that all are full after about as many more
// tokens. Otherwise they would grow by single pages while the last bytes are given away, and
// growing copies the caches. The least pages have to fit.
func (e *Engine) shared(least pageCounts, limit uint64) pageCounts {
	busy, tokens := 0, 0 // sessions with tokens, and those
	for _, s := range e.sessions {
		if s != nil && s.at.length > 0 {
			busy, tokens = busy+1, tokens+s.at.length
		}
	}
	pages := func(more int) pageCounts {
		to := make(pageCounts, len(e.pools))
		// Windows and states grow with the number of sessions, not with their lengths.
		sessions := min(1+float64(more)/float64(max(tokens, 1)), float64(e.opts.MaxSessions)/float64(max(busy, 1)))
		for i, p := range e.pools {
			used := p.ids.Capacity() - p.ids.Free()
			if p.keepsAll() {
				used += p.slots(more) / p.Page
			} else {
				used = int(float64(used) * sessions)
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

// growPools gives pools more pages, one cache at a time, so that only one is in memory twice.
// If the device runs out of memory, all pools are as before. After another error, such as the
// context's, some caches are larger than others until pools grow again, which first takes back
// what is too much then; the ids say which pages exist.
func (e *Engine) growPools(ctx context.Context, to pageCounts) error {
	if err := e.room(to); err != nil {
		return err
	}
	if err := errors.Join(e.forget(), e.shrinkPools(ctx, to)); err != nil {
		return err
	}
	for _, c := range e.caches {
		t, pages := c.memory(), to[c.pool.index]
		if t.Shape[0] >= pages {
			continue
		}
		if err := e.resize(ctx, t, pages); outOfMemory(err) {
			return errors.Join(err, e.shrinkPools(ctx, e.capacities()))
		} else if err != nil {
			return err
		}
	}
	for i, p := range e.pools {
		if err := p.ids.Grow(to[i]); err != nil {
			return err
		}
	}
	return nil
}

// room reports whether the device has the memory that growing takes: what is added, and the
// largest cache a second time. Without it nothing is copied and no commands are dropped, so a
// server on a full device can go on trying.
func (e *Engine) room(to pageCounts) (err error) {
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
	for _, c := range e.caches {
		t := c.memory()
		if more := to[c.pool.index] - t.Shape[0]; more > 0 {
			take(more, t.Shape[1])
			if largest == nil || t.Bytes() > largest.Bytes() {
				largest = t
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
// because they served another mixture of sessions: free pages at the end of the latter give
// way. For less than a sixteenth of all bytes that is not worth the copying.
func (e *Engine) rebalance(ctx context.Context, need, least pageCounts) error {
	limit := e.opts.MaxCacheBytes
	wanted := e.bytes(least)
	for i, p := range e.pools {
		least[i] = max(1, p.ids.Least(), p.ids.Capacity()-p.ids.Free()+need[i])
	}
	if e.bytes(least) > limit-limit/16 {
		return fmt.Errorf("%w: %d bytes needed, at most %d allowed", cache.ErrPoolFull, wanted, limit)
	}
	before, began := e.bytes(e.capacities()), time.Now()
	// The destination of pending work may have been given up since.
	err := errors.Join(e.forget(), e.workPages(ctx))
	to := e.shared(least, limit)
	for i, p := range e.pools {
		if err == nil {
			err = p.ids.Shrink(min(to[i], p.ids.Capacity()))
		}
	}
	if err == nil {
		err = e.shrinkPools(ctx, e.capacities())
	}
	if err == nil {
		err = e.growPools(ctx, to)
	}
	if outOfMemory(err) {
		err = fmt.Errorf("%w: %w", cache.ErrPoolFull, err)
	}
	if err == nil {
		e.growth("pages moved from one cache to another", before, began)
	}
	return err
}

// capacities are the pages that there are of each pool.
func (e *Engine) capacities() pageCounts {
	n := make(pageCounts, len(e.pools))
	for i, p := range e.pools {
		n[i] = p.ids.Capacity()
	}
	return n
}

// shrinkPools takes back the pages that growPools gave to some caches, where they have more than
// `to`. It goes backwards: the last one finds the room that it left when it grew, and each makes
// room for the one before. A cache stays large if another program took its room.
func (e *Engine) shrinkPools(ctx context.Context, to pageCounts) error {
	for _, c := range slices.Backward(e.caches) {
		t, n := c.memory(), to[c.pool.index]
		if t.Shape[0] <= n {
			continue
		}
		if err := e.resize(ctx, t, n); err != nil && !outOfMemory(err) {
			return err
		}
	}
	return nil
}

// resize moves a cache to memory of another size, with the pages that both have.
func (e *Engine) resize(ctx context.Context, t *tensor.Tensor, pages int) error {
	fresh, err := tensor.New(e.dev, "caches", tensor.U8, pages, t.Shape[1])
	if err != nil {
		return err
	}
	n := min(pages, t.Shape[0])
	err = e.runOnce(ctx, func(rec *vk.Recorder) error { return rec.Copy(fresh.Rows(0, n).View(), t.Rows(0, n).View()) })
	if err != nil {
		return errors.Join(err, fresh.Close())
	}
	old := *t
	*t = fresh
	return old.Close()
}
