package pipeline

import (
	"context"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
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
	row    int   // of the block tables
	at     *seat // of the row
	floor  int   // see lowest
	closed bool

	tables   [poolCount]*cache.Table
	quietFor [poolCount]int // see seat.quiet, of each table; 0 while that is not known
	synced   [poolCount]int // entries of the tables that the device has, or gets with the step in progress
}

// seat is what every step has to know of the session in a row, and nothing else: those of
// all sessions lie side by side, for after the wait for a step they are in no cache.
type seat struct {
	length int // tokens, without those of a step in progress

	// As long as the session has no more than so many tokens, it needs no page and shares
	// none that it writes. Its tables are left alone so long, and know of less tokens than
	// it has.
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

// open makes a session, or an error, in a free row.
func (e *Engine) open() (*Session, error) {
	if err := e.usable(); err != nil {
		return nil, err
	}
	for row, taken := range e.sessions {
		if taken != nil {
			continue
		}
		e.seats[row] = seat{}
		s := &Session{e: e, row: row, at: &e.seats[row]}
		for i, p := range e.pools {
			if p == nil {
				continue
			}
			var err error
			if s.tables[i], err = cache.NewTable(p.ids, p.page); err != nil {
				return nil, err
			}
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

// Number is what the device knows the session by, see Between: 0 to MaxSessions-1. No two
// that are open have the same; who is opened later may get that of one that was closed.
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

// inStep reports whether the session has a chunk of the step in progress.
func (s *Session) inStep() bool { return s.e.step != nil && s.e.byRow[s.row] >= 0 }

// Fork makes a session with the same tokens in the same pages. Pages that both write to
// later are copied when they do; nothing is copied now.
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
		if t == nil {
			continue
		}
		shared, err := t.Fork()
		if err != nil {
			f.drop()
			return nil, err
		}
		f.tables[i] = shared
	}
	f.at.length, f.floor = s.at.length, s.lowest()
	return f, nil
}

// Truncate forgets the tokens from n on. n is 0, or no more than EngineOptions.Rewind
// below the greatest length that the session, or the one it was forked from, had since it
// was empty. With the default Rewind of 0 only Truncate(0) and, with nothing to forget,
// Truncate(Len()) succeed.
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
		return &vk.ArgumentError{Op: opTruncate, Arg: "n", Got: fmt.Sprint(n), Want: fmt.Sprintf("0 to %d", s.at.length)}
	case n == 0:
		s.floor = 0
	case n < s.lowest():
		return fmt.Errorf("%s: to %d tokens of %d: %w, at least %d or none may stay", opTruncate, n, s.at.length, ErrRewind, s.floor)
	}
	if err := s.cut(n); err != nil {
		return fmt.Errorf("%s: %w", opTruncate, err)
	}
	s.at.length = n
	return nil
}

// cut lets go of the pages of tokens from n on.
func (s *Session) cut(n int) error {
	s.wake()
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		if err := t.Truncate(min(n/s.e.pools[i].ratio, t.Len())); err != nil {
			return err
		}
		s.synced[i] = min(s.synced[i], t.Entries())
	}
	return nil
}

// Close gives the session's pages back. Closing again, or after the engine, does
// nothing. The error is ErrInStep.
func (s *Session) Close() error {
	if s == nil {
		return nil
	}
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
	s.e.sessions[s.row], s.closed, s.at = nil, true, &seat{}
	return err
}

// due reports whether a table has something to do for the next n tokens.
func (s *Session) due(i, n int) bool { return s.tables[i] != nil && s.at.length+n > s.quietFor[i] }

// need adds the pages that n more tokens take.
func (s *Session) need(n int, pages *[poolCount]int) {
	for i, t := range s.tables {
		if s.due(i, n) {
			pages[i] += t.Need((s.at.length+n)/s.e.pools[i].ratio - t.Len())
		}
	}
}

// reserve takes the pages for n more tokens, which ensure has made free, lets go of those
// that are not needed any more, and finds out for how long the tables can be left alone
// then. What has to be copied is kept until copyPages.
func (s *Session) reserve(n int) error {
	s.at.quiet = math.MaxInt
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		if s.due(i, n) {
			if err := s.reserveIn(i, n); err != nil {
				return err
			}
		}
		s.at.quiet = min(s.at.quiet, s.quietFor[i])
	}
	return nil
}

// reserveIn is reserve for one table.
func (s *Session) reserveIn(i, n int) error {
	t, p := s.tables[i], s.e.pools[i]
	s.e.changed = append(s.e.changed, tableOf{s, i})
	if err := s.recycleIn(i); err != nil {
		return err
	}
	last := max(t.Entries()-1, 0)
	copies, err := t.Append((s.at.length+n)/p.ratio - t.Len())
	if err != nil {
		return err
	}
	for _, c := range copies {
		// The other holder may go, and its page must stay until it is copied.
		if err := p.ids.Retain(c.From); err != nil {
			return err
		}
		s.e.copies = append(s.e.copies, pendingCopy{i, c})
		s.synced[i] = min(s.synced[i], last)
	}
	s.quietFor[i] = (t.Len()+t.Room()+1)*p.ratio - 1
	if p.keep > 0 { // until there are two pages to give back: one goes when the next is taken
		gone := max(0, s.lowest()-p.keep) / p.page
		s.quietFor[i] = min(s.quietFor[i], (gone+2)*p.page+p.keep+s.e.opts.Rewind-1)
	}
	return nil
}

// lowest is the shortest length that the session can be truncated to, besides 0. It is
// kept in floor, to be found out while the session has its greatest length.
func (s *Session) lowest() int {
	s.floor = max(s.floor, s.at.length-s.e.opts.Rewind)
	return s.floor
}

// recycle lets go of pages that are not needed any more.
func (s *Session) recycle() error {
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		if err := s.recycleIn(i); err != nil {
			return err
		}
	}
	return nil
}

// recycleIn is recycle for one table.
func (s *Session) recycleIn(i int) error {
	if p := s.e.pools[i]; p.keep > 0 {
		return s.tables[i].Recycle(max(0, s.lowest()-p.keep))
	}
	return nil
}

// wake makes the next step look at the tables.
func (s *Session) wake() {
	s.at.quiet, s.quietFor = 0, [poolCount]int{}
	s.e.changed = s.e.changed[:0] // which finds out itself what changed
}

// settle tells the tables of all tokens, before they are shared or cut, and lets go of
// pages that are not needed any more.
func (s *Session) settle() error {
	s.wake()
	err := s.reserve(0)
	s.wake()
	return err
}

// Advance lengthens the session by n tokens that no layer has seen: it takes their pages
// as they are, whatever they hold. It serves measurements at a length (see
// Engine.Caches), and callers that write the pages themselves. It waits while a step of
// other sessions is in progress.
//
// Errors: vk.ErrArgument for a negative n; ErrSequenceFull, cache.ErrPoolFull,
// ErrInStep; the context's; vk.ErrClosed, vk.ErrDeviceLost. Then the session may have
// got part of the tokens.
func (s *Session) Advance(ctx context.Context, n int) error {
	e := s.e
	e.mu.Lock()
	err := s.free() // in a step of its own it would wait for ever
	e.mu.Unlock()
	if err == nil {
		err = e.enter(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opAdvance, err)
	}
	defer e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	err = s.free()
	switch {
	case err != nil:
	case n < 0:
		return &vk.ArgumentError{Op: opAdvance, Arg: "n", Got: fmt.Sprint(n), Want: "at least 0"}
	case n > e.opts.MaxTokens-s.at.length:
		err = fmt.Errorf("%w: %d tokens and %d more, of at most %d", ErrSequenceFull, s.at.length, n, e.opts.MaxTokens)
	}
	for n > 0 && err == nil {
		part := min(n, e.opts.MaxStep)
		var pages [poolCount]int
		s.need(part, &pages)
		if err = e.ensure(ctx, pages); err != nil {
			break
		}
		if err = s.reserve(part); err != nil {
			break
		}
		s.at.length += part
		if err = s.recycle(); err == nil {
			n -= part
		}
	}
	s.wake() // the device has no entry yet
	if err == nil {
		err = e.copyPages(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opAdvance, e.note(err))
	}
	return nil
}
