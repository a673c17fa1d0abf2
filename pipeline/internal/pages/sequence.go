package pages

import (
	"context"
	"math"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/blocks"
)

// Sequence has the pages that hold what is kept of some tokens.
type Sequence struct {
	Number int     // row of the block tables
	Seat   *Seat   // of the number
	Tables []Table // of each pool

	ps    *Pools
	floor int // see Floor
}

// Table is the block table of a sequence for the pages of a pool.
type Table struct {
	*blocks.Table
	Pool *Pool

	quiet  int // see Seat.Quiet, of this table; 0 while unknown
	synced int // entries that the device has, or gets with the last claim
	before int // synced before that claim, to undo it
}

// Seat holds what every step reads of the sequence in a row. Those of all sequences lie side by
// side: after the wait for a step none is in a processor's cache.
type Seat struct {
	Length int // tokens, without those that are claimed

	// Up to this length the sequence needs no page and writes to none that it shares. Until then
	// its tables are not updated and may be out of date.
	Quiet int
}

// Open makes a sequence without tokens in a free row; nil if there is none.
func (ps *Pools) Open() *Sequence {
	row := slices.Index(ps.sequences, nil)
	if row < 0 {
		return nil
	}
	ps.Seats[row] = Seat{}
	s := &Sequence{ps: ps, Number: row, Seat: &ps.Seats[row], Tables: make([]Table, len(ps.All))}
	for i, p := range ps.All {
		s.Tables[i] = Table{Table: blocks.NewTable(p.IDs, p.Page), Pool: p}
	}
	ps.sequences[row] = s
	return s
}

// Fork makes a sequence with the same tokens in the same pages; nil if there is no row for it.
func (s *Sequence) Fork() *Sequence {
	f := s.ps.Open()
	if f != nil {
		s.shareWith(f)
	}
	return f
}

// View makes a sequence without a row, which keeps the pages while they are read. Cut(0) gives them
// back.
func (s *Sequence) View() *Sequence {
	v := &Sequence{ps: s.ps, Seat: &Seat{}, Tables: slices.Clone(s.Tables)}
	s.shareWith(v)
	return v
}

// shareWith gives another sequence the same tokens in the same pages.
func (s *Sequence) shareWith(f *Sequence) {
	s.Settle()
	for i, t := range s.Tables {
		f.Tables[i] = Table{Table: t.Fork(), Pool: t.Pool}
	}
	f.Seat.Length, f.floor = s.Seat.Length, s.Floor()
}

// Truncate forgets the tokens from n on, 0 or at least Floor.
func (s *Sequence) Truncate(n int) {
	if n == 0 {
		s.floor = 0
	}
	s.Cut(n)
	s.Seat.Length = n
}

// Resume takes the pages of a sequence of some length that can be truncated to floor. first says at
// which entry of each table they begin.
func (s *Sequence) Resume(ctx context.Context, length, floor int, first []int) error {
	need := make(counts, len(s.Tables))
	for i, t := range s.Tables {
		need[i] = ceilDiv(t.Pool.Slots(length), t.Pool.Page) - first[i]
	}
	err := s.ps.ensure(ctx, need)
	s.Seat.Length, s.floor = length, floor
	for i, t := range s.Tables {
		if err == nil {
			err = t.Resume(t.Pool.Slots(length), first[i])
		}
	}
	return err
}

// Cut gives back the pages of tokens from n on.
func (s *Sequence) Cut(n int) {
	s.wake()
	for i := range s.Tables {
		s.cutIn(&s.Tables[i], n)
	}
	s.ps.dropCopies()
}

// cutIn is Cut for one table, and wakes no other.
func (s *Sequence) cutIn(t *Table, n int) {
	s.Seat.Quiet, t.quiet = 0, 0
	t.Truncate(min(t.Pool.Slots(n), t.Len()))
	t.synced = min(t.synced, t.Entries())
}

// Close gives back the pages and the row.
func (s *Sequence) Close() {
	s.Cut(0)
	s.ps.sequences[s.Number], s.Seat = nil, &Seat{}
}

// due reports whether a table has something to do for the next n tokens.
func (s *Sequence) due(t *Table, n int) bool { return s.Seat.Length+n > t.quiet }

// tables are those of the layers that run: in steps of drafts of those that draft.
func (s *Sequence) tables(draft bool) []Table {
	if draft {
		return s.Tables[s.ps.drafts:]
	}
	return s.Tables
}

// need adds the pages that n more tokens take in some tables.
func (s *Sequence) need(tables []Table, n int, pages counts) {
	for i := range tables {
		if t := &tables[i]; s.due(t, n) {
			pages[t.Pool.Index] += t.Need(t.Pool.Slots(s.Seat.Length+n) - t.Len())
		}
	}
}

// reserve takes the pages for n more tokens in some tables, which ensure has made free, gives back
// those that are no longer needed, and finds out for how long the tables can then be left alone.
// Pages that have to be copied are listed for Work.
func (s *Sequence) reserve(tables []Table, n int) error {
	for i := range tables {
		if t := &tables[i]; s.due(t, n) {
			if err := s.reserveIn(t, n); err != nil {
				return err
			}
		}
	}
	s.Seat.Quiet = math.MaxInt
	for i := range s.Tables {
		s.Seat.Quiet = min(s.Seat.Quiet, s.Tables[i].quiet)
	}
	return nil
}

// reserveIn is reserve for one table.
func (s *Sequence) reserveIn(t *Table, n int) error {
	p := t.Pool
	s.recycleIn(t)
	last := max(t.Entries()-1, 0)
	copies, err := t.Append(p.Slots(s.Seat.Length+n) - t.Len())
	if err != nil {
		return err
	}
	for _, c := range copies {
		p.IDs.Retain(c.From) // its other holder may close: the page stays until it is copied
		s.ps.pending = append(s.ps.pending, work{pool: p, PageCopy: c})
		t.synced, t.before = min(t.synced, last), min(t.before, last)
	}
	t.quiet = (t.Len()+t.Room()+1)*p.Tokens - 1
	if !p.KeepsAll() { // until there are two pages to give back: one goes when the next is taken
		t.quiet = min(t.quiet, (p.Gone(s.Floor())+2)*p.Page+p.keep+s.ps.cfg.Rewind-1)
	}
	return nil
}

// Floor returns the shortest length that the sequence can be truncated to, besides 0. It has to be
// looked at while the sequence has its greatest length.
func (s *Sequence) Floor() int {
	s.floor = max(s.floor, s.Seat.Length-s.ps.cfg.Rewind)
	return s.floor
}

// recycle gives back pages that are no longer needed.
func (s *Sequence) recycle() {
	for i := range s.Tables {
		s.recycleIn(&s.Tables[i])
	}
}

// recycleIn is recycle for one table.
func (s *Sequence) recycleIn(t *Table) {
	if !t.Pool.KeepsAll() {
		t.Recycle(max(0, s.Floor()-t.Pool.keep))
	}
}

// wake makes the next step update the tables.
func (s *Sequence) wake() {
	s.Seat.Quiet = 0
	for i := range s.Tables {
		s.Tables[i].quiet = 0
	}
}

// Settle gives back pages that are no longer needed, before the tables are shared or cut.
func (s *Sequence) Settle() {
	s.recycle()
	s.wake()
}
