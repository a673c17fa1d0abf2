package pipeline

import (
	"fmt"

	"github.com/vkmla/vkmla/pipeline/internal/pages"
	"github.com/vkmla/vkmla/vk"
)

const (
	opOpenSession = "pipeline: open session"
	opFork        = "pipeline: fork session"
	opTruncate    = "pipeline: truncate session"
	opSession     = "pipeline: close session"
)

// Session is a sequence of tokens of an Engine: which pages hold what the layers keep of
// it. It is cheap; pages come with its tokens.
type Session struct {
	e      *Engine
	seq    *pages.Sequence
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

// open makes a session in a free row.
func (e *Engine) open() (*Session, error) {
	if err := e.usable(); err != nil {
		return nil, err
	}
	return e.session(e.pages.Open())
}

// session makes a session of a new sequence; nil: there is no row for it.
func (e *Engine) session(seq *pages.Sequence) (*Session, error) {
	if seq == nil {
		return nil, fmt.Errorf("%w: %d are open", ErrTooManySessions, len(e.sessions))
	}
	s := &Session{e: e, seq: seq}
	e.sessions[seq.Number] = s
	return s, nil
}

// Len returns the number of tokens, without those of a step in progress; 0 once closed.
func (s *Session) Len() int {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.seq.Seat.Length
}

// Number returns the device's number of the session, see Between: 0 to MaxSessions-1. No two open
// sessions have the same number; a new one may get that of one that was closed.
func (s *Session) Number() int { return s.seq.Number }

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
func (s *Session) inStep() bool { return s.e.now.bySeat[s.seq.Number] >= 0 }

// Fork makes a session with the same tokens in the same pages. Nothing is copied now: a shared page
// is copied when one of the two writes to it.
//
// Errors: ErrTooManySessions, ErrInStep; vk.ErrClosed, vk.ErrDeviceLost.
func (s *Session) Fork() (*Session, error) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	var f *Session
	err := s.free()
	if err == nil {
		f, err = s.e.session(s.seq.Fork())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opFork, err)
	}
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
	if err := s.free(); err != nil {
		return fmt.Errorf("%s: %w", opTruncate, err)
	}
	s.seq.Settle()
	length, floor := s.seq.Seat.Length, s.seq.Floor()
	switch {
	case n < 0 || n > length:
		return badArgument(opTruncate, "n", n, "0 to %d", length)
	case n > 0 && n < floor:
		return fmt.Errorf("%s: %w: to %d of %d tokens, possible are 0 and %d or more", opTruncate, ErrRewind, n, length, floor)
	}
	s.seq.Truncate(n)
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
	s.drop()
	return nil
}

// drop closes the session.
func (s *Session) drop() {
	s.closed, s.e.sessions[s.seq.Number] = true, nil
	s.seq.Close()
}
