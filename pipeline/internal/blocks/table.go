package blocks

import "slices"

// Table is the block table of one sequence: which page holds which of its slots.
// Slot position q, 0 up to Len()-1, lies in entry q/page. For a window cache a
// position is a token's, for a compressed cache it counts compressed entries.
//
// A table holds its pages in the pool until Truncate(0).
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

// NewTable returns an empty table over pages of `page` slots.
func NewTable(pool *Pool, page int) *Table { return &Table{pool: pool, page: page} }

// Len returns the number of positions.
func (t *Table) Len() int { return t.length }

// Entries returns the number of entries, those of recycled pages included.
func (t *Table) Entries() int { return len(t.blocks) }

// Entry returns the page of positions i*page and following, -1 for a recycled one; i is 0 to
// Entries()-1.
func (t *Table) Entry(i int) int32 { return t.blocks[i] }

// Need returns the number of pages that Append(n) would take from the pool, 0 for an n below 1.
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

// Room returns the number of positions that Append can add without taking a page from the
// pool: those left in the last page, or none while a fork shares it.
func (t *Table) Room() int {
	if t.shared() {
		return 0
	}
	return len(t.blocks)*t.page - t.length
}

// shared reports whether the next position falls into a page that a fork holds, too.
func (t *Table) shared() bool {
	return !t.own && t.length%t.page > 0 && t.pool.Refs(t.blocks[len(t.blocks)-1]) > 1
}

// grown returns the number of entries that n more positions add, for n of at least 1.
func (t *Table) grown(n int) int {
	room := len(t.blocks)*t.page - t.length
	if n <= room {
		return 0
	}
	return (n-room-1)/t.page + 1
}

// Append adds n positions and takes the pages they need from the pool.
//
// If the first of them falls into a page that a fork shares, a page of its own
// takes its place, and the copy that the caller has to make before writing to it
// is returned; there is at most one. The old page may belong to the other holder
// alone from then on, so the copy has to be recorded before that holder writes or
// frees it.
//
// The error is cache.ErrPoolFull.
func (t *Table) Append(n int) ([]PageCopy, error) {
	if n == 0 {
		return nil, nil
	}
	shared, entries := t.shared(), len(t.blocks)
	fresh, err := t.pool.take(nil, t.Need(n))
	if err != nil {
		return nil, err
	}
	var copies []PageCopy
	if shared {
		last := t.blocks[entries-1]
		t.pool.Release(last)
		copies, t.blocks = []PageCopy{{From: last, To: fresh[0]}}, t.blocks[:entries-1]
	}
	t.blocks, t.own = append(t.blocks, fresh...), true
	t.length += n
	return copies, nil
}

// Resume gives an empty table length positions, as a table has them whose first entries
// were recycled: those below the entry first are -1, the others pages from the pool.
// A page that is not full cannot have been recycled. The error is cache.ErrPoolFull.
func (t *Table) Resume(length, first int) error {
	entries, err := t.pool.take(slices.Repeat([]int32{-1}, first), (length+t.page-1)/t.page-first)
	if err == nil {
		t.blocks, t.gone, t.length = entries, first, length
	}
	return err
}

// Fork returns a table with the same positions in the same pages, which both hold from now on.
func (t *Table) Fork() *Table {
	t.pool.Retain(t.blocks[t.gone:]...)
	t.own = false
	return &Table{pool: t.pool, page: t.page, blocks: slices.Clone(t.blocks), gone: t.gone, length: t.length}
}

// Truncate forgets the positions from n on and lets go of pages that have none left. Position n
// must not lie inside a recycled page: the next one could not be written there.
func (t *Table) Truncate(n int) {
	t.length = n
	keep := (n + t.page - 1) / t.page
	if keep == len(t.blocks) {
		return
	}
	t.pool.Release(t.blocks[max(keep, t.gone):]...)
	t.blocks, t.gone, t.own = t.blocks[:keep], min(t.gone, keep), false
}

// Recycle lets go of the pages whose every position is below first and that are
// full; their entries become -1. Positions keep their numbers. A sliding window of
// 128 needs first = the next position - 127.
func (t *Table) Recycle(first int) {
	for n := min(first, t.length) / t.page; t.gone < n; t.gone++ {
		t.pool.Release(t.blocks[t.gone])
		t.blocks[t.gone] = -1
	}
}
