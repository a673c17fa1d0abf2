package ranks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

const (
	opBegin  = "ranks: begin step"
	opRun    = "ranks: run layer"
	opCommit = "ranks: commit step"
	opRead   = "ranks: read output"
)

// Chunk is the part of a step that belongs to one session: its next Tokens tokens.
type Chunk struct {
	Session *Session
	Tokens  int
}

// Step is new tokens of some sessions on their way through the layers of all ranks. It ends with
// Commit, Abort, or an error of RunLayer that is no vk.ErrArgument.
type Step struct {
	e        *Engine
	steps    []*pipeline.Step // of each rank
	sessions []*Session       // whose step this is

	mu      sync.Mutex
	scratch [][]float32 // of ReadOutput, for each rank
}

// Begin begins a step on all ranks, or none. It waits while another step is in progress. Errors:
// those of pipeline.Engine.Begin; vk.ErrArgument for a session of another engine.
func (e *Engine) Begin(ctx context.Context, chunks ...Chunk) (*Step, error) {
	if err := e.usable(opBegin); err != nil {
		return nil, err
	}
	for i, c := range chunks {
		if c.Session == nil || c.Session.e != e {
			return nil, badArgument(opBegin, fmt.Sprintf("chunks[%d]", i), "a session of another engine, or none", "one of this engine")
		}
	}
	st := &Step{e: e, scratch: make([][]float32, len(e.ranks))}
	own := make([]pipeline.Chunk, len(chunks))
	for rank, x := range e.ranks { // in one order, so that no two steps wait for each other
		for i, c := range chunks {
			own[i] = pipeline.Chunk{Session: c.Session.on[rank], Tokens: c.Tokens}
		}
		begun, err := x.Begin(ctx, own...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: rank %d: %w", opBegin, rank, err), st.Abort())
		}
		if st.steps = append(st.steps, begun); rank == 0 { // no other step has them
			st.pin(chunks)
		}
	}
	return st, nil
}

// pin keeps the chunks' sessions from being changed, once nobody changes them.
func (st *Step) pin(chunks []Chunk) {
	for _, c := range chunks {
		c.Session.mu.Lock()
		c.Session.step = st
		c.Session.mu.Unlock()
		st.sessions = append(st.sessions, c.Session)
	}
}

// free lets the sessions be changed, unless the next step has them.
func (st *Step) free() {
	for _, s := range st.sessions {
		s.mu.Lock()
		if s.step == st {
			s.step = nil
		}
		s.mu.Unlock()
	}
}

// usable demands a step that Begin made.
func (st *Step) usable(op string) error {
	if st == nil || len(st.steps) == 0 {
		return badArgument(op, "step", "nil", "one that Engine.Begin returned")
	}
	return nil
}

// SetInput gives a layer the hidden states of a chunk's tokens: values [n, Hidden], rounded to
// bf16.
// Errors: those of pipeline.Step.SetInput.
func (st *Step) SetInput(layer, chunk int, values []float32) error {
	if err := st.usable("ranks: set input"); err != nil {
		return err
	}
	return all(len(st.steps), func(i int) error { return st.steps[i].SetInput(layer, chunk, values) })
}

// RunLayer runs a layer on all ranks, side by side, and waits.
//
// Errors: those of pipeline.Step.RunLayer. After all but vk.ErrArgument the step is aborted.
func (st *Step) RunLayer(ctx context.Context, layer int) error {
	if err := st.usable(opRun); err != nil {
		return err
	}
	if ctx == nil {
		return badArgument(opRun, "ctx", "nil", "a context")
	}
	err := all(len(st.steps), func(i int) error { return st.steps[i].RunLayer(ctx, layer) })
	if err == nil {
		return nil
	}
	if !errors.Is(err, vk.ErrArgument) {
		err = errors.Join(err, st.Abort())
	}
	return fmt.Errorf("%s: %w", opRun, err)
}

// ReadOutput copies a layer's result for a chunk's tokens to values [n, Hidden]: the sum over the
// ranks, rounded to bf16, see the package's comment. It has to be read before the next layer runs.
//
// Errors: those of pipeline.Step.ReadOutput.
func (st *Step) ReadOutput(layer, chunk int, values []float32) error {
	return st.read(layer, chunk, len(values), func(at int, sum []float32) {
		to := values[at:][:len(sum)]
		for i, v := range sum {
			to[i] = numfmt.BF16Round(v)
		}
	})
}

// ReadOutputBF16 is ReadOutput for the bits of bf16.
func (st *Step) ReadOutputBF16(layer, chunk int, values []uint16) error {
	return st.read(layer, chunk, len(values), func(at int, sum []float32) { numfmt.BF16EncodeSlice(values[at:][:len(sum)], sum) })
}

// read adds up what the ranks give, and hands it on in pieces, several at a time.
func (st *Step) read(layer, chunk, n int, use func(at int, sum []float32)) error {
	if err := st.usable(opRead); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	err := all(len(st.steps), func(i int) error {
		if cap(st.scratch[i]) < n {
			st.scratch[i] = make([]float32, n)
		}
		st.scratch[i] = st.scratch[i][:n]
		return st.steps[i].ReadOutput(layer, chunk, st.scratch[i])
	})
	if err != nil {
		return fmt.Errorf("%s: %w", opRead, err)
	}
	var group sync.WaitGroup
	piece := max(leastPiece, (n+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	for at := 0; at < n; at += piece {
		end := min(n, at+piece)
		group.Go(func() { use(at, st.sum(at, end)) })
	}
	group.Wait()
	return nil
}

// leastPiece is how many sums are worth a goroutine of their own.
const leastPiece = 1 << 15

// sum adds the values at to end-1 of all ranks, in their order, to those of the first.
func (st *Step) sum(at, end int) []float32 {
	sum := st.scratch[0][at:end]
	for _, rank := range st.scratch[1:] {
		for i, v := range rank[at:end] {
			sum[i] += v
		}
	}
	return sum
}

// Commit makes the tokens part of their sessions, on all ranks, and ends the step. Errors: those of
// pipeline.Step.Commit.
func (st *Step) Commit() error {
	if err := st.usable(opCommit); err != nil {
		return err
	}
	for i, x := range st.steps { // what the first refuses all do
		if err := x.Commit(); err != nil {
			return fmt.Errorf("%s: rank %d: %w", opCommit, i, err)
		}
	}
	st.free()
	return nil
}

// Abort ends the step and leaves the sessions as they were before it. After Commit, and for a nil
// step, it does nothing.
func (st *Step) Abort() (err error) {
	if st == nil {
		return nil
	}
	for _, x := range st.steps {
		err = errors.Join(err, x.Abort())
	}
	st.free()
	return err
}
