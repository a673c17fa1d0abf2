package ranks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

const (
	opBegin  = "ranks: begin step"
	opSet    = "ranks: set input"
	opRun    = "ranks: run layer"
	opCommit = "ranks: commit step"
	opRead   = "ranks: read output"
)

// Chunk is the part of a step that belongs to one session: its next Tokens tokens, or a block of
// drafts, as in pipeline.Chunk.
type Chunk struct {
	Session *Session
	Tokens  int
	Draft   bool
}

// Step is new tokens of some sessions on their way through the layers of all ranks. It ends with
// Commit, Abort, or an error of RunLayer that is no vk.ErrArgument.
type Step struct {
	e      *Engine
	steps  []*pipeline.Step // of each rank
	chunks []Chunk

	mu    sync.Mutex // held while hidden states are copied, so that the step does not end meanwhile
	taken bool       // the sessions are this step's
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
	st := &Step{e: e, chunks: slices.Clone(chunks)}
	own := make([]pipeline.Chunk, len(chunks))
	for rank, x := range e.ranks { // in one order, so that no two steps wait for each other
		for i, c := range chunks {
			own[i] = pipeline.Chunk{Session: c.Session.on[rank], Tokens: c.Tokens, Draft: c.Draft}
		}
		begun, err := x.Begin(ctx, own...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: rank %d: %w", opBegin, rank, err), st.Abort())
		}
		if st.steps = append(st.steps, begun); rank == 0 { // no other step has them
			st.pin()
		}
	}
	return st, nil
}

// pin keeps the chunks' sessions from being changed, once nobody changes them.
func (st *Step) pin() {
	for _, c := range st.chunks {
		c.Session.mu.Lock()
		c.Session.steps++
		c.Session.mu.Unlock()
	}
	st.taken = true
}

// free lets the sessions be changed, unless another step has them.
func (st *Step) free() {
	if !st.taken {
		return
	}
	st.taken = false
	for _, c := range st.chunks {
		c.Session.mu.Lock()
		c.Session.steps--
		c.Session.mu.Unlock()
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
	return st.set(layer, chunk, len(values), func(from, end int, to [][]uint16) {
		var bits [block]uint16
		for ; from < end; from += block {
			some := numfmt.BF16EncodeSlice(bits[:], values[from:min(end, from+block)])
			for _, rank := range to {
				copy(rank[from:], some)
			}
		}
	})
}

// SetInputBF16 is SetInput for the bits of bf16.
func (st *Step) SetInputBF16(layer, chunk int, values []uint16) error {
	return st.set(layer, chunk, len(values), func(from, end int, to [][]uint16) {
		for _, rank := range to {
			copy(rank[from:end], values[from:end])
		}
	})
}

// set has n values written to the inputs of all ranks.
func (st *Step) set(layer, chunk, n int, write func(from, end int, to [][]uint16)) error {
	if err := st.usable(opSet); err != nil {
		return err
	}
	if want, ok := st.values(chunk); ok && n != want {
		return badArgument(opSet, "values", n, "%d", want)
	}
	defer st.copying()()
	to := make([][]uint16, len(st.steps))
	for i, x := range st.steps {
		var err error
		if to[i], err = x.HostInput(layer, chunk); err != nil {
			return fmt.Errorf("%s: rank %d: %w", opSet, i, err)
		}
	}
	inPieces(n, func(from, end int) { write(from, end, to) })
	return nil
}

// values is how many numbers the hidden states of a chunk have; false for an unknown one.
func (st *Step) values(chunk int) (n int, ok bool) {
	if chunk < 0 || chunk >= len(st.chunks) {
		return 0, false
	}
	return st.chunks[chunk].Tokens * st.e.cfg.Hidden, true
}

// copying keeps the step, and the memory of the engines, until the function that it returns is
// called.
func (st *Step) copying() (done func()) {
	st.e.copies.RLock()
	st.mu.Lock()
	return func() {
		st.mu.Unlock()
		st.e.copies.RUnlock()
	}
}

// block is how many values pass between formats at a time, in a processor's nearest cache.
const block = 1024

// leastPiece is how many values are worth a goroutine of their own.
const leastPiece = 1 << 15

// inPieces divides n values among the processors.
func inPieces(n int, f func(from, end int)) {
	piece := max(leastPiece, (n+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	if n <= piece {
		f(0, n)
		return
	}
	var group sync.WaitGroup
	for from := 0; from < n; from += piece {
		group.Go(func() { f(from, min(n, from+piece)) })
	}
	group.Wait()
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
	return st.read(layer, chunk, len(values), func(from int, sum []float32) {
		var bits [block]uint16
		numfmt.BF16DecodeSlice(values[from:], numfmt.BF16EncodeSlice(bits[:], sum))
	})
}

// ReadOutputBF16 is ReadOutput for the bits of bf16.
func (st *Step) ReadOutputBF16(layer, chunk int, values []uint16) error {
	return st.read(layer, chunk, len(values), func(from int, sum []float32) { numfmt.BF16EncodeSlice(values[from:], sum) })
}

// read adds up what the ranks give, and hands it on in blocks.
func (st *Step) read(layer, chunk, n int, use func(from int, sum []float32)) error {
	if err := st.usable(opRead); err != nil {
		return err
	}
	if want, ok := st.values(chunk); ok && n != want {
		return badArgument(opRead, "values", n, "%d", want)
	}
	defer st.copying()()
	parts := st.e.borrow(n)
	defer st.e.spare.Put(parts)
	err := all(len(st.steps), func(i int) error { return st.steps[i].ReadOutput(layer, chunk, (*parts)[i]) })
	if err != nil {
		return fmt.Errorf("%s: %w", opRead, err)
	}
	inPieces(n, func(from, end int) {
		for ; from < end; from += block {
			use(from, sum(*parts, from, min(end, from+block)))
		}
	})
	return nil
}

// borrow returns n values for each rank.
func (e *Engine) borrow(n int) *[][]float32 {
	parts, _ := e.spare.Get().(*[][]float32)
	if parts == nil {
		parts = &[][]float32{}
		*parts = make([][]float32, len(e.ranks))
	}
	for i, part := range *parts {
		if cap(part) < n {
			part = make([]float32, n)
		}
		(*parts)[i] = part[:n]
	}
	return parts
}

// sum adds the values from to end-1 of all parts, in their order, to those of the first.
func sum(parts [][]float32, from, end int) []float32 {
	sum := parts[0][from:end]
	for _, part := range parts[1:] {
		part = part[from:end]
		for i := range sum {
			sum[i] += part[i]
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
	st.mu.Lock()
	defer st.mu.Unlock()
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
	st.mu.Lock() // nobody copies
	defer st.mu.Unlock()
	for _, x := range st.steps {
		err = errors.Join(err, x.Abort())
	}
	st.free()
	return err
}
