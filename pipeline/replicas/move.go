package replicas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
)

const (
	opMove    = "replicas: move session"
	opRelieve = "replicas: relieve a replica"
)

// Move takes the session to another replica, by a snapshot that passes through host memory. Its
// tokens give the same bits there. It holds its pages on the old replica until it has all of them
// on the new one. Meanwhile steps of other sessions go on; those of this one, and Truncate, Fork
// and Close, get pipeline.ErrInStep. Moving to where it is does nothing.
//
// Errors: vk.ErrArgument for an unknown replica; pipeline.ErrInStep while a step has the session;
// those of pipeline.Session.Save and pipeline.Engine.Restore. After an error the session is where
// it was.
func (s *Session) Move(ctx context.Context, replica int) error {
	err := s.known(opMove)
	if err == nil {
		err = s.g.usable(ctx)
	}
	if err == nil && (replica < 0 || replica >= len(s.g.replicas)) {
		err = badArgument(opMove, "replica", replica, "0 to %d", len(s.g.replicas)-1)
	}
	if err != nil {
		return err
	}
	on, err := s.try(opMove)
	if err != nil {
		return err
	}
	defer s.unlock()
	if replica == s.at {
		return nil
	}
	s.setMoving(true)
	defer s.setMoving(false)
	moved, err := hand(ctx, on, s.g.replicas[replica].Engine)
	if err != nil {
		return fmt.Errorf("%s: %w", opMove, err)
	}
	s.g.mu.Lock()
	s.s, s.at = moved, replica
	s.g.mu.Unlock()
	if err := on.Close(); err != nil {
		return fmt.Errorf("%s: leave the old replica: %w", opMove, err)
	}
	return nil
}

func (s *Session) setMoving(yes bool) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.moving = yes
}

// hand restores a session in another engine while it is saved.
func hand(ctx context.Context, s *pipeline.Session, to *pipeline.Engine) (*pipeline.Session, error) {
	r, w := io.Pipe()
	saved := make(chan error, 1)
	go func() {
		err := s.Save(ctx, w)
		_ = w.CloseWithError(err) // which the reader gets; nil: the end
		saved <- err
	}()
	moved, err := to.Restore(ctx, r)
	_ = r.CloseWithError(cmp.Or(err, io.ErrClosedPipe)) // so that Save ends
	if saving := <-saved; saving != nil && err != nil && !errors.Is(err, saving) && !errors.Is(saving, err) {
		err = errors.Join(err, saving)
	}
	return moved, err
}

// Relieve moves a session away from a replica, for instance after cache.ErrPoolFull: the one with
// the most tokens that no step has, to the replica with the most free memory for each session that
// can take it. It returns the session.
//
// Errors: vk.ErrArgument for an unknown replica; cache.ErrPoolFull if no session can be moved:
// other replicas have no room, or are lost, or steps have all sessions; the context's;
// those of Session.Move that say nothing of room.
func (g *Group) Relieve(ctx context.Context, replica int) (*Session, error) {
	if err := g.usable(ctx); err != nil {
		return nil, err
	}
	if replica < 0 || replica >= len(g.replicas) {
		return nil, badArgument(opRelieve, "replica", replica, "0 to %d", len(g.replicas)-1)
	}
	var last error
	for _, s := range g.longest(replica) {
		for _, to := range g.roomiest(g.Loads()) {
			if to == replica {
				continue
			}
			err := s.Move(ctx, to)
			if err == nil {
				return s, nil
			}
			if !elsewhere(err) && !errors.Is(err, pipeline.ErrInStep) {
				return nil, fmt.Errorf("%s: %w", opRelieve, err)
			}
			last = err
		}
	}
	err := fmt.Errorf("%s: %w: no session of replica %d can be moved", opRelieve, cache.ErrPoolFull, replica)
	return nil, errors.Join(err, last)
}

// longest lists the sessions of a replica, the longest first.
func (g *Group) longest(replica int) (list []*Session) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sessions {
		if s.at == replica {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *Session) int {
		return cmp.Or(len(b.tokens)-len(a.tokens), cmp.Compare(a.number, b.number))
	})
	return list
}
