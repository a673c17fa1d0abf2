package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
// With Draft they are a block of drafts behind them, Config.DraftBlock tokens, in all chunks of the
// step. Only layers that draft run (LayerSpec.Block), the step takes pages of these alone, and the
// session stays as it is. In other steps these layers keep rows of what they are given, and give
// nothing; see model.DraftBlock.
type Chunk struct {
	Session *Session
	Tokens  int
	Draft   bool
}

// stepPart is a chunk of a step in progress.
type stepPart struct {
	s        *Session
	row      int // of the session
	first, n int // rows of the step
}

// busyPart is a chunk for which the session's tables have something to do.
type busyPart struct {
	s      *Session
	tables []sessionTable // of the session, for the layers that run
	n      int
}

// tableOf is a table of a session.
type tableOf struct {
	s *Session
	t *sessionTable
}

// Step is new tokens of some sessions on their way through the layers. The sessions grow when it
// is committed. A step ends with Commit, Abort, a context that ends while one of its methods
// waits, or a lost device. After that it is closed (vk.ErrClosed), and its tensors belong to the
// next step.
type Step struct {
	e       *Engine
	lane    *lane
	b       *stepSize
	tokens  int
	longest int  // greatest length of a session after the step
	draft   bool // its chunks are blocks of drafts
	first   int  // of the layers that run

	// work is how many tokens the step's tokens see, in all. Between steps of one size the device's
	// time grows by no more than this does.
	work float64

	pieces int // of gathered rows, see commandKey

	begun     bool            // the metadata is with the device
	reuses    bool            // see ReuseInputs
	warms     bool            // see Engine.Warm
	gated     bool            // it may wait for semaphores
	host      bool            // inputs come from host memory
	layer     int             // whose inputs were set last
	latest    int             // the layer that was submitted last; -1: what it left cannot be read
	flying    *vk.Pending     // the last submission, until Wait
	earlier   []*vk.Pending   // those before it: each may fail by itself
	submitted []*stepCommands // submitted since the last Wait
	timed     []commandKey    // submitted, each once

	kept map[commandKey][]vk.Section // of timed, where the commands were dropped, see Times
}

// Begin begins a step: it takes the pages for the tokens, copies shared pages that are about to
// be written, and grows the caches if need be. It waits while EngineOptions.Steps steps are in
// progress, so a goroutine must end one of them before it begins the next.
//
// Errors: vk.ErrArgument for no chunks, a chunk without tokens, a session of another
// engine or twice, more than MaxStep tokens, blocks of drafts of another length, beside other
// tokens or without a layer that drafts; ErrInStep for a session of another step;
// ErrSequenceFull; cache.ErrPoolFull when the caches cannot grow; the context's; vk.ErrClosed,
// vk.ErrDeviceLost; those of vk.Device.NewBuffer. After an error nothing has changed.
func (e *Engine) Begin(ctx context.Context, chunks ...Chunk) (*Step, error) {
	e = e.orNone()
	if err := e.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", opBegin, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.checkDrafts(chunks); err != nil {
		e.leave()
		return nil, err
	}
	return e.begin(ctx, e.freeLane(), chunks)
}

// begin begins a step in a lane. It gives back the turn and, after an error, the slot.
func (e *Engine) begin(ctx context.Context, l *lane, chunks []Chunk) (*Step, error) {
	st, err := l.begin(ctx, chunks)
	if err != nil {
		e.leave()
		return nil, wrap(opBegin, e.note(err))
	}
	e.passOn()
	return st, nil
}

func (l *lane) begin(ctx context.Context, chunks []Chunk) (*Step, error) {
	if err := l.e.usable(); err != nil {
		return nil, err
	}
	st, err := l.arrange(chunks)
	if err != nil {
		return nil, err
	}
	l.pinned = true
	if err := st.equip(ctx); err != nil {
		l.pinned = false
		return nil, err
	}
	clear(l.ran)
	clear(l.shown)
	st.b.in.buffer().Track()
	l.step = st
	return st, nil
}

// equip gives a step the memory, the pages and the metadata that it takes.
func (st *Step) equip(ctx context.Context) (err error) {
	e, l := st.e, st.lane
	clear(l.need)
	for _, x := range l.busy {
		x.s.need(x.tables, x.n, l.need)
	}
	if err := e.growRopes(ctx, st.longest); err != nil {
		return err
	}
	if st.b, err = l.stepSize(ctx, st.tokens); err != nil {
		return err
	}
	if err := e.ensure(ctx, l.need); err != nil {
		return err
	}
	l.changed = l.changed[:0]
	for _, x := range l.busy {
		l.changed = x.s.list(x.tables, x.n, l.changed)
		if err = x.s.reserve(x.tables, x.n); err != nil {
			break
		}
	}
	if err == nil {
		err = e.workPages(ctx)
	}
	if err == nil {
		st.pieces, err = st.b.fill(ctx, st.draft)
	}
	if err != nil {
		err = errors.Join(err, l.undo())
	}
	return err
}

// undo undoes what Begin did for a step, of which the device may have had nothing.
func (l *lane) undo() error {
	for _, x := range l.changed {
		x.t.synced = x.t.before
	}
	return l.giveBack()
}

// giveBack gives back the pages of a step's tokens.
func (l *lane) giveBack() (err error) {
	for _, x := range l.changed {
		err = errors.Join(err, x.s.cutIn(x.t, x.s.at.length))
	}
	return errors.Join(err, l.e.dropCopies())
}

// arrange checks the chunks, finds the busy sessions, and makes a step.
func (l *lane) arrange(chunks []Chunk) (*Step, error) {
	e, st := l.e, &Step{e: l.e, lane: l}
	l.parts, l.busy = l.parts[:0], l.busy[:0]
	l.clearRows()
	if err := l.apart(chunks); err != nil {
		return nil, err
	}
	if len(chunks) == 0 {
		return nil, badArgument(opBegin, "chunks", "none", "at least one")
	}
	st.draft = chunks[0].Draft
	st.first, _ = e.given(st.draft)
	bad := func(i int, got any, want string) error {
		return badArgument(opBegin, fmt.Sprintf("chunks[%d]", i), got, "%s", want)
	}
	for i, c := range chunks {
		row, ok := l.again(i, c.Session)
		if s := c.Session; !ok {
			switch {
			case s == nil:
				return nil, bad(i, "a nil session", "a session of this engine")
			case s.e != e:
				return nil, bad(i, "a session of another engine", "one of this engine")
			case s.closed:
				return nil, fmt.Errorf("chunks[%d]: session %w", i, vk.ErrClosed)
			}
			row = s.row
		}
		at := &e.rows[row]
		length := at.length + c.Tokens
		switch {
		case c.Tokens < 1:
			return nil, bad(i, c.Tokens, "at least 1 token")
		case l.byRow[row] >= 0:
			return nil, bad(i, "a session twice", "each once")
		case c.Tokens > e.opts.MaxTokens-at.length:
			return nil, fmt.Errorf("chunks[%d]: %w: %d tokens and %d more, of at most %d", i, ErrSequenceFull,
				at.length, c.Tokens, e.opts.MaxTokens)
		case c.Tokens > e.opts.MaxStep-st.tokens:
			return nil, bad(i, fmt.Sprintf("%d tokens after %d", c.Tokens, st.tokens), fmt.Sprintf("at most %d in all", e.opts.MaxStep))
		}
		l.byRow[row] = i
		l.parts = append(l.parts, stepPart{s: c.Session, row: row, n: c.Tokens})
		st.tokens += c.Tokens
		st.longest = max(st.longest, length)
		st.work += float64(c.Tokens) * float64(length)
		if length > at.quiet {
			l.busy = append(l.busy, busyPart{c.Session, c.Session.tablesOf(st.draft), c.Tokens})
		}
	}
	return st, nil
}

// apart demands that no session is in another step.
func (l *lane) apart(chunks []Chunk) error {
	for i := 0; i < len(chunks) && len(l.e.lanes) > 1; i++ {
		s := chunks[i].Session
		row, ok := l.again(i, s)
		if !ok {
			if s == nil || s.e != l.e || s.closed {
				continue // which is another mistake
			}
			row = s.row
		}
		if l.e.laneOf(row) != nil {
			return fmt.Errorf("chunks[%d]: %w", i, ErrInStep)
		}
	}
	return nil
}

// again returns the row of an open session that had the same chunk in the last step. Most have,
// and then the session itself, which is not in the processor's cache, is not looked at.
func (l *lane) again(chunk int, s *Session) (row int, ok bool) {
	if parts := l.parts[:cap(l.parts)]; chunk < len(parts) && parts[chunk].s == s {
		row = parts[chunk].row
		return row, s != nil && l.e.sessions[row] == s
	}
	return 0, false
}

// Size is T, the number of rows of the step's tensors: the tokens of all chunks, padded to the next
// power of two, at most MaxStep.
func (st *Step) Size() int { return st.orNone().b.tokens }

// Rows returns the first row of a chunk's tokens, and the row after its last. Both are 0 for an
// unknown chunk, and once the step has ended.
func (st *Step) Rows(chunk int) (first, end int) {
	st = st.orNone()
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	if st.lane.step != st || chunk < 0 || chunk >= len(st.lane.parts) {
		return 0, 0
	}
	x := st.lane.parts[chunk]
	return x.first, x.first + x.n
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

// Submit hands all layers to the device, in as few submissions as
// EngineOptions.SubmitBudget permits, and returns.
//
// With semaphores the layers wait for other devices or APIs, and tell them that all layers are
// done; see vk.Sync. If what is waited for never comes, Wait ends the step with vk.ErrUnsignalled,
// or when its context does: the sessions are as before, and the semaphores have no new values.
//
// Errors: vk.ErrArgument with LayerByLayer, or if inputs are missing (see SetInput and Input);
// vk.ErrBusy if the layers are with the device already; those of vk.Commands.Submit and, for the
// first step of a size, of vk.Device.NewBuffer; those of EngineOptions.Between. After all of these
// the step can be submitted again, once what was missing is there.
func (st *Step) Submit(sync ...vk.Sync) error { return st.submit(wholeStep, sync) }

// SubmitLayer hands one layer to the device and returns; semaphores are those of the layer. Layers
// may run in any order, but behind those that they take entries, picks or candidates from. Each has
// to run before the step is committed.
//
// With EngineOptions.Between, Submit is faster; SubmitLayer lets a program look at what passes
// between layers. The caller's commands in front of a layer are submitted with it, those behind
// the last layer with that. Layers then have to run in order, each once; layer 0 begins again.
//
// Errors: vk.ErrArgument for an unknown layer or one out of order; those of Submit.
func (st *Step) SubmitLayer(layer int, sync ...vk.Sync) error {
	st = st.orNone()
	if n := len(st.e.layers); st != noStep && (layer < st.first || layer >= n) {
		return badArgument(opSubmit, "layer", layer, "%d to %d", st.first, n-1)
	}
	return st.submit(layer, sync)
}

// active reports whether the step is in progress; e.mu is held.
func (st *Step) active() error {
	if st == noStep {
		return missing("step", "one that Engine.Begin returned")
	}
	if err := st.e.usable(); err != nil {
		return err
	}
	if st.lane.step != st {
		return fmt.Errorf("step %w", vk.ErrClosed)
	}
	return nil
}

func (st *Step) submit(layer int, sync []vk.Sync) error {
	st = st.orNone()
	e, l := st.e, st.lane
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settled()
	err := st.active()
	if err == nil && layer == wholeStep && e.opts.LayerByLayer {
		return badArgument(opSubmit, "LayerByLayer", "all layers", "one by one")
	}
	if err == nil {
		l.copied()
		err = st.checkInputs(layer)
	}
	if err == nil {
		err = st.checkOrder(layer)
	}
	if err == nil {
		err = st.checkWritten(layer)
	}
	if err == nil && layer != wholeStep && !st.begun {
		err = st.submitCommands(commandKey{layer: prologue, draft: st.draft}, nil)
	}
	if err == nil {
		err = st.submitCommands(st.key(layer), sync)
	}
	if err != nil {
		return wrap(opSubmit, e.note(err))
	}
	first, end := st.layers(layer)
	if e.chained() && first == st.first {
		clear(l.ran)
		clear(l.shown)
	}
	st.latest = end - 1
	for i := first; i < end; i++ {
		l.ran[i], l.shown[i] = true, st.host
	}
	return nil
}

// key says which commands run a layer, or the whole step.
func (st *Step) key(layer int) commandKey {
	return commandKey{layer, st.host && !st.e.mapsHidden(), st.pieces, st.draft}
}

// layers returns the layers that commands for a layer, or for the whole step, run.
func (st *Step) layers(layer int) (first, end int) {
	if layer == wholeStep {
		return st.first, len(st.e.layers)
	}
	return layer, layer + 1
}

// submitCommands submits commands.
func (st *Step) submitCommands(key commandKey, sync []vk.Sync) error {
	repaired, err := st.b.repair()
	if err != nil {
		return err
	}
	c, err := st.b.commands(key, st.work)
	if err != nil {
		return err
	}
	p, err := c.Submit(st.behind(repaired, sync)...)
	if err != nil {
		st.brokeOff(key, err)
		return err
	}
	st.lane.flight, st.flying, st.submitted = p, p, append(st.submitted, c)
	st.gated = st.gated || len(sync) > 0
	if delete(st.kept, key); !slices.Contains(st.timed, key) {
		st.timed = append(st.timed, key)
	}
	st.begun = st.begun || key.layer < 0
	return nil
}

// Wait waits for everything submitted. If the context ends first, or the device is lost, the step
// is aborted, for all its sessions. So a server waits with a context of its own, not with that of
// one request. The device may still be busy after an abort: the next step waits for it.
//
// Errors: the context's; vk.ErrUnsignalled, see Submit, and vk.ErrCancelled if the engine is closed
// while the step waits for semaphores; vk.ErrDeviceLost, vk.ErrClosed.
func (st *Step) Wait(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%s: %w", opWait, alive(ctx))
	}
	st = st.orNone()
	e, l := st.e, st.lane
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
		st.b.broken = st.b.broken || ctx.Err() == nil // it may have stopped within an operation
		if e.note(err); l.step == st {
			st.end()
		}
		return fmt.Errorf("%s: %w", opWait, err)
	}
	if l.flight == p {
		l.flight = nil
	}
	if st.flying == p {
		st.flying, st.earlier = nil, st.earlier[:0]
		for _, c := range st.submitted {
			e.stats.Longest = max(e.stats.Longest, c.observe(st.work))
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
	st = st.orNone()
	e, l := st.e, st.lane
	e.mu.Lock()
	defer e.mu.Unlock()
	err := st.active()
	if err == nil && st.flying != nil {
		err = vk.ErrBusy
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opCommit, err)
	}
	if i := slices.Index(l.ran[st.first:], false); i >= 0 {
		return badArgument(opCommit, "layers", fmt.Sprintf("layer %d not run", st.first+i), "all of them run")
	}
	if st.draft {
		err = l.giveBack()
	} else {
		err = l.lengthen()
	}
	e.stats.Steps++
	e.stats.Tokens += uint64(st.tokens)
	e.stats.Padding += uint64(st.b.tokens - st.tokens)
	st.leave()
	if err != nil {
		return fmt.Errorf("%s: %w", opCommit, err)
	}
	return nil
}

// lengthen makes the step's tokens part of their sessions.
func (l *lane) lengthen() (err error) {
	for _, x := range l.parts {
		l.e.rows[x.row].length += x.n
	}
	for _, x := range l.busy {
		if x.s.at.length > x.s.at.quiet { // a long chunk: its first pages may be needed no more
			err = errors.Join(err, x.s.recycle())
		}
	}
	return err
}

// Abort ends the step and leaves the sessions as they were before it. After Commit, and for a nil
// step, it does nothing, so it can be deferred. It does not wait for the device.
func (st *Step) Abort() error {
	st = st.orNone()
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	if st.lane.step != st {
		return nil
	}
	return st.end()
}

// end gives up the step. Nothing on the device has to be undone: what was written beyond a
// session's length is written again before it is read, and entries of tables that became
// shorter are sent to the device again.
func (st *Step) end() error {
	if !st.warms {
		st.e.stats.Aborted++
	}
	st.withhold()
	err := st.lane.undo()
	st.leave()
	return err
}

// leave lets the next step begin.
func (st *Step) leave() {
	e, l := st.e, st.lane
	l.copied()
	l.step, l.pinned = nil, false
	if e.ended != nil {
		close(e.ended)
		e.ended = nil
	}
	<-e.slots
}
