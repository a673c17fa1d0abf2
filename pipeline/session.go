package pipeline

import (
	"context"
	"fmt"

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
	row    int // of the block tables
	length int // tokens, without those of a step in progress
	floor  int // the shortest length that it can be truncated to, besides 0
	tables [poolCount]*cache.Table
	synced [poolCount]int // entries of the tables that the device has
	inStep bool
	closed bool
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
		s := &Session{e: e, row: row}
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
	return s.length
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
	if s.inStep {
		return ErrInStep
	}
	return nil
}

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
	f.length, f.floor = s.length, s.floor
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
	if err := s.free(); err != nil {
		return fmt.Errorf("%s: %w", opTruncate, err)
	}
	switch {
	case n < 0 || n > s.length:
		return &vk.ArgumentError{Op: opTruncate, Arg: "n", Got: fmt.Sprint(n), Want: fmt.Sprintf("0 to %d", s.length)}
	case n == 0:
		s.floor = 0
	case n < s.floor:
		return fmt.Errorf("%s: to %d tokens of %d: %w, at least %d or none may stay", opTruncate, n, s.length, ErrRewind, s.floor)
	}
	if err := s.cut(n); err != nil {
		return fmt.Errorf("%s: %w", opTruncate, err)
	}
	s.length = n
	return nil
}

// cut lets go of the pages of tokens from n on.
func (s *Session) cut(n int) error {
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		if err := t.Truncate(n / s.e.pools[i].ratio); err != nil {
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
	if s.inStep {
		return fmt.Errorf("%s: %w", opSession, ErrInStep)
	}
	if err := s.drop(); err != nil {
		return fmt.Errorf("%s: %w", opSession, err)
	}
	return nil
}

func (s *Session) drop() error {
	s.e.sessions[s.row], s.closed, s.length = nil, true, 0
	return s.cut(0)
}

// reserve takes the pages for n more tokens, which ensure has made free. What has to be
// copied is kept until copyPages.
func (s *Session) reserve(n int) error {
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		p := s.e.pools[i]
		last := max(t.Entries()-1, 0)
		copies, err := t.Append((s.length+n)/p.ratio - t.Len())
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
	}
	return nil
}

// keep makes n reserved tokens the session's, and lets go of pages that are not needed
// any more.
func (s *Session) keep(n int) error {
	s.length += n
	s.floor = max(s.floor, s.length-s.e.opts.Rewind)
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		if p := s.e.pools[i]; p.keep > 0 {
			if err := t.Recycle(max(0, s.length-s.e.opts.Rewind-p.keep)); err != nil {
				return err
			}
		}
	}
	return nil
}

// need adds the pages that n more tokens take.
func (s *Session) need(n int, pages *[poolCount]int) {
	for i, t := range s.tables {
		if t != nil {
			pages[i] += t.Need((s.length+n)/s.e.pools[i].ratio - t.Len())
		}
	}
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
	case n > e.opts.MaxTokens-s.length:
		err = fmt.Errorf("%w: %d tokens and %d more, of at most %d", ErrSequenceFull, s.length, n, e.opts.MaxTokens)
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
		if err = s.keep(part); err == nil {
			n -= part
		}
	}
	if err == nil {
		err = e.copyPages(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opAdvance, e.note(err))
	}
	return nil
}
