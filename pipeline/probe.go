package pipeline

import (
	"context"
	"fmt"
	"time"

	probe "github.com/vkmla/vkmla/internal/probe/engine"
)

const opAdvance = "pipeline: advance session"

func init() {
	probe.CachesOf = func(e any, layer int) probe.Caches { return e.(*Engine).cachesOf(layer) }
	probe.SetBudget = func(e any, d time.Duration) { e.(*Engine).setBudget(d) }
	probe.Advance = func(ctx context.Context, s any, n int) error { return s.(*Session).advanceBy(ctx, n) }
	probe.ReuseInputs = func(st any) error { return st.(*Step).reuseInputs() }
}

func (e *Engine) cachesOf(number int) probe.Caches {
	e.mu.Lock()
	defer e.mu.Unlock()
	if number < 0 || number >= len(e.layers) {
		return probe.Caches{}
	}
	return probe.Caches(e.pages.Caches(number))
}

func (e *Engine) setBudget(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sizes.Budget = d
}

func (st *Step) reuseInputs() error {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	if err := st.active(); err != nil {
		return fmt.Errorf("%s: %w", opInput, err)
	}
	st.reuses = true
	return nil
}

func (s *Session) advanceBy(ctx context.Context, n int) error {
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

// advance is advanceBy between steps.
func (s *Session) advance(ctx context.Context, n int) error {
	e, from := s.e, s.seq.Seat.Length
	switch err := s.free(); {
	case err != nil:
		return err
	case n < 0:
		return badArgument(opAdvance, "n", n, "at least 0")
	case n > e.opts.MaxTokens-from:
		return fmt.Errorf("%w: %d tokens and %d more, of at most %d", ErrSequenceFull, from, n, e.opts.MaxTokens)
	}
	e.now.bySeat[s.seq.Number] = 0 // it cannot be changed meanwhile
	defer e.now.clearSeats()
	return s.seq.Advance(ctx, n)
}
