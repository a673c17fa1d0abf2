package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/vk"
)

const (
	opBegin  = "pipeline: begin step"
	opSubmit = "pipeline: submit step"
	opWait   = "pipeline: wait for step"
	opCommit = "pipeline: commit step"
)

// Chunk is the part of a step that belongs to one session: its next Tokens tokens. One is a
// decode step, a few are speculative decoding, many are a piece of a prefill. Chunks of a step may
// differ.
//
// With Draft they are a block of drafts after the session's tokens, Config.DraftBlock tokens, in
// all chunks of the step. Only layers that draft run (LayerSpec.Block), the step takes pages of
// these alone, and the session stays as it is. In other steps these layers keep rows of what they
// are given, and give nothing; see model.DraftBlock.
type Chunk struct {
	Session *Session
	Tokens  int
	Draft   bool
}

// Step is new tokens of some sessions on their way through the layers. The sessions grow when it
// is committed. A step ends with Commit, Abort, a context that ends while one of its methods
// waits, or a lost device. After that it is closed (vk.ErrClosed), and its tensors belong to the
// next step.
type Step struct {
	e       *Engine
	b       *commands.Size
	tokens  int
	longest int  // greatest length of a session after the step
	draft   bool // its chunks are blocks of drafts
	first   int  // of the layers that run

	// work counts the tokens that the step's tokens see, in all. Between steps of one size the
	// device's time grows by no more than this does.
	work float64

	pieces int // of gathered rows, see commands.Key

	begun     bool                 // the metadata is with the device
	reuses    bool                 // inputs are what an earlier step left, see probe.ReuseInputs
	warms     bool                 // see Engine.Warm
	host      bool                 // inputs come from host memory
	layer     int                  // whose inputs were set last
	latest    int                  // the layer that was submitted last; -1: what it left cannot be read
	flying    *vk.Pending          // the last submission, until Wait
	earlier   []*vk.Pending        // those before it: each may fail by itself
	submitted []*commands.Commands // submitted since the last Wait
	timed     []commands.Key       // submitted, each once
}

// Begin begins a step: it takes the pages for the tokens, copies shared pages that are about to
// be written, and grows the caches if need be. It waits while another step is in progress, so a
// goroutine must end its step before it begins the next.
//
// Errors: vk.ErrArgument for no chunks, a chunk without tokens, a session of another
// engine or twice, more than MaxStep tokens, blocks of drafts of another length, beside other
// tokens or without a layer that drafts; ErrSequenceFull; cache.ErrPoolFull when the caches cannot
// grow; the context's; vk.ErrClosed, vk.ErrDeviceLost; those of vk.Device.NewBuffer. After an error
// nothing has changed.
func (e *Engine) Begin(ctx context.Context, chunks ...Chunk) (*Step, error) {
	return e.begin(ctx, chunks, false)
}

// Size is T, the number of rows of the step's tensors: the tokens of all chunks, padded to the next
// power of two, at most MaxStep.
func (st *Step) Size() int { return st.b.Tokens }

// Rows returns the first row of a chunk's tokens, and the row after its last. Both are 0 for an
// unknown chunk, and once the step has ended.
func (st *Step) Rows(chunk int) (first, end int) {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	now := &st.e.now
	if now.step != st || chunk < 0 || chunk >= len(now.parts) {
		return 0, 0
	}
	x := now.parts[chunk]
	return x.First, x.First + x.N
}

// Run runs all layers and waits. Errors: those of Submit and Wait.
func (st *Step) Run(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%s: %w", opSubmit, alive(ctx))
	}
	if err := st.Submit(); err != nil {
		return err
	}
	return st.Wait(ctx)
}

// RunLayer runs one layer and waits. Errors: those of SubmitLayer and Wait.
func (st *Step) RunLayer(ctx context.Context, layer int) error {
	if ctx == nil {
		return fmt.Errorf("%s: %w", opSubmit, alive(ctx))
	}
	if err := st.SubmitLayer(layer); err != nil {
		return err
	}
	return st.Wait(ctx)
}

// Submit hands all layers to the device, in few submissions, and returns. Each is to take at most
// 200 ms: no watchdog stops it, and other programs get their turn. See Stats.Longest.
//
// With semaphores the layers wait for other devices or APIs, and tell them that all layers are
// done; see vk.Sync. If what is waited for never comes, Wait ends the step with vk.ErrUnsignalled,
// or when its context does: the sessions are as before, and the semaphores have no new values.
//
// Errors: vk.ErrArgument with LayerByLayer, or if inputs are missing (see SetInput and Input);
// vk.ErrBusy if the layers are with the device already; those of vk.Commands.Submit and, for the
// first step of a size, of vk.Device.NewBuffer; those of EngineOptions.Between. After all of these
// the step can be submitted again, once what was missing is there.
func (st *Step) Submit(sync ...vk.Sync) error { return st.submit(commands.Whole, sync) }

// SubmitLayer hands one layer to the device and returns; semaphores are those of the layer. Layers
// may run in any order, but after those that they take entries, picks or candidates from. Each has
// to run before the step is committed.
//
// With EngineOptions.Between, Submit is faster; SubmitLayer lets a program look at what passes
// between layers. The caller's commands in front of a layer are submitted with it, those after the
// last layer with that. Layers then have to run in order, each once; layer 0 begins again.
//
// Errors: vk.ErrArgument for an unknown layer or one out of order; those of Submit.
func (st *Step) SubmitLayer(layer int, sync ...vk.Sync) error {
	if n := len(st.e.layers); layer < st.first || layer >= n {
		return badArgument(opSubmit, "layer", layer, "%d to %d", st.first, n-1)
	}
	return st.submit(layer, sync)
}

// active reports whether the step is in progress; e.mu is held.
func (st *Step) active() error {
	if err := st.e.usable(); err != nil {
		return err
	}
	if st.e.now.step != st {
		return fmt.Errorf("step %w", vk.ErrClosed)
	}
	return nil
}

func (st *Step) submit(layer int, sync []vk.Sync) error {
	e, now := st.e, &st.e.now
	e.mu.Lock()
	defer e.mu.Unlock()
	err := st.active()
	if err == nil && layer == commands.Whole && e.opts.LayerByLayer {
		return badArgument(opSubmit, "LayerByLayer", "all layers", "one by one")
	}
	if err == nil {
		err = st.checkInputs(layer)
	}
	if err == nil {
		err = st.checkOrder(layer)
	}
	if err == nil {
		err = st.checkWritten(layer)
	}
	if err == nil && layer != commands.Whole && !st.begun {
		err = st.submitCommands(commands.Key{Layer: commands.Prologue, Draft: st.draft}, nil)
	}
	if err == nil {
		err = st.submitCommands(st.key(layer), sync)
	}
	if err != nil {
		return wrap(opSubmit, e.note(err))
	}
	first, end := st.layers(layer)
	if e.sizes.Chained() && first == st.first {
		clear(now.ran)
		clear(now.shown)
	}
	st.latest = end - 1
	for i := first; i < end; i++ {
		now.ran[i], now.shown[i] = true, st.host
	}
	return nil
}

// key says which commands run a layer, or the whole step.
func (st *Step) key(layer int) commands.Key {
	return commands.Key{Layer: layer, Host: st.host && !st.e.sizes.MapsHidden(), Pieces: st.pieces, Draft: st.draft}
}

// layers returns the layers that commands for a layer, or for the whole step, run.
func (st *Step) layers(layer int) (first, end int) {
	if layer == commands.Whole {
		return st.first, len(st.e.layers)
	}
	return layer, layer + 1
}

// submitCommands submits commands.
func (st *Step) submitCommands(key commands.Key, sync []vk.Sync) error {
	repaired, err := st.b.Repair()
	if err != nil {
		return err
	}
	c, err := st.b.Commands(key, st.work)
	if err != nil {
		return err
	}
	if repaired != nil {
		st.e.now.flight = repaired
	}
	p, err := c.Submit(st.after(repaired, sync)...)
	if err != nil {
		st.brokeOff(key, err)
		return err
	}
	st.e.now.flight, st.flying, st.submitted = p, p, append(st.submitted, c)
	if !slices.Contains(st.timed, key) {
		st.timed = append(st.timed, key)
	}
	st.begun = st.begun || key.Layer < 0
	return nil
}

// Wait waits for everything submitted. If the context ends first, or the device is lost, the step
// is aborted, for all its sessions. So a server waits with a context of its own, not with that of
// one request. The device may still be busy after an abort: the next step waits for it.
//
// Errors: the context's; vk.ErrUnsignalled, see Submit; vk.ErrDeviceLost, vk.ErrClosed, and
// vk.ErrCancelled where the engine was closed before the device had all of the step.
func (st *Step) Wait(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%s: %w", opWait, alive(ctx))
	}
	e, now := st.e, &st.e.now
	e.mu.Lock()
	defer e.mu.Unlock()
	p, err := st.flying, st.active()
	if err == nil && p != nil {
		began, earlier := time.Now(), slices.Clone(st.earlier)
		err = e.await(func() error { return waitAll(ctx, p, earlier) })
		if !st.warms {
			e.stats.Running += time.Since(began)
		}
	}
	if err != nil {
		e.starved(err)
		if ctx.Err() == nil { // it may have stopped within an operation
			st.b.Break()
		}
		if e.note(err); now.step == st {
			st.end()
		}
		return fmt.Errorf("%s: %w", opWait, err)
	}
	if now.flight == p {
		now.flight = nil
	}
	if st.flying == p {
		st.flying, st.earlier = nil, st.earlier[:0]
		for _, c := range st.submitted {
			e.stats.Longest = max(e.stats.Longest, c.Observe(st.work))
		}
		st.submitted = st.submitted[:0]
	}
	return nil
}

// Commit makes the tokens part of their sessions, unless they are blocks of drafts, and ends the
// step.
//
// Errors: vk.ErrArgument if a layer has not run, vk.ErrBusy before Wait: after these the step goes
// on; vk.ErrClosed, vk.ErrDeviceLost.
func (st *Step) Commit() error {
	e, now := st.e, &st.e.now
	e.mu.Lock()
	defer e.mu.Unlock()
	err := st.active()
	if err == nil && st.flying != nil {
		err = vk.ErrBusy
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opCommit, err)
	}
	if i := slices.Index(now.ran[st.first:], false); i >= 0 {
		return badArgument(opCommit, "layers", fmt.Sprintf("layer %d not run", st.first+i), "all of them run")
	}
	if st.draft {
		e.pages.GiveBack()
	} else {
		e.lengthen()
	}
	e.stats.Steps++
	e.stats.Tokens += uint64(st.tokens)
	e.stats.Padding += uint64(st.b.Tokens - st.tokens)
	st.leave()
	return nil
}

// lengthen makes the step's tokens part of their sessions.
func (e *Engine) lengthen() {
	for _, x := range e.now.parts {
		e.pages.Seats[x.Seat].Length += x.N
	}
	e.pages.Grown(e.now.busy)
}

// Abort ends the step and leaves the sessions as they were before it. After Commit, and for a nil
// step, it does nothing, so it can be deferred. It does not wait for the device.
func (st *Step) Abort() error {
	if st == nil {
		return nil
	}
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	if st.e.now.step == st {
		st.end()
	}
	return nil
}

// end gives up the step. Nothing on the device has to be undone: what was written beyond a
// session's length is written again before it is read, and entries of tables that became
// shorter are sent to the device again.
func (st *Step) end() {
	if !st.warms {
		st.e.stats.Aborted++
	}
	st.withhold()
	st.e.pages.Undo()
	st.leave()
}

// leave lets the next step begin.
func (st *Step) leave() {
	e := st.e
	e.now.step, e.sizes.InUse = nil, nil
	e.now.clearSeats()
	e.unlockStep()
}
