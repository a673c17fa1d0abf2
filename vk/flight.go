package vk

// #include "abi.h"
import "C"

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// defaultHangAfter is more than drivers let a GPU be busy with one submission: their watchdogs
// stop it after 2 to 60 seconds. A processor that executes shaders has none and may take longer,
// the more so the more other work it has.
const (
	defaultHangAfter   = 2 * time.Minute
	processorHangAfter = 20 * time.Minute
)

// hangCheck is the time between two looks of a wait at whether the device gets on.
const hangCheck = time.Second

// inFlight counts the parts of commands that the device has at a time. A second one keeps it busy
// while the host hands over the next; what it does not have can be withheld.
const inFlight = 2

// flights are a device's submissions that have not been seen to finish.
type flights struct {
	mu       sync.Mutex
	list     []*Pending // oldest first
	progress time.Time  // when the device was last seen to get on
	queue    []*Pending // those of list that feed hands over, in order
	feeding  bool       // feed runs
	feeders  sync.WaitGroup
	closing  sync.WaitGroup // commands that are closed once they have finished
}

// Pending is one submission of Commands.
type Pending struct {
	c      *Commands
	number uint32 // see Recorder.Prove

	// The fences belong to the commands: the next submission reuses them, and Close destroys
	// them. Both happen after finish, which waits for those who look at them.
	fence sync.RWMutex
	done  bool
	err   error

	sync order // what is waited for and signalled

	// Commands of several parts, those that wait for semaphores, and those after them, are handed
	// over by a goroutine, which closes ended after finish. Otherwise ended is nil.
	ended  chan struct{}
	parts  sync.Mutex // held while a part is handed over
	handed int
	cancel bool

	given [inFlight]time.Time // when the parts that the device has were handed over
	seen  time.Time           // when the last part ended
	took  []float64           // ns that the parts took by the host's clock, to be read once ended is closed
}

// begin hands a submission to the device, or to the goroutine that does where it has several
// parts or follows such a one. The commands' mutex is held.
func (d *Device) begin(p *Pending) error {
	f := &d.flights
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.c.Parts() > 1 || f.feeding || p.c.rec.parts.wall || !p.sync.there() || p.sync.failed() != nil {
		p.ended = make(chan struct{})
		f.queue = append(f.queue, p)
		if !f.feeding {
			f.feeding = true
			f.feeders.Go(d.feed)
		}
	} else if err := p.hand(0); err != nil {
		return err
	}
	if len(f.list) == 0 {
		f.progress = time.Now()
	}
	f.list = append(f.list, p)
	return nil
}

// hand gives the device a part. Its fence is signalled when the part has finished.
func (p *Pending) hand(part int) error {
	const op = "submit"
	d := p.c.rec.dev
	p.parts.Lock()
	defer p.parts.Unlock()
	if p.cancel {
		return fmt.Errorf("vk: %s: %w", op, ErrCancelled)
	}
	if err := d.usable(op); err != nil {
		return err
	}
	fence := p.c.fences[part%inFlight]
	if err := d.check(op, int(vulkan.ResetFences(d.h, 1, []vulkan.Fence{fence}))); err != nil {
		return err
	}
	cmd := p.c.rec.cmd
	if earlier := p.c.rec.parts.earlier; part < len(earlier) {
		cmd = earlier[part]
	}
	wait, signal := p.sync.at(part, p.c.Parts())
	semaphores, values := handlesOf(wait, signal)
	d.queueMu.Lock()
	r := C.vm_submit(d.c, unsafe.Pointer(d.queue), unsafe.Pointer(cmd), handleValue(unsafe.Pointer(fence)),
		unsafe.SliceData(semaphores), unsafe.SliceData(values), C.uint32_t(len(wait)), C.uint32_t(len(signal)))
	d.queueMu.Unlock()
	if err := d.check(op, int(r)); err != nil {
		return err
	}
	p.sync.signalled = p.sync.signalled || len(signal) > 0
	p.given[part%inFlight] = time.Now()
	p.handed++
	return nil
}

// feed hands over the parts of what is queued until there is nothing.
func (d *Device) feed() {
	f := &d.flights
	for {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.feeding = false
			f.mu.Unlock()
			return
		}
		p := f.queue[0]
		f.mu.Unlock()
		p.finish(p.run())
		close(p.ended)
		f.mu.Lock()
		f.queue = slices.Delete(f.queue, 0, 1)
		f.mu.Unlock()
	}
}

// run hands over the parts, with inFlight of them at the device, and waits for the last. After
// an error it waits for those that the device has.
func (p *Pending) run() (err error) {
	seen := 0
	err = p.arrive()
	for part := 0; part < p.c.Parts() && err == nil; part++ {
		if part >= inFlight {
			if err = p.see(seen); err != nil {
				return err
			}
			seen++
		}
		err = p.hand(part)
	}
	for ; seen < p.handed; seen++ {
		if e := p.see(seen); e != nil {
			return e
		}
	}
	if p.handed == 0 {
		p.follow()
	}
	if err == nil {
		err = p.proved()
	}
	return err
}

// see awaits a part and takes its time, since it was handed over or the part before it ended.
func (p *Pending) see(part int) error {
	err := p.await(part)
	from, now := p.given[part%inFlight], time.Now()
	if p.seen.After(from) {
		from = p.seen
	}
	p.took, p.seen = append(p.took, float64(now.Sub(from))), now
	return err
}

// follow waits for what was submitted before, where no part of p follows it: that p has ended says
// that all of it has.
func (p *Pending) follow() {
	f := &p.c.rec.dev.flights
	f.mu.Lock()
	earlier := slices.Clone(f.list[:max(slices.Index(f.list, p), 0)])
	f.mu.Unlock()
	for _, e := range earlier {
		_ = e.Wait(context.Background())
	}
}

// await waits until a part has finished, or the device is hung.
func (p *Pending) await(part int) error {
	const op = "wait"
	d, slice := p.c.rec.dev, 10*time.Millisecond
	if len(p.sync.wait) > 0 {
		slice = 0 // others wait for this, too: as in Wait
	}
	for start, looked := time.Now(), time.Now(); ; {
		if slice == 0 && time.Since(start) > spin {
			slice = 10 * time.Millisecond
		}
		r := vulkan.Result(C.vm_wait_fence(d.c, handleValue(unsafe.Pointer(p.c.fences[part%inFlight])), C.uint64_t(slice)))
		if ended(r) {
			d.flights.mu.Lock()
			d.flights.progress = time.Now()
			d.flights.mu.Unlock()
			return d.check(op, int(r))
		}
		if time.Since(looked) > min(hangCheck, d.hangAfter()) {
			if looked = time.Now(); d.stuck() {
				return hung(op)
			}
		}
	}
}

// ended reads the result of asking for a fence. A wait that fails for want of memory says nothing
// about the work: the device still has it.
func ended(r vulkan.Result) bool { return r == vulkan.Success || r == vulkan.ErrorDeviceLost }

// hangAfter returns the time that the device may be busy without getting on.
func (d *Device) hangAfter() time.Duration {
	switch limit := d.opts.HangAfter; {
	case limit == 0 && d.adapter.processor:
		return processorHangAfter
	case limit == 0:
		return defaultHangAfter
	case limit < 0:
		return 1<<63 - 1
	default:
		return limit
	}
}

// stuck looks which submissions have finished. If none has for as long as HangAfter permits, the
// device is hung from now on.
func (d *Device) stuck() bool {
	if d.hung.Load() {
		return true
	}
	f := &d.flights
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.list) > 0 && f.list[0].ended == nil && !d.gone.Load() &&
		ended(vulkan.GetFenceStatus(d.h, f.list[0].c.fences[0])) {
		f.list, f.progress = slices.Delete(f.list, 0, 1), time.Now()
	}
	if len(f.list) == 0 || time.Since(f.progress) <= d.hangAfter() {
		return false
	}
	d.hung.Store(true)
	return true
}

func hung(op string) error { return fmt.Errorf("vk: %s: %w", op, ErrDeviceHung) }

// finish notes that the submission has finished. The fences are not used for it afterwards. Who
// comes later changes nothing: others may read the error by then.
func (p *Pending) finish(err error) {
	f := &p.c.rec.dev.flights
	f.mu.Lock()
	if i := slices.Index(f.list, p); i >= 0 {
		f.list, f.progress = slices.Delete(f.list, i, i+1), time.Now()
	}
	f.mu.Unlock()
	p.fence.Lock()
	defer p.fence.Unlock()
	if !p.done {
		p.done, p.err = true, err
		p.sync.release()
	}
}

// spin is the time that Wait polls before it lets the thread sleep: a sleeping wait
// costs tens of microseconds more, a decode step may take less.
const spin = 200 * time.Microsecond

// Wait blocks until the submission has finished or the context ends; in the
// second case it returns the context's error and may be called again. It may be
// called from several goroutines, and after the commands were submitted again or
// closed.
//
// Errors; all but the context's say that the submission is over: the context's;
// ErrCancelled after Commands.Cancel; ErrUnsignalled; ErrStarved; ErrDeviceLost, ErrDeviceHung;
// those of Submit, for a part that could not be handed over.
func (p *Pending) Wait(ctx context.Context) error {
	if ctx == nil {
		return argument("wait", "ctx", "nil", "a context")
	}
	if p.ended != nil {
		select {
		case <-p.ended:
			return p.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	sleep, start := time.Duration(0), time.Now()
	for looked := start; ; {
		if done, err := p.poll(sleep); done {
			p.finish(err)
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if sleep == 0 {
			if time.Since(start) > spin {
				sleep = 2 * time.Millisecond // short, so that a context that ends is seen soon
			}
		} else if d := p.c.rec.dev; time.Since(looked) > min(hangCheck, d.hangAfter()) {
			looked = time.Now()
			d.stuck()
		}
	}
}

// poll waits for at most sleep and reports whether the submission has finished, and with
// which error.
func (p *Pending) poll(sleep time.Duration) (done bool, err error) {
	const op = "wait"
	p.fence.RLock()
	defer p.fence.RUnlock()
	d := p.c.rec.dev
	switch {
	case p.done:
		return true, p.err
	case p.ended != nil: // its fences are the feeding goroutine's
		return false, nil
	case d.gone.Load(): // Device.Close has waited for it
		return true, nil
	case d.hung.Load():
		return true, hung(op)
	}
	fence, r := p.c.fences[0], vulkan.Success
	if sleep == 0 {
		r = vulkan.GetFenceStatus(d.h, fence)
	} else {
		r = vulkan.Result(C.vm_wait_fence(d.c, handleValue(unsafe.Pointer(fence)), C.uint64_t(sleep)))
	}
	if !ended(r) {
		return false, nil
	}
	if err := d.check(op, int(r)); err != nil {
		return true, err
	}
	return true, p.proved()
}

// settle waits for what the device has, and withholds the rest. Afterwards the device is idle,
// or hung.
func (d *Device) settle() {
	f := &d.flights
	f.mu.Lock()
	list := slices.Clone(f.list)
	f.mu.Unlock()
	for _, p := range list {
		_ = p.Wait(context.Background())
	}
	f.feeders.Wait()
	f.closing.Wait()
}
