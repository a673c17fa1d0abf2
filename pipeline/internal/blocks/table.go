package blocks

import (
	"fmt"
	"math"
	"slices"
)

// Table is the block table of one sequence: which page holds which of its slots.
// Slot position q, 0 up to Len()-1, lies in entry q/page. For a window cache a
// position is a token's, for a compressed cache it counts compressed entries.
//
// A table holds its pages in the pool until Close. It is not for use by several
// goroutines at once, but tables of one pool may be used by one goroutine each. Those
// that share a page have to agree on when the copy of Append is recorded. NewTable makes
// one; the zero value does not work.
type Table struct {
	pool   *Pool
	page   int
	blocks []int32 // -1: recycled
	gone   int     // how many are recycled: the first ones
	length int
	own    bool // no fork holds the last page, so that the pool need not be asked
}

// PageCopy says that the bytes of page From must be copied to page To before To
// is written.
type PageCopy struct{ From, To int32 }

// NewTable returns an empty table over pages of page slots. The error is a
// *vk.ArgumentError.
func NewTable(pool *Pool, page int) (*Table, error) {
	switch {
	case pool == nil:
		return nil, pkg.Wrong("table", "pool", "nil", "a pool")
	case page < 1 || page > math.MaxInt32:
		return nil, pkg.Wrong("table", "page", page, "1..%d slots", math.MaxInt32)
	}
	return &Table{pool: pool, page: page}, nil
}

// Len is the number of positions.
func (t *Table) Len() int { return t.length }

// Entries is the number of entries, those of recycled pages included.
func (t *Table) Entries() int { return len(t.blocks) }

// Entry is the page of positions i*page and following, -1 for a recycled one; i is 0 to
// Entries()-1.
func (t *Table) Entry(i int) int32 { return t.blocks[i] }

// Need is the number of pages that Append(n) would take from the pool, 0 for an n below
// 1.
func (t *Table) Need(n int) int {
	if n <= 0 {
		return 0
	}
	need := t.grown(n)
	if t.shared() {
		need++
	}
	return need
}

// Room is the number of positions that Append can add without taking a page from the
// pool: those left in the last page, or none while a fork shares it.
func (t *Table) Room() int {
	if t.shared() {
		return 0
	}
	return len(t.blocks)*t.page - t.length
}

// shared reports whether the next position falls into a page that a fork holds, too.
func (t *Table) shared() bool {
	if t.own {
		return false
	}
	last := t.last()
	return last >= 0 && t.pool.Refs(last) > 1
}

// grown returns the number of entries that n more positions add, for n of at least 1.
func (t *Table) grown(n int) int {
	room := len(t.blocks)*t.page - t.length
	if n <= room {
		return 0
	}
	return (n-room-1)/t.page + 1
}

// last is the page that the next position falls into, -1 if it begins one.
func (t *Table) last() int32 {
	if t.length%t.page == 0 {
		return -1
	}
	return t.blocks[len(t.blocks)-1]
}

// Append adds n positions and takes the pages they need from the pool.
//
// If the first of them falls into a page that a fork shares, a page of its own
// takes its place, and the copy that the caller has to make before writing to it
// is returned (see KVCache.RecordCopy); there is at most one. The old page may
// belong to the other holder alone from then on, so the copy has to be recorded
// before that holder writes or frees it.
//
// It fails with cache.ErrPoolFull, or vk.ErrArgument for a negative n.
func (t *Table) Append(n int) ([]PageCopy, error) {
	if n < 0 || n > math.MaxInt-t.length {
		return nil, pkg.Wrong("append", "n", n, "0 or more positions")
	}
	if n == 0 {
		return nil, nil
	}
	last, entries := t.last(), len(t.blocks)
	blocks, shared, err := t.pool.extend(t.blocks, last, t.grown(n))
	if err != nil {
		return nil, err
	}
	t.blocks, t.own = blocks, true
	t.length += n
	if shared {
		return []PageCopy{{From: last, To: t.blocks[entries-1]}}, nil
	}
	return nil, nil
}

// Resume gives an empty table length positions, as a table has them whose first entries
// were recycled: those below the entry first are -1, the others pages from the pool.
// A page that is not full cannot have been recycled.
//
// It fails with cache.ErrPoolFull, or vk.ErrArgument for a table that is not empty, a length
// beyond 2^31-1, or a first beyond its full entries.
func (t *Table) Resume(length, first int) error {
	if length < 0 || length > math.MaxInt32 {
		return pkg.Wrong("resume", "length", length, "0..2^31-1 positions")
	}
	if len(t.blocks) > 0 || first < 0 || first > length/t.page {
		return pkg.Wrong("resume", "first", first, "0..%d full entries of a table that was empty", length/t.page)
	}
	fresh, err := t.pool.Alloc((length+t.page-1)/t.page - first)
	if err != nil {
		return err
	}
	t.blocks = append(slices.Repeat([]int32{-1}, first), fresh...)
	t.gone, t.length = first, length
	return nil
}

// Fork returns a table with the same positions in the same pages, which both hold from now on. It
// fails with ErrForeignBlock if pages of this table were released elsewhere.
func (t *Table) Fork() (*Table, error) {
	if err := t.pool.Retain(t.blocks[t.gone:]...); err != nil {
		return nil, err
	}
	t.own = false
	return &Table{pool: t.pool, page: t.page, blocks: slices.Clone(t.blocks), gone: t.gone, length: t.length}, nil
}

// Truncate forgets the positions from n on and lets go of pages that have none left. It fails with
// vk.ErrArgument if n is not in 0..Len(), and with ErrRecycled if position n lies inside a recycled
// page, not at its beginning: the next position could not be written there.
func (t *Table) Truncate(n int) error {
	if n < 0 || n > t.length {
		return pkg.Wrong("truncate", "n", n, "0..%d positions", t.length)
	}
	keep := (n + t.page - 1) / t.page
	if n%t.page != 0 && t.blocks[keep-1] < 0 {
		return fmt.Errorf("blocks: truncate: position %d: %w", n, ErrRecycled)
	}
	if keep == len(t.blocks) {
		t.length = n
		return nil
	}
	if err := t.pool.Release(t.blocks[max(keep, t.gone):]...); err != nil {
		return err
	}
	t.blocks, t.gone, t.length, t.own = t.blocks[:keep], min(t.gone, keep), n, false
	return nil
}

// Recycle lets go of the pages whose every position is below first and that are
// full; their entries become -1. Positions keep their numbers. A sliding window of
// 128 needs first = the next position - 127.
func (t *Table) Recycle(first int) error {
	n := min(first, t.length) / t.page
	if n <= t.gone {
		return nil
	}
	if err := t.pool.Release(t.blocks[t.gone:n]...); err != nil {
		return err
	}
	for i := range t.blocks[t.gone:n] {
		t.blocks[t.gone+i] = -1
	}
	t.gone = n
	return nil
}
