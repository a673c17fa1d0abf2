package pages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// ensure makes sure that `need` pages of each pool are free, by growing the pools: to twice their
// size, to what MaxCacheBytes leaves, or by less where the device has no more. The caller excludes
// others.
func (ps *Pools) ensure(ctx context.Context, need counts) error {
	if !ps.short(need) {
		return nil
	}
	err := ps.makeRoom(ctx, need)
	if errors.Is(err, cache.ErrPoolFull) {
		ps.Stats.Full++
	}
	return err
}

// makeRoom is ensure where a pool is short of pages.
func (ps *Pools) makeRoom(ctx context.Context, need counts) error {
	for _, s := range ps.sequences { // each may hold a page that it would give back with its next step
		if s != nil {
			s.recycle()
		}
	}
	if !ps.short(need) {
		return nil
	}
	least := make(counts, len(ps.All))
	for i, p := range ps.All {
		least[i] = p.IDs.Capacity() + max(0, need[i]-p.IDs.Free())
		if least[i] > p.most {
			return fmt.Errorf("%w: %s: %d pages of %d tokens needed, at most %d possible",
				cache.ErrPoolFull, p.Name, least[i], p.Page*p.Tokens, p.most)
		}
	}
	limit := memory.OrMost(ps.cfg.MaxCacheBytes)
	if ps.bytes(least) > limit {
		return ps.rebalance(ctx, need, least)
	}
	var err error
	before, began := ps.bytes(ps.capacities()), time.Now()
	for part := 1; part <= 16; part *= 2 { // try to add all of the size, then half of it, and so on
		to := ps.larger(least, part)
		if ps.bytes(to) > limit {
			if part < 16 && ps.bytes(ps.larger(least, 2*part)) > limit {
				continue
			}
			to = ps.shared(least, limit)
		}
		grown := ps.growPools(ctx, to)
		if grown == nil {
			ps.growth("caches grew", before, began)
			return nil
		}
		if err = grown; !outOfMemory(err) {
			return err
		}
		ps.cannotGrow(before, ps.bytes(to), err)
		err = fmt.Errorf("%w: %w", cache.ErrPoolFull, err)
	}
	return err
}

// short reports whether a pool has fewer free pages than needed.
func (ps *Pools) short(need counts) bool {
	for i, p := range ps.All {
		if need[i] > p.IDs.Free() {
			return true
		}
	}
	return false
}

// bytes returns the size of `pages` pages of each pool.
func (ps *Pools) bytes(pages counts) (sum uint64) {
	for i, p := range ps.All {
		sum += uint64(pages[i]) * p.PageBytes
	}
	return sum
}

// larger returns new capacities of at least `least` pages; a pool that grows gains 1/part of its
// size or more, up to its most.
func (ps *Pools) larger(least counts, part int) counts {
	to := make(counts, len(ps.All))
	for i, p := range ps.All {
		had := p.IDs.Capacity()
		if to[i] = least[i]; to[i] > had {
			to[i] = min(max(to[i], had+had/part), p.most)
		}
	}
	return to
}

// shared divides limit bytes among the pools so that all are full after about as many more
// tokens. Otherwise they would grow by single pages while the last bytes are given away, and
// growing copies the caches. The least pages have to fit.
func (ps *Pools) shared(least counts, limit uint64) counts {
	busy, tokens := 0, 0 // sequences with tokens, and those
	for _, s := range ps.sequences {
		if s != nil && s.Seat.Length > 0 {
			busy, tokens = busy+1, tokens+s.Seat.Length
		}
	}
	pages := func(more int) counts {
		to := make(counts, len(ps.All))
		// Windows and states grow with the number of sequences, not with their lengths.
		sequences := min(1+float64(more)/float64(max(tokens, 1)), float64(ps.cfg.MaxSequences)/float64(max(busy, 1)))
		for i, p := range ps.All {
			used := p.IDs.Capacity() - p.IDs.Free()
			if p.KeepsAll() {
				used += p.Slots(more) / p.Page
			} else {
				used = int(float64(used) * sequences)
			}
			to[i] = max(least[i], min(used, p.most))
		}
		return to
	}
	return pages(sort.Search(ps.cfg.MaxTokens*ps.cfg.MaxSequences, func(i int) bool { return ps.bytes(pages(i+1)) > limit }))
}

func outOfMemory(err error) bool {
	return errors.Is(err, vk.ErrOutOfDeviceMemory) || errors.Is(err, vk.ErrOutOfHostMemory)
}

// growPools gives pools more pages, one cache at a time, so that only one is in memory twice.
// If the device runs out of memory, all pools are as before. After another error, such as the
// context's, some caches are larger than others until pools grow again, which first takes back
// what is too much then; the ids say which pages exist.
func (ps *Pools) growPools(ctx context.Context, to counts) error {
	if err := ps.room(to); err != nil {
		return err
	}
	if err := errors.Join(ps.cfg.Drop(), ps.shrinkPools(ctx, to)); err != nil {
		return err
	}
	for _, c := range ps.caches {
		t, pages := c.Memory(), to[c.Pool.Index]
		if t.Shape[0] >= pages {
			continue
		}
		if err := ps.resize(ctx, t, pages); outOfMemory(err) {
			return errors.Join(err, ps.shrinkPools(ctx, ps.capacities()))
		} else if err != nil {
			return err
		}
	}
	for i, p := range ps.All {
		p.IDs.Grow(to[i])
	}
	return nil
}

// room reports whether the device has the memory that growing takes: what is added, and the
// largest cache a second time. Without it nothing is copied and no commands are dropped, so a
// server on a full device can go on trying.
func (ps *Pools) room(to counts) (err error) {
	var taken []tensor.Tensor
	take := func(pages, stride int) {
		if err == nil {
			var t tensor.Tensor
			if t, err = tensor.New(ps.cfg.Dev, "caches", tensor.U8, pages, stride); err == nil {
				taken = append(taken, t)
			}
		}
	}
	var largest *tensor.Tensor
	for _, c := range ps.caches {
		t := c.Memory()
		if more := to[c.Pool.Index] - t.Shape[0]; more > 0 {
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
// because they served another mixture of sequences: free pages at the end of the latter give
// way. For less than a sixteenth of all bytes that is not worth the copying.
func (ps *Pools) rebalance(ctx context.Context, need, least counts) error {
	limit := ps.cfg.MaxCacheBytes
	wanted := ps.bytes(least)
	for i, p := range ps.All {
		least[i] = max(1, p.IDs.Least(), p.IDs.Capacity()-p.IDs.Free()+need[i])
	}
	if ps.bytes(least) > limit-limit/16 {
		return fmt.Errorf("%w: %d bytes needed, at most %d allowed", cache.ErrPoolFull, wanted, limit)
	}
	before, began := ps.bytes(ps.capacities()), time.Now()
	// The destination of pending work may have been given up since.
	err := errors.Join(ps.cfg.Drop(), ps.Work(ctx))
	to := ps.shared(least, limit)
	if err == nil {
		for i, p := range ps.All {
			p.IDs.Shrink(min(to[i], p.IDs.Capacity()))
		}
		err = ps.shrinkPools(ctx, ps.capacities())
	}
	if err == nil {
		err = ps.growPools(ctx, to)
	}
	if outOfMemory(err) {
		err = fmt.Errorf("%w: %w", cache.ErrPoolFull, err)
	}
	if err == nil {
		ps.growth("pages moved from one cache to another", before, began)
	}
	return err
}

// capacities are the pages that there are of each pool.
func (ps *Pools) capacities() counts {
	n := make(counts, len(ps.All))
	for i, p := range ps.All {
		n[i] = p.IDs.Capacity()
	}
	return n
}

// shrinkPools takes back the pages that growPools gave to some caches, where they have more than
// `to`. It goes backwards: the last one finds the room that it left when it grew, and each makes
// room for the one before. A cache stays large if another program took its room.
func (ps *Pools) shrinkPools(ctx context.Context, to counts) error {
	for _, c := range slices.Backward(ps.caches) {
		t, n := c.Memory(), to[c.Pool.Index]
		if t.Shape[0] <= n {
			continue
		}
		if err := ps.resize(ctx, t, n); err != nil && !outOfMemory(err) {
			return err
		}
	}
	return nil
}

// resize moves a cache to memory of another size, with the pages that both have.
func (ps *Pools) resize(ctx context.Context, t *tensor.Tensor, pages int) error {
	fresh, err := tensor.New(ps.cfg.Dev, "caches", tensor.U8, pages, t.Shape[1])
	if err != nil {
		return err
	}
	n := min(pages, t.Shape[0])
	err = ps.cfg.Run(ctx, func(rec *vk.Recorder) error { return rec.Copy(fresh.Rows(0, n).View(), t.Rows(0, n).View()) })
	if err != nil {
		return errors.Join(err, fresh.Close())
	}
	old := *t
	*t = fresh
	return old.Close()
}

// cannotGrow tells that the device has no memory for caches of `to` bytes: once until they grow,
// since a server goes on trying.
func (ps *Pools) cannotGrow(from, to uint64, err error) {
	if !ps.cramped {
		ps.cramped = true
		ps.cfg.Log(slog.LevelWarn, "no memory for caches to grow", "from_bytes", from, "to_bytes", to, "error", err)
	}
}

// growth notes what growing the caches came to.
func (ps *Pools) growth(event string, before uint64, began time.Time) {
	took := time.Since(began)
	ps.cramped = false
	ps.Stats.Grown++
	ps.Stats.Growing += took
	ps.cfg.Log(slog.LevelInfo, event, "from_bytes", before, "to_bytes", ps.bytes(ps.capacities()), "time", took)
}
