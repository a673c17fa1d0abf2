package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// lockStep waits until no step is in progress, and until the device is done with the last one,
// which may have been aborted. Then no other call begins a step, takes pages or moves them before
// unlockStep. Callers are served in the order in which they came.
func (e *Engine) lockStep(ctx context.Context) error {
	if err := alive(ctx); err != nil {
		return err
	}
	select {
	case e.stepLock <- struct{}{}:
	default:
		if err := e.waitStep(ctx); err != nil {
			return err
		}
	}
	err := e.drain(ctx)
	if err != nil {
		e.unlockStep()
	}
	return err
}

func (e *Engine) unlockStep() { <-e.stepLock }

// waitStep is lockStep where the lock is taken, and counts as a wait.
func (e *Engine) waitStep(ctx context.Context) error {
	defer func(began time.Time) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.stats.Waits++
		e.stats.Waiting += time.Since(began)
	}(time.Now())
	select {
	case e.stepLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain waits for what an aborted step left on the device. The step lock is held.
func (e *Engine) drain(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.usable()
	if p := e.now.flight; err == nil && p != nil {
		err = e.await(func() error { return p.Wait(ctx) })
		if err != nil && errors.Is(err, ctx.Err()) {
			return err
		}
		e.now.flight = nil
		if errors.Is(err, vk.ErrDeviceLost) {
			return e.note(err)
		} // other errors of the wait were the step's
		err = e.usable()
	}
	return err
}

// await gives up e.mu while it waits for the device: sessions come and go meanwhile, all but those
// of the step in progress. An engine that was closed meanwhile is an error.
func (e *Engine) await(wait func() error) (err error) {
	if err := e.usable(); err != nil {
		return err
	}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		if e.closed {
			err = errors.Join(e.usable(), err)
		} else if err == nil {
			err = e.failed
		}
	}()
	return wait()
}

// betweenSteps calls do with e.mu held while no step is in progress.
func (e *Engine) betweenSteps(ctx context.Context, do func() error) error {
	if err := e.lockStep(ctx); err != nil {
		return err
	}
	defer e.unlockStep()
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.usable()
	if err == nil {
		err = do()
	}
	return e.note(err)
}
