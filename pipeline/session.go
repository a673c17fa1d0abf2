package pipeline

import (
	"context"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/pipeline/internal/blocks"
	"github.com/vkmla/vkmla/vk"
)

const (
	opOpenSession = "pipeline: open session"
	opFork        = "pipeline: fork session"
	opTruncate    = "pipeline: truncate session"
	opSession     = "pipeline: close session"
	opAdvance     = "pipeline: advance session"
)

// Session is a sequence of tokens of an Engine: which pages hold what the layers keep of
// it. It is cheap; pages come with its tokens.
type Session struct {
	e      *Engine
	row    int       // of the block tables
	at     *rowState // of the row
	floor  int       // see lowest
	closed bool
	tables []sessionTable // of each of the engine's pools
}

// sessionTable is the block table of a session for the pages of a pool.
type sessionTable struct {
	*blocks.Table
	pool   *enginePool
	quiet  int // see rowState.quiet, of this table; 0 while unknown
	synced int // entries that the device has, or gets with the step in progress
	before int // synced before the step in progress, to undo it
}

// rowState holds the fields of the session in a row that every step reads. Those of all sessions
// lie side by side: after the wait for a step none is in a processor's cache.
type rowState struct {
	length int // tokens, without those of a step in progress

	// Up to this length the session needs no page and writes to none that it shares. Until then its
	// tables are not updated and may be out of date.
	quiet int
}

// Open makes a session without tokens. Errors: ErrTooManySessions; vk.ErrClosed,
// vk.ErrDeviceLost.
func (e *Engine) Open() (*Session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.open()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opOpenSession, err)
	}
	return s, nil
}

// open makes a session in a free row.
func (e *Engine) open() (*Session, error) {
	if err := e.usable(); err != nil {
		return nil, err
	}
	for row, taken := range e.sessions {
		if taken != nil {
			continue
		}
		e.rows[row] = rowState{}
		s := &Session{e: e, row: row, at: &e.rows[row], tables: make([]sessionTable, len(e.pools))}
		for i, p := range e.pools {
			t, err := blocks.NewTable(p.ids, p.Page)
			if err != nil {
				return nil, err
			}
			s.tables[i] = sessionTable{Table: t, pool: p}
		}
		e.sessions[row] = s
		return s, nil
	}
	return nil, fmt.Errorf("%w: %d are open", ErrTooManySessions, len(e.sessions))
}

// Len returns the number of tokens, without those of a step in progress; 0 once closed.
func (s *Session) Len() int {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.at.length
}

// Number returns the device's number of the session, see Between: 0 to MaxSessions-1. No two open
// sessions have the same number; a new one may get that of one that was closed.
func (s *Session) Number() int { return s.row }

// usable reports why nothing can be done with a session.
func (s *Session) usable() error {
	if err := s.e.usable(); err != nil {
		return err
	}
	if s.closed {
		return fmt.Errorf("session %w", vk.ErrClosed)
	}
	return nil
}

// free reports why a session cannot be changed now.
func (s *Session) free() error {
	if err := s.usable(); err != nil {
		return err
	}
	if s.inStep() {
		return ErrInStep
	}
	return nil
}

// inStep reports whether the session has a chunk of the step in progress, or of one that begins.
func (s *Session) inStep() bool { return s.e.now.byRow[s.row] >= 0 }

// Fork makes a session with the same tokens in the same pages. Nothing is copied now: a shared page
// is copied when one of the two writes to it.
//
// Errors: ErrTooManySessions, ErrInStep; vk.ErrClosed, vk.ErrDeviceLost.
func (s *Session) Fork() (*Session, error) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	f, err := s.fork()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opFork, err)
	}
	return f, nil
}

func (s *Session) fork() (*Session, error) {
	if err := s.free(); err != nil {
		return nil, err
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	f, err := s.e.open()
	if err != nil {
		return nil, err
	}
	for i, t := range s.tables {
		shared, err := t.Fork()
		if err != nil {
			f.drop()
			return nil, err
		}
		f.tables[i].Table = shared
	}
	f.at.length, f.floor = s.at.length, s.lowest()
	return f, nil
}

// Truncate forgets the tokens from n on. n is 0, or no more than EngineOptions.Rewind below the
// greatest length that the session, or the one it was forked from, had since it was empty.
//
// Errors: vk.ErrArgument for n below 0 or beyond Len; ErrRewind, ErrInStep;
// vk.ErrClosed, vk.ErrDeviceLost.
func (s *Session) Truncate(n int) error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	err := s.free()
	if err == nil {
		err = s.settle()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opTruncate, err)
	}
	switch {
	case n < 0 || n > s.at.length:
		return badArgument(opTruncate, "n", n, "0 to %d", s.at.length)
	case n == 0:
		s.floor = 0
	case n < s.lowest():
		return fmt.Errorf("%s: %w: to %d of %d tokens, possible are 0 and %d or more", opTruncate, ErrRewind, n, s.at.length, s.floor)
	}
	if err := s.cut(n); err != nil {
		return fmt.Errorf("%s: %w", opTruncate, err)
	}
	s.at.length = n
	return nil
}

// cut gives back the pages of tokens from n on.
func (s *Session) cut(n int) error {
	s.wake()
	for i := range s.tables {
		if err := s.cutIn(&s.tables[i], n); err != nil {
			return err
		}
	}
	return s.e.dropCopies()
}

// cutIn is cut for one table, and wakes no other.
func (s *Session) cutIn(t *sessionTable, n int) error {
	s.at.quiet, t.quiet = 0, 0
	if err := t.Truncate(min(t.pool.slots(n), t.Len())); err != nil {
		return err
	}
	t.synced = min(t.synced, t.Entries())
	return nil
}

// Close gives the session's pages back. Closing again, or after the engine, does
// nothing. The error is ErrInStep.
func (s *Session) Close() error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if s.closed || s.e.closed {
		return nil
	}
	if s.inStep() {
		return fmt.Errorf("%s: %w", opSession, ErrInStep)
	}
	if err := s.drop(); err != nil {
		return fmt.Errorf("%s: %w", opSession, err)
	}
	return nil
}

func (s *Session) drop() error {
	err := s.cut(0)
	s.e.sessions[s.row], s.closed, s.at = nil, true, &rowState{}
	return err
}

// due reports whether a table has something to do for the next n tokens.
func (s *Session) due(t *sessionTable, n int) bool { return s.at.length+n > t.quiet }

// tablesOf are the tables of the layers that run: in steps of drafts of those that draft.
func (s *Session) tablesOf(draft bool) []sessionTable {
	if draft {
		return s.tables[s.e.draftPools:]
	}
	return s.tables
}

// need adds the pages that n more tokens take in some tables.
func (s *Session) need(tables []sessionTable, n int, pages pageCounts) {
	for i := range tables {
		if t := &tables[i]; s.due(t, n) {
			pages[t.pool.index] += t.Need(t.pool.slots(s.at.length+n) - t.Len())
		}
	}
}

// list adds the tables that have something to do for the next n tokens to those that the device
// may not have.
func (s *Session) list(tables []sessionTable, n int, changed []tableOf) []tableOf {
	for i := range tables {
		if t := &tables[i]; s.due(t, n) {
			t.before = t.synced
			changed = append(changed, tableOf{s, t})
		}
	}
	return changed
}

// reserve takes the pages for n more tokens in some tables, which ensure has made free, gives back
// those that are no longer needed, and finds out for how long the tables can then be left alone.
// Pages that have to be copied are listed for workPages.
func (s *Session) reserve(tables []sessionTable, n int) error {
	for i := range tables {
		if t := &tables[i]; s.due(t, n) {
			if err := s.reserveIn(t, n); err != nil {
				return err
			}
		}
	}
	s.at.quiet = math.MaxInt
	for i := range s.tables {
		s.at.quiet = min(s.at.quiet, s.tables[i].quiet)
	}
	return nil
}

// reserveIn is reserve for one table.
func (s *Session) reserveIn(t *sessionTable, n int) error {
	p := t.pool
	if err := s.recycleIn(t); err != nil {
		return err
	}
	last := max(t.Entries()-1, 0)
	copies, err := t.Append(p.slots(s.at.length+n) - t.Len())
	if err != nil {
		return err
	}
	for _, c := range copies {
		// The other holder may close: its page stays until it is copied.
		if err := p.ids.Retain(c.From); err != nil {
			return err
		}
		s.e.pending = append(s.e.pending, pageWork{pool: p, PageCopy: c})
		t.synced, t.before = min(t.synced, last), min(t.before, last)
	}
	t.quiet = (t.Len()+t.Room()+1)*p.Tokens - 1
	if !p.keepsAll() { // until there are two pages to give back: one goes when the next is taken
		t.quiet = min(t.quiet, (p.gone(s.lowest())+2)*p.Page+p.keep+s.e.opts.Rewind-1)
	}
	return nil
}

// lowest is the shortest length that the session can be truncated to, besides 0. It is kept in
// floor, which has to be updated while the session has its greatest length.
func (s *Session) lowest() int {
	s.floor = max(s.floor, s.at.length-s.e.opts.Rewind)
	return s.floor
}

// recycle gives back pages that are no longer needed.
func (s *Session) recycle() error {
	for i := range s.tables {
		if err := s.recycleIn(&s.tables[i]); err != nil {
			return err
		}
	}
	return nil
}

// recycleIn is recycle for one table.
func (s *Session) recycleIn(t *sessionTable) error {
	if t.pool.keepsAll() {
		return nil
	}
	return t.Recycle(max(0, s.lowest()-t.pool.keep))
}

// wake makes the next step update the tables.
func (s *Session) wake() {
	s.at.quiet = 0
	for i := range s.tables {
		s.tables[i].quiet = 0
	}
}

// settle brings the tables up to date, before they are shared or cut, and gives back pages that
// are no longer needed.
func (s *Session) settle() error {
	s.wake()
	err := s.reserve(s.tables, 0)
	s.wake()
	return err
}

// Advance lengthens the session by n tokens that no layer has seen: all that caches hold of them is
// zeros. It serves measurements at a length (see Engine.Caches), and callers that write the pages
// themselves, afterwards. It waits while a step of other sessions is in progress.
//
// Errors: vk.ErrArgument for a negative n; ErrSequenceFull, cache.ErrPoolFull,
// ErrInStep; the context's; vk.ErrClosed, vk.ErrDeviceLost. Then the session may have got
// some of the tokens.
func (s *Session) Advance(ctx context.Context, n int) error {
	e := s.e
	e.mu.Lock()
	err := s.free() // its own step would never let it in
	e.mu.Unlock()
	if err == nil {
		err = e.betweenSteps(ctx, func() error { return s.advance(ctx, n) })
	}
	if err != nil {
		return wrap(opAdvance, err)
	}
	return nil
}

func (s *Session) advance(ctx context.Context, n int) (err error) {
	e, from := s.e, s.at.length
	switch err := s.free(); {
	case err != nil:
		return err
	case n < 0:
		return badArgument(opAdvance, "n", n, "at least 0")
	case n > e.opts.MaxTokens-from:
		return fmt.Errorf("%w: %d tokens and %d more, of at most %d", ErrSequenceFull, from, n, e.opts.MaxTokens)
	}
	e.now.byRow[s.row] = 0 // it cannot be changed meanwhile
	defer e.now.clearRows()
	pages := make(pageCounts, len(e.pools))
	for n > 0 && err == nil {
		part := min(n, e.opts.MaxStep)
		clear(pages)
		s.need(s.tables, part, pages)
		if err = e.ensure(ctx, pages); err != nil {
			break
		}
		if err = s.reserve(s.tables, part); err != nil {
			break
		}
		s.at.length += part
		if err = s.recycle(); err == nil {
			n -= part
		}
	}
	s.wake() // the device has none of the new entries
	s.blank(from)
	if err == nil {
		err = e.workPages(ctx)
	}
	return err
}
