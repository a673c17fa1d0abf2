// Package blocks says who owns which page: a [Pool] counts the references to page ids, a [Table]
// maps the positions of one sequence to pages. Neither touches a device.
package blocks

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
)

// pkg begins the errors of this package.
const pkg = opkit.Package("blocks")

// Errors of pools and tables. They arrive wrapped, with what was asked for and
// what there is; nothing has changed when one is returned.
var (
	// ErrDoubleFree: a page was released more often than it was held.
	ErrDoubleFree = errors.New("block is already free")
	// ErrForeignBlock: a page id is not of this pool, or not handed out.
	ErrForeignBlock = errors.New("block is not of this pool")
	// ErrTableTooShort: a block table has no entry for a position, or a row is
	// too narrow for the table.
	ErrTableTooShort = errors.New("block table is too short")
	// ErrRecycled: the page of a position was given back with Table.Recycle.
	ErrRecycled = errors.New("page was recycled")
)

// Pool hands out the page ids 0 to capacity-1 and counts who holds them. It knows nothing of
// their memory. Its methods may be called by several goroutines at once, and each either does all
// it was asked or nothing.
type Pool struct {
	mu   sync.Mutex
	refs []int32 // holders of each page
	free []int32 // ids without holders; the last is handed out next
}

// NewPool returns a pool of that many pages, all free. The error is a
// *vk.ArgumentError.
func NewPool(capacity int) (*Pool, error) {
	if capacity < 0 || capacity > math.MaxInt32 {
		return nil, pkg.Wrong("block pool", "capacity", capacity, "0..2^31-1 pages")
	}
	p := &Pool{refs: make([]int32, capacity), free: make([]int32, capacity)}
	for i := range p.free {
		p.free[i] = int32(capacity - 1 - i) // page 0 is handed out first
	}
	return p, nil
}

// Capacity is the number of pages.
func (p *Pool) Capacity() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.refs)
}

// Grow adds free pages up to a capacity; ids that are handed out stay as they are. The
// error is a *vk.ArgumentError for less than the pool has.
func (p *Pool) Grow(capacity int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := len(p.refs)
	if capacity < had || capacity > math.MaxInt32 {
		return pkg.Wrong("block pool", "capacity", capacity, "%d..2^31-1 pages", had)
	}
	more := make([]int32, capacity-had, capacity)
	for i := range more {
		more[i] = int32(capacity - 1 - i)
	}
	p.free = append(more, p.free...) // pages that were used before are handed out first
	p.refs = append(p.refs, make([]int32, capacity-had)...)
	return nil
}

// Least is the least capacity that Shrink takes: the pages up to the last one that has a holder.
func (p *Pool) Least() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.least()
}

func (p *Pool) least() int {
	n := len(p.refs)
	for n > 0 && p.refs[n-1] == 0 {
		n--
	}
	return n
}

// Shrink takes free pages from the end of the pool, down to a capacity. The error is a
// *vk.ArgumentError for more than the pool has, or for less than Least.
func (p *Pool) Shrink(capacity int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.least(); capacity < n || capacity > len(p.refs) {
		return pkg.Wrong("block pool", "capacity", capacity, "%d..%d pages", n, len(p.refs))
	}
	p.refs = slices.Clip(p.refs[:capacity])
	p.free = slices.DeleteFunc(p.free, func(b int32) bool { return int(b) >= capacity })
	return nil
}

// Free is the number of pages without a holder.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Refs is the number of holders of a page, 0 for a free one and for an id that is
// not of this pool.
func (p *Pool) Refs(block int32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.has(block) {
		return 0
	}
	return int(p.refs[block])
}

// Alloc hands out n pages, each held once. The pages given back last come first.
// It fails with cache.ErrPoolFull, or vk.ErrArgument for a negative n.
func (p *Pool) Alloc(n int) ([]int32, error) {
	if n < 0 {
		return nil, pkg.Wrong("alloc", "n", n, "0 or more pages")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.enough(n); err != nil {
		return nil, err
	}
	return p.take(make([]int32, 0, n), n), nil
}

// extend appends n pages to the entries of a table, which end with `last`. If another table holds
// that page, too, last is replaced by a fresh page and released. Both happen under one lock: of
// several holders that extend at the same time, one keeps the page.
func (p *Pool) extend(blocks []int32, last int32, n int) (all []int32, shared bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	shared = p.has(last) && p.refs[last] > 1
	want := n
	if shared {
		want++
	}
	if err := p.enough(want); err != nil {
		return nil, false, err
	}
	if shared {
		p.refs[last]--
		blocks = p.take(blocks[:len(blocks)-1], 1)
	}
	return p.take(blocks, n), shared, nil
}

// enough reports whether n pages are free, to those who hold the mutex.
func (p *Pool) enough(n int) error {
	if n > len(p.free) {
		return fmt.Errorf("blocks: alloc: %d pages wanted, %d of %d free: %w", n, len(p.free), len(p.refs), cache.ErrPoolFull)
	}
	return nil
}

// take appends n pages that are free to a list, for those who hold the mutex.
func (p *Pool) take(to []int32, n int) []int32 {
	for range n {
		page := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.refs[page] = 1
		to = append(to, page)
	}
	return to
}

// Retain adds a holder to each of the pages; an id that occurs twice gets two. It fails with
// ErrForeignBlock for a page that has no holder yet.
func (p *Pool) Retain(blocks ...int32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range blocks {
		if !p.has(b) || p.refs[b] == 0 {
			return fmt.Errorf("blocks: retain: page %d of a pool of %d, not handed out: %w", b, len(p.refs), ErrForeignBlock)
		}
		if int(p.refs[b]) > math.MaxInt32-len(blocks) {
			return pkg.Wrong("retain", "blocks", fmt.Sprintf("page %d with %d holders", b, p.refs[b]), "fewer than 2^31 holders")
		}
	}
	for _, b := range blocks {
		p.refs[b]++
	}
	return nil
}

// Release takes a holder from each of the pages; those without any left are free
// again. An id may occur twice if it is held twice. It fails with ErrForeignBlock
// for an id outside the pool and with ErrDoubleFree for too few holders.
func (p *Pool) Release(blocks ...int32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, b := range blocks {
		var err error
		switch {
		case !p.has(b):
			err = fmt.Errorf("blocks: release: page %d of a pool of %d: %w", b, len(p.refs), ErrForeignBlock)
		case p.refs[b] == 0:
			err = fmt.Errorf("blocks: release: page %d: %w", b, ErrDoubleFree)
		}
		if err != nil {
			for _, done := range blocks[:i] {
				p.refs[done]++
			}
			return err
		}
		p.refs[b]--
	}
	// Only now is it certain that all of them go; a page listed twice is freed once.
	for _, b := range blocks {
		if p.refs[b] == 0 {
			p.refs[b] = -1
			p.free = append(p.free, b)
		}
	}
	for _, b := range blocks {
		p.refs[b] = max(p.refs[b], 0)
	}
	return nil
}

func (p *Pool) has(block int32) bool { return block >= 0 && int(block) < len(p.refs) }
