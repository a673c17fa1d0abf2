// Package blocks says who owns which page: a [Pool] counts the references to page ids, a [Table]
// maps the positions of one sequence to pages. Neither touches a device, and callers exclude each
// other.
package blocks

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/cache"
)

// Pool hands out the page ids 0 to capacity-1 and counts who holds them. It knows nothing of
// their memory.
type Pool struct {
	refs []int32 // holders of each page
	free []int32 // ids without holders; the last is handed out next
}

// NewPool returns a pool of `capacity` pages, all free. Page 0 is handed out first.
func NewPool(capacity int) *Pool {
	p := &Pool{}
	p.Grow(capacity)
	return p
}

// Capacity returns the number of pages.
func (p *Pool) Capacity() int { return len(p.refs) }

// Grow adds free pages up to a capacity, no less than the pool has. Those that were there before
// are handed out first.
func (p *Pool) Grow(capacity int) {
	more := make([]int32, capacity-len(p.refs), capacity)
	for i := range more {
		more[i] = int32(capacity - 1 - i)
	}
	p.free, p.refs = append(more, p.free...), append(p.refs, make([]int32, len(more))...)
}

// Least returns the least capacity that Shrink takes: the pages up to the last one that has a
// holder.
func (p *Pool) Least() int {
	n := len(p.refs)
	for n > 0 && p.refs[n-1] == 0 {
		n--
	}
	return n
}

// Shrink takes free pages from the end of the pool, down to a capacity of at least Least.
func (p *Pool) Shrink(capacity int) {
	p.refs = slices.Clip(p.refs[:capacity])
	p.free = slices.DeleteFunc(p.free, func(b int32) bool { return int(b) >= capacity })
}

// Free returns the number of pages without a holder.
func (p *Pool) Free() int { return len(p.free) }

// Refs returns the number of holders of a page, 0 for a free one.
func (p *Pool) Refs(page int32) int { return int(p.refs[page]) }

// take appends n pages to a list, each held once. The pages given back last come first. The error
// is cache.ErrPoolFull.
func (p *Pool) take(to []int32, n int) ([]int32, error) {
	if n > len(p.free) {
		return nil, fmt.Errorf("blocks: alloc: %d pages wanted, %d of %d free: %w", n, len(p.free), len(p.refs), cache.ErrPoolFull)
	}
	for range n {
		page := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.refs[page] = 1
		to = append(to, page)
	}
	return to, nil
}

// Retain adds a holder to each of the pages, which have one.
func (p *Pool) Retain(pages ...int32) {
	for _, b := range pages {
		p.refs[b]++
	}
}

// Release takes a holder from each of the pages; those without any left are free again.
func (p *Pool) Release(pages ...int32) {
	for _, b := range pages {
		if p.refs[b]--; p.refs[b] == 0 {
			p.free = append(p.free, b)
		}
	}
}
