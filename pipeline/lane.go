package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// lane is where a step is in progress: what it has but for pages, rows of block tables, and
// gathered rows, which no longer matter when a layer's commands have run. Each has memory of its
// own for every size of step, so that the device can be in one step while the host is in another.
type lane struct {
	// What every call looks at lies side by side: after a wait it is in no cache of a processor.
	step   *Step // in progress
	flight *vk.Pending
	pinned bool         // the sessions of byRow are in a step, or in a call that makes them longer
	copies sync.RWMutex // read while hidden states are copied to or from mapped memory; taken after Engine.mu
	parts  []stepPart   // of the step in progress, reused
	busy   []busyPart   // those of sessions whose tables have something to do, see rowState.quiet
	ran    []bool       // layers that ran
	shown  []bool       // layers whose results are in host memory, for ReadOutput
	byRow  []int        // index into parts, or -1

	e       *Engine
	sizes   map[int]*stepSize
	scratch []*vk.Buffer // of sizes, each larger than those before, see place
	counted uint64       // what it would be, see EngineOptions.Estimate
	need    pageCounts   // of the step, reused
	changed []tableOf    // those that may have entries that the device does not have
	set     []bool       // [layers, MaxSessions] inputs set from host memory
}

func (l *lane) init(e *Engine) {
	n, sessions := len(e.layers), e.opts.MaxSessions
	*l = lane{e: e, sizes: map[int]*stepSize{}, byRow: make([]int, sessions),
		ran: make([]bool, n), set: make([]bool, n*sessions), shown: make([]bool, n)}
}

// freeLane is one without a step, the first so that others have no memory before they need it.
// Who has a slot and the turn finds one: those that had no step when it came to land still have
// none. Others may have lost theirs since, and the device may still be in it.
func (e *Engine) freeLane() *lane {
	for i := range e.lanes {
		if l := &e.lanes[i]; l.step == nil && l.flight == nil {
			return l
		}
	}
	return nil
}

// open allocates what steps of all sizes need.
func (l *lane) open(ctx context.Context) error {
	if err := l.buildAll(ctx); err != nil {
		return err
	}
	for _, b := range l.sizes {
		if err := b.openHost(); err != nil {
			return err
		}
	}
	return nil
}

// clearRows forgets which rows the last step had.
func (l *lane) clearRows() {
	for i := range l.byRow {
		l.byRow[i] = -1
	}
}

// forget drops all recorded commands, and keeps the times of a step in progress.
func (l *lane) forget() (err error) {
	if l.step != nil {
		l.step.keepTimes()
	}
	for _, b := range l.sizes {
		err = errors.Join(err, b.forget())
	}
	return errors.Join(err, l.unite(nil))
}

// close ends the lane's step and frees its memory once the device is done. Nobody else uses it.
func (l *lane) close() (err error) {
	e := l.e
	l.step = nil
	if p := l.flight; p != nil {
		e.mu.Unlock()
		_ = p.Wait(context.Background()) // bounded by vk.DeviceOptions.HangAfter
		e.mu.Lock()
	}
	l.copied()
	for _, b := range l.sizes {
		err = errors.Join(err, b.close())
	}
	for _, b := range l.scratch {
		err = errors.Join(err, b.Close())
	}
	return err
}

// unlocked releases the engine's mutex and, without an error, copies from or to mapped memory.
// Several goroutines may; what ends the step or hands the memory to the device waits for them, see
// copied.
func (l *lane) unlocked(err error, transfer func()) {
	if err != nil {
		l.e.mu.Unlock()
		return
	}
	l.copies.RLock()
	defer l.copies.RUnlock()
	l.e.mu.Unlock()
	transfer()
}

// copied waits for those who copy from or to mapped memory. It is called with the engine's mutex
// held, so no other begins meanwhile.
func (l *lane) copied() {
	l.copies.Lock()
	defer l.copies.Unlock()
}

// enter takes a slot and the turn: fewer than EngineOptions.Steps steps are in progress, and nobody
// else begins one, takes pages or moves them. The device is done with steps that were aborted.
// leave gives both back.
func (e *Engine) enter(ctx context.Context) error {
	if e.dev == nil {
		return e.usable()
	}
	if err := alive(ctx); err != nil {
		return err
	}
	if err := e.take(ctx, e.slots); err != nil {
		return err
	}
	if len(e.lanes) > 1 { // else nobody else has a slot
		if err := e.take(ctx, e.turn); err != nil {
			<-e.slots
			return err
		}
	}
	err := e.land(ctx)
	if err != nil {
		e.leave()
	}
	return err
}

func (e *Engine) leave() {
	e.passOn()
	<-e.slots
}

// passOn gives back the turn, and not the slot.
func (e *Engine) passOn() {
	if len(e.lanes) > 1 {
		<-e.turn
	}
}

// take puts a value into a channel that has room for as many as may hold one.
func (e *Engine) take(ctx context.Context, c chan struct{}) error {
	select {
	case c <- struct{}{}:
		return nil
	default:
	}
	defer func(began time.Time) {
		e.mu.Lock()
		e.stats.Waits++
		e.stats.Waiting += time.Since(began)
		e.mu.Unlock()
	}(time.Now())
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return fmt.Errorf("engine %w", vk.ErrClosed)
	}
}

// alone is enter where no step is in progress. It waits without a slot: who has a step in progress
// may have to begin another to get on with it.
func (e *Engine) alone(ctx context.Context) error {
	for {
		if err := e.enter(ctx); err != nil {
			return err
		}
		ended := e.busy()
		if ended == nil {
			err := e.land(ctx) // of steps that were aborted since
			if err != nil {
				e.leave()
			}
			return err
		}
		e.leave()
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.done:
			return fmt.Errorf("engine %w", vk.ErrClosed)
		}
	}
}

// busy is closed when a step ends; nil without any in progress.
func (e *Engine) busy() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.lanes {
		if e.lanes[i].step != nil {
			if e.ended == nil {
				e.ended = make(chan struct{})
			}
			return e.ended
		}
	}
	return nil
}

// land waits for what aborted steps left on the device.
func (e *Engine) land(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.lanes {
		l := &e.lanes[i]
		p := l.flight
		if l.step != nil || p == nil || e.usable() != nil {
			continue
		}
		err := e.await(func() error { return p.Wait(ctx) })
		if err != nil && errors.Is(err, ctx.Err()) {
			return err
		}
		if l.flight = nil; errors.Is(err, vk.ErrDeviceLost) {
			return e.note(err)
		} // other errors of the wait were the step's
	}
	return e.usable()
}

// await waits for the device, with e.mu given up: meanwhile sessions come and go, all but those
// that are pinned, and steps in progress go on. Who awaits has the turn or a step, so nobody else
// takes pages, moves caches or ends the step. If the engine was closed meanwhile, that is an error.
func (e *Engine) await(wait func() error) (err error) {
	if err := e.usable(); err != nil {
		return err
	}
	e.waits++
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		if e.waits--; e.waits == 0 {
			e.changed.Broadcast()
		}
		if err == nil {
			err = e.usable()
		}
	}()
	return wait()
}

// still calls do while steps in progress submit nothing and the device has nothing of them, so that
// memory of their commands can be replaced. Their next layers are recorded again.
func (e *Engine) still(ctx context.Context, do func() error) error {
	if e.moving {
		return do()
	}
	// Who is to signal what a step waits for may first have to submit, to this step or another one.
	// Nobody begins any meanwhile, so that this comes to an end.
	err := e.quiet(ctx, func(l *lane) bool { return l.step != nil && l.step.gated })
	if err != nil {
		return err
	}
	e.moving = true
	defer func() {
		e.moving = false
		e.changed.Broadcast()
	}()
	if err := e.quiet(ctx, func(*lane) bool { return true }); err != nil {
		return err
	}
	return do()
}

// quiet waits until the device has nothing of some lanes.
func (e *Engine) quiet(ctx context.Context, of func(*lane) bool) error {
	seen := make([]*vk.Pending, len(e.lanes))
	for i := 0; i < len(e.lanes); i++ {
		l := &e.lanes[i]
		p := l.flight
		if p == nil || p == seen[i] || !of(l) {
			continue
		}
		err := e.await(func() error { return p.Wait(ctx) })
		if err != nil && (errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, ctx.Err())) {
			return err
		} // others are for those who wait for the step
		seen[i], i = p, -1 // others may have submitted meanwhile
	}
	return e.usable()
}

// settled waits until nobody moves what commands use.
func (e *Engine) settled() {
	for e.moving {
		e.changed.Wait()
	}
}
