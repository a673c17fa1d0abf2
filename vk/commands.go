package vk

// #include "abi.h"
import "C"

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// Commands is a recorded command buffer that can be submitted again and again.
// The caller closes it.
type Commands struct {
	rec    *Recorder
	fence  vulkan.Fence
	mu     sync.Mutex
	flying *Pending
	closed bool
}

// Pending is one submission of Commands.
type Pending struct {
	c *Commands

	// The fence belongs to the commands: the next submission reuses it, and Close
	// destroys it. Both happen after finish, which waits for those who look at it.
	fence sync.RWMutex
	done  bool
	err   error
}

// Barriers returns the number of barriers that the recorder derived.
func (c *Commands) Barriers() int { return c.rec.barriers }

// Submit hands the commands to the device and returns at once. They can be
// submitted again once the device has finished them. Submissions to one device run
// in their order, and later ones see what earlier ones wrote.
//
// Errors: ErrBusy while an earlier submission of the same commands has not
// finished; ErrClosed, ErrDeviceLost, ErrOutOfHostMemory, ErrOutOfDeviceMemory.
func (c *Commands) Submit() (*Pending, error) {
	const op = "submit"
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.rec.dev
	if c.closed {
		return nil, fmt.Errorf("vk: %s: commands %w", op, ErrClosed)
	}
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if c.flying != nil {
		done, err := c.flying.poll(0)
		if !done {
			return nil, fmt.Errorf("vk: %s: %w", op, ErrBusy)
		}
		c.flying.finish(err)
		c.flying = nil
	}
	if err := d.check(op, int(vulkan.ResetFences(d.h, 1, []vulkan.Fence{c.fence}))); err != nil {
		return nil, err
	}
	d.queueMu.Lock()
	r := c.submitParts()
	d.queueMu.Unlock()
	if err := d.check(op, int(r)); err != nil {
		return nil, err
	}
	c.flying = &Pending{c: c}
	return c.flying, nil
}

// Run submits the commands and waits for them. When the context ends first, the
// device still finishes what it was given; Close waits for that. Errors: those of
// Submit and Wait.
func (c *Commands) Run(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := c.Submit()
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// spin is how long Wait polls before it lets the thread sleep: a sleeping wait
// costs tens of microseconds more, a decode step may take less.
const spin = 200 * time.Microsecond

// Wait blocks until the submission has finished or the context ends; in the
// second case it returns the context's error and may be called again. It may be
// called from several goroutines, and after the commands were submitted again or
// closed.
//
// Errors: the context's; ErrDeviceLost.
func (p *Pending) Wait(ctx context.Context) error {
	sleep := time.Duration(0)
	for start := time.Now(); ; {
		if done, err := p.poll(sleep); done {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if sleep == 0 && time.Since(start) > spin {
			sleep = 2 * time.Millisecond // short, so that a context that ends is seen soon
		}
	}
}

// poll waits for at most sleep and reports whether the submission has finished, and with
// which error.
func (p *Pending) poll(sleep time.Duration) (done bool, err error) {
	p.fence.RLock()
	defer p.fence.RUnlock()
	if p.done {
		return true, p.err
	}
	d, r := p.c.rec.dev, vulkan.Success
	if d.gone.Load() { // Device.Close has waited for it
		return true, nil
	}
	if sleep == 0 {
		r = vulkan.GetFenceStatus(d.h, p.c.fence)
	} else {
		r = vulkan.Result(C.vm_wait_fence(d.c, handleValue(unsafe.Pointer(p.c.fence)), C.uint64_t(sleep)))
	}
	if r > 0 { // not ready, timeout
		return false, nil
	}
	return true, d.check("wait", int(r))
}

// finish notes that the submission has finished. The fence is not used for it afterwards.
func (p *Pending) finish(err error) {
	p.fence.Lock()
	p.done, p.err = true, err
	p.fence.Unlock()
}

// Timestamps returns when the last submission passed each recorded timestamp, in
// nanoseconds since the first of them; nil if none was recorded.
//
// Errors: ErrBusy if the commands were never submitted or have not finished;
// ErrClosed, ErrDeviceLost, ErrOutOfHostMemory, ErrOutOfDeviceMemory.
func (c *Commands) Timestamps() ([]float64, error) {
	const op = "timestamps"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("vk: %s: commands %w", op, ErrClosed)
	}
	if err := c.rec.dev.usable(op); err != nil {
		return nil, err
	}
	if c.flying == nil {
		return nil, fmt.Errorf("vk: %s: %w", op, ErrBusy)
	}
	done, err := c.flying.poll(0)
	if !done {
		return nil, fmt.Errorf("vk: %s: %w", op, ErrBusy)
	}
	c.flying.finish(err) // Submit need not ask again
	n := c.rec.marks
	if n == 0 {
		return nil, nil
	}
	d, raw := c.rec.dev, make([]uint64, n)
	const bits64, wait = 1, 2
	code := queryResults(vulkan.GetQueryPoolResults, d.h, c.rec.query, raw, bits64|wait)
	if err := d.check(op, int(code)); err != nil {
		return nil, err
	}
	ns := make([]float64, n)
	for i, t := range raw {
		ns[i] = float64((t-raw[0])&d.Caps().timestampMask) * d.Caps().TimestampPeriod
	}
	return ns, nil
}

// Close waits until the device has finished with the commands and frees them. If the
// device is lost meanwhile it frees them all the same and returns ErrDeviceLost.
func (c *Commands) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	var err error
	if c.flying != nil {
		err = c.flying.Wait(context.Background())
		c.flying.finish(err)
	}
	if !c.rec.dev.gone.Load() {
		vulkan.DestroyFence(c.rec.dev.h, c.fence, nil)
	}
	c.rec.release()
	return err
}
