package replicas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

const opOpen = "replicas: open session"

// source is an open session that has the first tokens of a prompt.
type source struct {
	s *Session
	n int // how many
}

// Open makes a session that has the first n of a prompt's tokens already, as many as an open
// session or the store has, at most all but the last one. It forks the session that has the most of
// them, or copies them from it where its replica has no room, or more sessions than Options.Lead
// allows. Without such a session the new one goes to the replica with the most free memory for each
// session. While a step has the session that is to be forked, Open waits for its end.
//
// Errors: pipeline.ErrTooManySessions where all replicas have as many as they can; those of
// pipeline.Engine.Open and prefix.Keeper.Open; those of the devices if none is left; the context's;
// vk.ErrArgument.
func (g *Group) Open(ctx context.Context, tokens []int32) (s *Session, n int, err error) {
	if err := g.usable(ctx); err != nil {
		return nil, 0, err
	}
	loads := g.Loads()
	order := g.roomiest(loads)
	if len(order) == 0 {
		return nil, 0, fmt.Errorf("%s: %w", opOpen, none(loads))
	}
	beginning := tokens[:max(0, len(tokens)-1)]
	sources, stored := g.sources(beginning, loads), g.stored(ctx, order[0], tokens)
	for _, from := range sources {
		if from.n < stored {
			break
		}
		if s, err := g.share(ctx, from, loads, order); s != nil || err != nil {
			return s, from.n, err
		}
	}
	at, on, err := g.first(func(i int) (on *pipeline.Session, err error) {
		if stored == 0 {
			return g.replicas[i].Engine.Open()
		}
		on, n, err = g.keepers[i].Open(ctx, tokens)
		return on, err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", opOpen, err)
	}
	return g.add(at, on, slices.Clone(tokens[:n]), n), n, nil
}

// first makes a session on the first replica that has room, the one with the most first.
func (g *Group) first(make func(replica int) (*pipeline.Session, error)) (at int, s *pipeline.Session, err error) {
	loads := g.Loads()
	err = none(loads)
	for _, i := range g.roomiest(loads) {
		if s, err = make(i); err == nil || !elsewhere(err) {
			return i, s, err
		}
	}
	return 0, nil, err
}

// elsewhere reports whether another replica may do what one could not.
func elsewhere(err error) bool {
	return slices.ContainsFunc([]error{pipeline.ErrTooManySessions, cache.ErrPoolFull, vk.ErrDeviceLost, vk.ErrOutOfDeviceMemory},
		func(kind error) bool { return errors.Is(err, kind) })
}

// stored returns the number of a prompt's tokens that the store seems to have.
func (g *Group) stored(ctx context.Context, replica int, tokens []int32) int {
	if g.keepers == nil {
		return 0
	}
	n, err := g.keepers[replica].Find(ctx, tokens)
	if err != nil {
		return 0 // the keeper has counted and logged it
	}
	return n
}

// sources are the open sessions that begin like a prompt, the one with the most of it first, then
// the one whose replica has the most room.
func (g *Group) sources(tokens []int32, loads []Load) []source {
	type open struct {
		source
		at     int
		tokens []int32
		floor  int
	}
	var list []open
	g.mu.Lock()
	for s := range g.sessions {
		if loads[s.at].Err == nil && !s.moving {
			list = append(list, open{source{s: s}, s.at, s.tokens, s.floor})
		}
	}
	g.mu.Unlock()
	for i := range list {
		x := &list[i]
		for x.n < min(len(x.tokens), len(tokens)) && x.tokens[x.n] == tokens[x.n] {
			x.n++
		}
	}
	slices.SortFunc(list, func(a, b open) int {
		return cmp.Or(b.n-a.n, cmp.Compare(loads[b.at].share(), loads[a.at].share()), cmp.Compare(a.s.number, b.s.number))
	})
	var found []source
	for _, x := range list {
		if x.n > 0 && x.n >= x.floor {
			found = append(found, x.source)
		}
	}
	return found
}

// share makes a session of the first tokens of another one, nil if that one has gone too far, or no
// replica has room for a copy.
func (g *Group) share(ctx context.Context, from source, loads []Load, order []int) (*Session, error) {
	if err := from.s.take(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", opOpen, err)
	}
	defer from.s.unlock()
	g.mu.Lock()
	err, on, at, floor := from.s.usable(), from.s.s, from.s.at, from.s.floor
	var tokens []int32
	if len(from.s.tokens) >= from.n && floor <= from.n { // it may have been truncated, or gone on
		tokens = from.s.tokens[:from.n]
	}
	g.mu.Unlock()
	if err != nil || tokens == nil {
		return nil, nil
	}
	fewest := loads[order[0]].Sessions
	for _, i := range order {
		fewest = min(fewest, loads[i].Sessions)
	}
	if g.o.Lead == 0 || loads[at].Sessions < fewest+g.o.Lead {
		f, err := fork(on, from.n)
		switch {
		case err == nil:
			return g.add(at, f, tokens, floor), nil
		case !elsewhere(err):
			return nil, passable(err)
		}
	}
	for _, i := range order {
		if i == at {
			continue
		}
		c, err := g.copyTo(ctx, i, at, on, from.n)
		switch {
		case err == nil:
			return g.add(i, c, tokens, from.n), nil
		case !elsewhere(err):
			return nil, passable(err)
		}
	}
	return nil, nil
}

// passable leaves out errors after which another session may have what one does not.
func passable(err error) error {
	if errors.Is(err, pipeline.ErrRewind) || errors.Is(err, vk.ErrClosed) {
		return nil
	}
	return fmt.Errorf("%s: %w", opOpen, err)
}

// fork makes a session of the first n tokens of another one on its replica.
func fork(from *pipeline.Session, n int) (*pipeline.Session, error) {
	f, err := from.Fork()
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(n); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// copyTo makes a session of the first n tokens of another one on another replica.
func (g *Group) copyTo(ctx context.Context, replica, from int, s *pipeline.Session, n int) (*pipeline.Session, error) {
	at, spans := []int{0, n}, [][]byte(nil)
	err := g.replicas[from].Engine.SaveSpans(ctx, s, at, true, func(_ int, data []byte) error {
		spans = append(spans, data)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return g.replicas[replica].Engine.RestoreSpans(ctx, at, func([]int) ([][]byte, error) { return spans, nil })
}
