package vk

import (
	"context"
	"errors"
	"fmt"
	"sync"

	vulkan "github.com/goki/vulkan"
)

// Commands is a recorded command buffer that can be submitted again and again.
// The caller closes it.
type Commands struct {
	rec    *Recorder
	fences [inFlight]vulkan.Fence // of parts in turn; one part has only the first
	mu     sync.Mutex
	flying *Pending
	closed bool
}

// Submit hands the commands to the device and returns at once. They can be
// submitted again once the device has finished them. Submissions to one device run
// in their order, and later ones see what earlier ones wrote.
//
// With semaphores, see Sync, the commands wait for others and tell others that they are done.
// What is submitted after them waits, too.
//
// Errors: ErrBusy while an earlier submission of the same commands has not
// finished; ErrArgument for a semaphore or a value that is none; ErrStarved; ErrClosed,
// ErrDeviceLost, ErrDeviceHung, ErrOutOfHostMemory, ErrOutOfDeviceMemory.
func (c *Commands) Submit(sync ...Sync) (*Pending, error) {
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
	if c.rec.mayStarve && d.Starved() {
		return nil, d.starvedError(op)
	}
	on, err := d.ordered(op, sync)
	if err != nil {
		return nil, err
	}
	p := &Pending{c: c, number: c.rec.proof.next(), sync: on}
	if err := d.begin(p); err != nil {
		p.sync.release()
		return nil, err
	}
	c.flying = p
	c.rec.overwritten()
	return p, nil
}

// Run submits the commands and waits for them. When the context ends first, the
// device still finishes what it was given; Close waits for that, Release does not. Errors: those
// of Submit and Wait.
func (c *Commands) Run(ctx context.Context) error {
	if ctx == nil {
		return argument("run", "ctx", "nil", "a context")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := c.Submit()
	if err != nil {
		return err
	}
	return p.Wait(ctx)
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

// Cancel withholds those parts of the last submission that the device does not have yet, and
// reports whether there are any. The device finishes at most two parts, none of a submission that
// waits for semaphores. Wait then returns ErrCancelled, and what the commands were to write is
// undefined.
func (c *Commands) Cancel() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.flying
	if p == nil || p.ended == nil {
		return false
	}
	p.parts.Lock()
	defer p.parts.Unlock()
	p.cancel = p.cancel || p.handed < c.Parts()
	return p.cancel
}

// Close waits until the device has finished with the commands and frees them. If the
// device is lost meanwhile it frees them all the same and returns ErrDeviceLost. If it is hung,
// the commands and what they use are left to the driver, and the error is ErrDeviceHung.
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
		if !errors.Is(err, ErrDeviceLost) {
			err = nil // the device has finished what it got; who waits is told
		}
	}
	if !c.rec.dev.left() {
		c.giveFences()
	}
	c.rec.release()
	return err
}

// fenceStore is the fences of a device that no commands have: drivers take milliseconds to make
// one. Guarded by Device.mu.
type fenceStore []vulkan.Fence

func (c *Commands) takeFence(op string, i int) error {
	d := c.rec.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.fences) - 1; n >= 0 {
		c.fences[i], d.fences = d.fences[n], d.fences[:n]
		return nil
	}
	fi := vulkan.FenceCreateInfo{SType: vulkan.StructureTypeFenceCreateInfo}
	var fence vulkan.Fence
	code := vulkan.CreateFence(d.h, &fi, nil, &fence)
	fi.Free()
	c.fences[i] = fence
	return d.check(op, int(code))
}

// giveFences gives back the fences, which the device has finished with.
func (c *Commands) giveFences() {
	d := c.rec.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, f := range c.fences {
		if f != nil {
			d.fences, c.fences[i] = append(d.fences, f), nil
		}
	}
}

func (list fenceStore) close(d *Device) {
	for _, f := range list {
		vulkan.DestroyFence(d.h, f, nil)
	}
}

// Release closes the commands without waiting: at once if the device has finished with them, else
// as soon as it has. Device.Close waits for that.
func (c *Commands) Release() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	flying := c.flying != nil
	if flying {
		if done, err := c.flying.poll(0); done {
			c.flying.finish(err)
			flying = false
		}
	}
	c.mu.Unlock()
	if !flying {
		return c.Close()
	}
	c.rec.dev.flights.closing.Go(func() { _ = c.Close() })
	return nil
}
