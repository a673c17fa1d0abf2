package replicas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
)

const opStep = "replicas: step"

// Chunk is the next tokens of a session, or a block of drafts, as in pipeline.Chunk.
type Chunk struct {
	Session *Session
	Tokens  []int32
	Draft   bool
}

// Part is the part of a step that belongs to one replica.
type Part struct {
	Replica int
	Step    *pipeline.Step
	Chunks  []int // which of Group.Step's chunks the step's are, in their order
}

// StepError says on which replicas a step failed. Their sessions are as they were before it; those
// of the other replicas have their tokens.
type StepError struct{ Failed []Failure }

// Failure is why a replica's part of a step failed.
type Failure struct {
	Replica int
	Chunks  []int // of Group.Step's
	Err     error
}

func (e *StepError) Error() string {
	if e == nil || len(e.Failed) == 0 {
		return opStep
	}
	var list []string
	for _, f := range e.Failed {
		list = append(list, fmt.Sprintf("replica %d: %v", f.Replica, f.Err))
	}
	return opStep + ": " + strings.Join(list, "; ")
}

// Unwrap returns the errors of all parts.
func (e *StepError) Unwrap() (list []error) {
	if e == nil {
		return nil
	}
	for _, f := range e.Failed {
		list = append(list, f.Err)
	}
	return list
}

// Step takes the next tokens of sessions through the layers. The chunks of each replica become a
// step of its engine (pipeline.Engine.Begin), and all of these run side by side. run takes one
// through the layers: it sets inputs, runs layers and reads outputs; it is called in a goroutine
// for each replica. When it returns nil, the step is committed, otherwise aborted.
// While it runs, other calls of Step may take other sessions.
//
// Errors: vk.ErrArgument for a nil run, no chunks, one without tokens, a session of another group
// or twice, or drafts beside other tokens, before anything has begun; vk.ErrClosed;
// pipeline.ErrInStep for a session that moves; the context's while it waits for sessions that are
// in another step.
// All others are in a *StepError: those of run, of pipeline.Engine.Begin and of
// pipeline.Step.Commit. Of a replica that is full (cache.ErrPoolFull) Group.Relieve takes a session
// away; those of one that is lost (vk.ErrDeviceLost) have to be opened again.
func (g *Group) Step(ctx context.Context, run func(ctx context.Context, p Part) error, chunks ...Chunk) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if run == nil {
		return badArgument(opStep, "run", "nil", "a function")
	}
	locked, err := g.lockAll(ctx, chunks)
	defer func() {
		for _, s := range locked {
			s.unlock()
		}
	}()
	if err != nil {
		return err
	}
	parts := make([][]int, len(g.replicas))
	for i, c := range chunks {
		parts[c.Session.at] = append(parts[c.Session.at], i) // stable: it is locked
	}
	failed := make([]error, len(g.replicas))
	var group sync.WaitGroup
	for replica, list := range parts {
		if len(list) > 0 {
			group.Go(func() { failed[replica] = g.part(ctx, run, replica, list, chunks) })
		}
	}
	group.Wait()
	e := &StepError{}
	for replica, err := range failed {
		if err != nil {
			e.Failed = append(e.Failed, Failure{replica, parts[replica], err})
		}
	}
	if len(e.Failed) > 0 {
		return e
	}
	return nil
}

// lockAll takes the locks of the chunks' sessions, in the order in which they were opened, so that
// no two steps wait for each other. It returns those that it took.
func (g *Group) lockAll(ctx context.Context, chunks []Chunk) (locked []*Session, err error) {
	if len(chunks) == 0 {
		return nil, badArgument(opStep, "chunks", "none", "at least one")
	}
	seen := map[*Session]bool{}
	for i, c := range chunks {
		bad := func(got any, want string) error {
			return badArgument(opStep, fmt.Sprintf("chunks[%d]", i), got, "%s", want)
		}
		switch s := c.Session; {
		case s == nil || s.g != g:
			return nil, bad("a session of another group, or none", "one of this group")
		case len(c.Tokens) == 0:
			return nil, bad("no tokens", "at least one")
		case seen[s]:
			return nil, bad("a session twice", "each once")
		case c.Draft != chunks[0].Draft:
			return nil, badArgument(opStep, fmt.Sprintf("chunks[%d].Draft", i), c.Draft, "%v, as in chunks[0]", !c.Draft)
		}
		seen[c.Session] = true
	}
	order := slices.Clone(chunks)
	slices.SortFunc(order, func(a, b Chunk) int { return cmp.Compare(a.Session.number, b.Session.number) })
	for _, c := range order {
		if err := g.ready(c.Session); err != nil { // who moves has the lock for long
			return locked, err
		}
		if err := c.Session.take(ctx); err != nil {
			return locked, fmt.Errorf("%s: %w", opStep, err)
		}
		locked = append(locked, c.Session)
		if err := g.ready(c.Session); err != nil {
			return locked, err
		}
	}
	return locked, nil
}

// ready reports why a session cannot be in a step.
func (g *Group) ready(s *Session) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := s.usable(); err != nil {
		return fmt.Errorf("%s: %w", opStep, err)
	}
	return nil
}

// part runs a replica's part.
func (g *Group) part(ctx context.Context, run func(context.Context, Part) error, replica int, list []int, chunks []Chunk) error {
	own := make([]pipeline.Chunk, len(list))
	for i, k := range list {
		own[i] = pipeline.Chunk{Session: chunks[k].Session.s, Tokens: len(chunks[k].Tokens), Draft: chunks[k].Draft}
	}
	st, err := g.replicas[replica].Engine.Begin(ctx, own...)
	if err != nil {
		return err
	}
	if err := run(ctx, Part{replica, st, list}); err != nil {
		return errors.Join(err, st.Abort())
	}
	if err := st.Commit(); err != nil {
		return errors.Join(err, st.Abort())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range list {
		s := chunks[k].Session
		if chunks[k].Draft {
			continue
		}
		s.tokens = append(s.tokens, chunks[k].Tokens...)
		s.floor = max(s.floor, len(s.tokens)-g.o.Rewind)
	}
	return nil
}
