package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/commands"
)

const opWarm = "pipeline: warm"

// Warm takes steps of every size, of hidden sessions of its own, until what they take is allocated,
// compiled, recorded and measured, with inputs on the device and from host memory, and with the
// tables of positions at their full length. It waits while another step is in progress. No step
// compiles anything from then on. None records its commands again either, unless caches grow
// (EngineOptions.CacheBytes), SetTiming asks for it, or a step has much more to do than these, so
// that a submission might take too long (Step.Submit).
//
// What EngineOptions.Between records runs, too, on what its memory holds by then. Hidden states
// may hold anything. Warm needs as many sessions as MaxStep tokens take, and pages for them, and
// goes on where it was after an error.
//
// Errors: ErrTooManySessions; those of Prepare and of Step.Wait.
func (e *Engine) Warm(ctx context.Context) error {
	err := e.betweenSteps(ctx, func() error {
		if err := e.growRopes(ctx, e.opts.MaxTokens); err != nil {
			return err
		}
		return e.sizes.Build(ctx)
	})
	if err == nil {
		err = e.warm(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opWarm, err)
	}
	return nil
}

func (e *Engine) warm(ctx context.Context) (err error) {
	var sessions []*Session
	defer func() {
		for _, s := range sessions {
			err = errors.Join(err, s.Close())
		}
	}()
	for range ceilDiv(e.opts.MaxStep, e.opts.MaxTokens) {
		s, err := e.Open()
		if err != nil {
			return err
		}
		sessions = append(sessions, s)
	}
	// The largest first: if caches have to grow, nothing has been recorded yet.
	for _, size := range slices.Backward(e.sizes.List()) {
		var chunks []Chunk
		n := size
		for _, s := range sessions {
			if m := min(n, e.opts.MaxTokens); m > 0 {
				chunks = append(chunks, Chunk{Session: s, Tokens: m})
				n -= m
			}
		}
		for _, draft := range e.draftsOrNot(size) {
			for i := range chunks { // blocks of any length serve
				chunks[i].Draft = draft
			}
			if err := e.warmSize(ctx, chunks); err != nil {
				return err
			}
		}
	}
	return nil
}

// mostRuns is the most steps of a size that Warm runs: once to measure operations, once to see that
// submissions stay within their budget, and again for those that do not.
const mostRuns = 6

// warmSize runs steps of a size with any number of pieces.
func (e *Engine) warmSize(ctx context.Context, chunks []Chunk) error {
	for _, host := range []bool{false, true} {
		for pieces, most := 1, 1; pieces <= most; pieces *= 2 {
			for run, done := 0, false; !done && run < mostRuns; run++ {
				var err error
				if most, done, err = e.warmStep(ctx, chunks, host, pieces); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// warmStep runs a step and gives it up. It returns the most pieces of steps of its size, and
// whether such a step would now take the commands as they are.
func (e *Engine) warmStep(ctx context.Context, chunks []Chunk, host bool, pieces int) (most int, done bool, err error) {
	st, err := e.begin(ctx, chunks, true)
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, st.Abort()) }()
	keys, most, err := st.pose(host, pieces)
	for _, key := range keys {
		if err == nil {
			err = st.submit(key.Layer, nil)
		}
	}
	if err == nil {
		err = st.Wait(ctx)
	}
	if err != nil {
		return most, false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return most, !slices.ContainsFunc(keys, func(k commands.Key) bool {
		c := st.b.Recorded[k]
		return c == nil || !e.sizes.Suits(c, st.work)
	}), nil
}

// pose gives a step inputs that were never written, and rows gathered in at least `pieces` pieces.
// It returns the commands to submit, and the most pieces of such a step.
func (st *Step) pose(host bool, pieces int) (keys []commands.Key, most int, err error) {
	e := st.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if err = st.active(); err != nil {
		return nil, 0, err
	}
	st.reuses, st.host = true, host
	if host {
		if err = st.b.OpenHost(); err != nil {
			return nil, 0, e.note(err)
		}
		for i := range st.e.now.set {
			st.e.now.set[i] = true
		}
	}
	most = 1
	if st.pieces > 0 {
		most = st.b.WorstPieces()
		st.pieces = max(st.pieces, pieces)
		st.b.Pad(st.pieces)
	}
	if !e.opts.LayerByLayer {
		return []commands.Key{st.key(commands.Whole)}, most, nil
	}
	for i := st.first; i < len(e.layers); i++ {
		keys = append(keys, st.key(i))
	}
	return keys, most, nil
}
