package replicas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

const (
	opFork     = "replicas: fork session"
	opTruncate = "replicas: truncate session"
	opClose    = "replicas: close session"
	opSave     = "replicas: save session"
	opRestore  = "replicas: restore session"
	opKeep     = "replicas: keep session"
)

// Session is a sequence of tokens on one of the replicas.
type Session struct {
	g      *Group
	number uint64        // in the order of opening
	lock   chan struct{} // holds a value while a step, or what changes the session, is in progress

	// With Group.mu; at and s are also stable for whoever holds lock.
	at     int // replica
	s      *pipeline.Session
	tokens []int32 // elements are never overwritten, so that others may share them
	floor  int     // the fewest tokens, besides 0, that a fork can be truncated to, if Options.Rewind is right
	moving bool
	closed bool
}

// add makes a session of a replica's.
func (g *Group) add(replica int, s *pipeline.Session, tokens []int32, floor int) *Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	x := &Session{g: g, number: g.opened, lock: make(chan struct{}, 1), at: replica, s: s, tokens: slices.Clip(tokens), floor: floor}
	g.opened++
	g.sessions[x] = true
	return x
}

// usable reports why nothing can be done with a session; g.mu is held.
func (s *Session) usable() error {
	switch {
	case s.closed:
		return fmt.Errorf("session %w", vk.ErrClosed)
	case s.moving:
		return pipeline.ErrInStep
	}
	return nil
}

// known demands a session that a group made.
func (s *Session) known(op string) error {
	if s == nil || s.g == nil {
		return badArgument(op, "session", "nil", "one that Group.Open, Group.Restore or Session.Fork made")
	}
	return nil
}

// try takes the session's lock unless it is taken. It returns what is on the replica.
func (s *Session) try(op string) (*pipeline.Session, error) {
	if err := s.known(op); err != nil {
		return nil, err
	}
	select {
	case s.lock <- struct{}{}:
	default:
		return nil, fmt.Errorf("%s: %w", op, pipeline.ErrInStep)
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	if err := s.usable(); err != nil {
		s.unlock()
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return s.s, nil
}

// take waits for the session's lock.
func (s *Session) take(ctx context.Context) error {
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session) unlock() { <-s.lock }

// Len returns the number of tokens; 0 once closed, or on a lost device.
func (s *Session) Len() int {
	if s == nil || s.g == nil {
		return 0
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.s.Len()
}

// Tokens returns the tokens that the session has, or had before it was closed or its device was
// lost. The caller does not change them.
func (s *Session) Tokens() []int32 {
	if s == nil || s.g == nil {
		return nil
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return slices.Clip(s.tokens)
}

// Replica is the number of the replica that the session is on; Session.Move changes it.
func (s *Session) Replica() int {
	if s == nil || s.g == nil {
		return 0
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.at
}

// Err says why the session cannot be used: it is closed, or its device is lost.
func (s *Session) Err() error {
	if err := s.known("replicas: session"); err != nil {
		return err
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	if s.closed {
		return fmt.Errorf("session %w", vk.ErrClosed)
	}
	return s.g.lost(s.at)
}

// Fork makes a session with the same tokens on the same replica, in the same pages, which are
// copied when one of the two writes to them.
//
// Errors: pipeline.ErrInStep while a step has the session, or it moves; those of
// pipeline.Session.Fork.
func (s *Session) Fork() (*Session, error) {
	on, err := s.try(opFork)
	if err != nil {
		return nil, err
	}
	defer s.unlock()
	f, err := on.Fork()
	if err != nil {
		return nil, err
	}
	s.g.mu.Lock()
	tokens, floor := s.tokens, s.floor
	s.g.mu.Unlock()
	return s.g.add(s.at, f, tokens, floor), nil
}

// Truncate forgets the tokens from n on. Errors: pipeline.ErrInStep, as of Fork; those of
// pipeline.Session.Truncate.
func (s *Session) Truncate(n int) error {
	on, err := s.try(opTruncate)
	if err != nil {
		return err
	}
	defer s.unlock()
	if err := on.Truncate(n); err != nil {
		return err
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	if s.tokens = slices.Clip(s.tokens[:n]); n == 0 {
		s.floor = 0
	}
	return nil
}

// Close gives the session's pages back. Closing again does nothing.
// The error is pipeline.ErrInStep, as of Fork.
func (s *Session) Close() error {
	if s == nil || s.g == nil {
		return nil
	}
	on, err := s.try(opClose)
	if errors.Is(err, vk.ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.unlock()
	err = on.Close()
	if errors.Is(err, pipeline.ErrInStep) {
		return err
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.closed = true
	delete(s.g.sessions, s)
	return err
}

// Save writes the session to w, for Group.Restore or pipeline.Engine.Restore: see
// pipeline.Session.Save, whose errors it has. Steps of the session may begin meanwhile. The tokens
// are not in it: see Session.Tokens.
func (s *Session) Save(ctx context.Context, w io.Writer) error {
	if err := s.known(opSave); err != nil {
		return err
	}
	s.g.mu.Lock()
	on := s.s
	s.g.mu.Unlock()
	return on.Save(ctx, w)
}

// Keep stores what the session has in Options.Store, for Open on all replicas and other programs.
// tokens are the prompt, those of the session or one more: see prefix.Keeper.Keep, whose errors it
// has.
//
// Errors: also vk.ErrArgument without a store.
func (s *Session) Keep(ctx context.Context, tokens []int32) error {
	err := s.known(opKeep)
	if err == nil {
		err = s.g.usable(ctx)
	}
	if err == nil && s.g.keepers == nil {
		err = badArgument(opKeep, "Options.Store", "nil", "a store")
	}
	if err != nil {
		return err
	}
	s.g.mu.Lock()
	on, at := s.s, s.at
	s.g.mu.Unlock()
	return s.g.keepers[at].Keep(ctx, on, tokens)
}

// Restore makes a session of what Session.Save wrote, on the replica with the most room. tokens are
// those of the session.
//
// Errors: vk.ErrArgument for a nil r, or another number of tokens than the snapshot has; those of
// pipeline.Engine.Restore, of the last replica that was tried; those of the devices if none is
// left.
func (g *Group) Restore(ctx context.Context, tokens []int32, r io.ReadSeeker) (*Session, error) {
	err := g.usable(ctx)
	if err == nil && r == nil {
		err = badArgument(opRestore, "r", "nil", "a reader")
	}
	if err != nil {
		return nil, err
	}
	start, err := r.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	replica, on, err := g.first(func(i int) (*pipeline.Session, error) {
		if _, err := r.Seek(start, io.SeekStart); err != nil {
			return nil, err
		}
		return g.replicas[i].Engine.Restore(ctx, r)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	if n := on.Len(); n != len(tokens) {
		return nil, errors.Join(badArgument(opRestore, "tokens", len(tokens), "the snapshot's %d", n), on.Close())
	}
	return g.add(replica, on, slices.Clone(tokens), max(0, len(tokens)-g.o.Rewind)), nil
}
