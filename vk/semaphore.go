package vk

// #include "abi.h"
import "C"

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vkmla/vkmla/internal/door"
)

// Semaphore is a timeline semaphore: a number, at first 0, that only grows. Commands and the host
// wait until it has a value and give it a greater one. Exported, it orders the work of several
// devices and APIs. Its methods may be called from several goroutines.
type Semaphore struct {
	dev      *Device
	h        C.VmHandle
	exported bool

	mu       sync.Mutex
	promised []uint64 // values that submissions are to give it, ascending
	users    int      // the owner and each submission
	closed   bool
}

// At is a semaphore and one of its values.
type At struct {
	Semaphore *Semaphore
	Value     uint64
}

// Sync lists what a submission waits for, all of it, and which values it gives semaphores once its
// commands have finished. Each semaphore stands at most once in Wait and once in Signal, and there
// are at most 16 of each.
//
// The host waits, in a goroutine, and hands the commands to the device when the values are there: a
// GPU could not be got out of a wait whose signal never comes. Such a wait ends with ErrUnsignalled
// after DeviceOptions.HangAfter, with ErrCancelled after Commands.Cancel. Then, and after any other
// error, Signal is not done: those who wait for it have to be told in another way, such as by
// Semaphore.Signal.
//
// Behind are earlier submissions to the same device whose results the commands need. Where the
// device did not get one of them whole, it gets nothing of the commands, and Pending.Wait returns
// the error of that one.
type Sync struct {
	Wait, Signal []At
	Behind       []*Pending
}

// mostSync bounds the semaphores of a submission.
const mostSync = 16

// order lists what a submission waits for and signals.
type order struct {
	wait, signal []At
	behind       []*Pending
	signalled    bool // the device has it
}

// NewSemaphore makes a semaphore. With export, others can have it.
//
// Errors: *MissingError for a device that has none, or exports none; ErrClosed, ErrDeviceLost,
// ErrOutOfHostMemory, ErrOutOfDeviceMemory.
func (d *Device) NewSemaphore(export bool) (*Semaphore, error) {
	const op = "new semaphore"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	features := []string{"timelineSemaphore"}
	if export {
		features = append(features, "exportTimeline")
	}
	if err := d.adapter.requires(op, features...); err != nil {
		return nil, err
	}
	return d.newSemaphore(op, export)
}

func (d *Device) newSemaphore(op string, export bool) (*Semaphore, error) {
	s, flag := &Semaphore{dev: d, exported: export, users: 1}, C.int(0)
	if export {
		flag = 1
	}
	var h C.VmHandle
	if err := d.check(op, int(C.vm_create_semaphore(d.c, flag, &h))); err != nil {
		return nil, err
	}
	s.h = h
	d.mu.Lock()
	d.signals++
	d.mu.Unlock()
	return s, nil
}

// importSemaphore is share.ImportSemaphore.
func (d *Device) importSemaphore(x door.Exported) (*Semaphore, error) {
	const op = "import semaphore"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if err := d.adapter.requires(op, "timelineSemaphore", "importTimeline"); err != nil {
		return nil, err
	}
	if err := cmp.Or(d.same(op, x), checkHandle(op, x.Handle, 0)); err != nil {
		return nil, err
	}
	s, err := d.newSemaphore(op, false)
	if err != nil {
		return nil, err
	}
	err = passHandle(op, x.Handle, func(h uintptr) error {
		code := int(C.vm_import_semaphore(d.c, s.h, C.uintptr_t(h)))
		return cmp.Or(d.refused(op, code), d.check(op, code))
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// export is share.ExportSemaphore.
func (s *Semaphore) export() (door.Exported, error) {
	const op = "export semaphore"
	d, err := s.usable(op)
	if err != nil {
		return door.Exported{}, err
	}
	if !s.exported {
		return door.Exported{}, argument(op, "semaphore", "one that stays with its device", "one of Device.NewSemaphore(true)")
	}
	var h C.uintptr_t
	if err := d.check(op, int(C.vm_semaphore_handle(d.c, s.h, &h))); err != nil {
		return door.Exported{}, err
	}
	return door.Exported{Handle: uintptr(h), Device: d.adapter.UUID, Driver: d.driver()}, nil
}

// usable fails for a semaphore that is none any more.
func (s *Semaphore) usable(op string) (*Device, error) {
	if s == nil || s.dev == nil {
		return nil, argument(op, "semaphore", "nil", "one that Device.NewSemaphore returned")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("vk: %s: semaphore %w", op, ErrClosed)
	}
	return s.dev, s.dev.usable(op)
}

// Value returns the semaphore's number. Errors: ErrClosed, ErrDeviceLost, ErrOutOfHostMemory.
func (s *Semaphore) Value() (uint64, error) {
	const op = "value of semaphore"
	if _, err := s.usable(op); err != nil {
		return 0, err
	}
	return s.value(op)
}

func (s *Semaphore) value(op string) (uint64, error) {
	var v C.uint64_t
	err := s.dev.check(op, int(C.vm_semaphore_value(s.dev.c, s.h, &v)))
	return uint64(v), err
}

// Signal gives the semaphore a value, from the host. It frees those who wait for what others do
// not do any more.
//
// Errors: ErrArgument for a value that it has, that is less, or that a submission is to give it;
// ErrClosed, ErrDeviceLost, ErrOutOfHostMemory.
func (s *Semaphore) Signal(value uint64) error {
	const op = "signal semaphore"
	d, err := s.usable(op)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.value(op)
	if err != nil {
		return err
	}
	for _, next := range s.promised {
		if next > now && value >= next {
			return argument(op, "value", fmt.Sprint(value), "less than %d, which a submission gives it", next)
		}
	}
	if err := inReach(op, "value", value, now); err != nil {
		return err
	}
	return d.check(op, int(C.vm_signal_semaphore(d.c, s.h, C.uint64_t(value))))
}

// inReach demands a value that a semaphore can get.
func inReach(op, arg string, value, now uint64) error {
	const most = 1<<31 - 1 // what Vulkan guarantees of maxTimelineSemaphoreValueDifference
	if value <= now || value-now > most {
		return argument(op, arg, fmt.Sprint(value), "%d to %d", now+1, now+most)
	}
	return nil
}

// Wait waits until the semaphore has a value, or a greater one, or the context ends.
// Errors: the context's; ErrClosed, ErrDeviceLost, ErrOutOfHostMemory.
func (s *Semaphore) Wait(ctx context.Context, value uint64) error {
	const op = "wait for semaphore"
	if ctx == nil {
		return argument(op, "ctx", "nil", "a context")
	}
	d, err := s.usable(op)
	if err != nil {
		return err
	}
	d.waiters.RLock()
	defer d.waiters.RUnlock()
	if err := d.usable(op); err != nil {
		return err // closed meanwhile
	}
	s.use(1)
	defer s.use(-1)
	return s.reach(op, value, func() error { return cmp.Or(ctx.Err(), d.usable(op)) })
}

// reach waits until the semaphore has a value, or on returns an error. It polls for a while, since
// a thread that sleeps wakes late.
func (s *Semaphore) reach(op string, value uint64, on func() error) error {
	const slice = C.uint64_t(2 * time.Millisecond)
	for start := time.Now(); ; {
		if now, err := s.value(op); err != nil || now >= value {
			return err
		}
		if err := on(); err != nil {
			return err
		}
		if time.Since(start) > spin {
			if err := s.dev.check(op, int(C.vm_wait_semaphore(s.dev.c, s.h, C.uint64_t(value), slice))); err != nil {
				return err
			}
		}
	}
}

// there reports whether all that is waited for has come. Without an answer it has not.
func (o *order) there() bool {
	for _, at := range o.wait {
		if now, err := at.Semaphore.value("submit"); err != nil || now < at.Value {
			return false
		}
	}
	return true
}

// Close frees the semaphore, once the submissions that use it have finished. Close always returns
// nil.
func (s *Semaphore) Close() error {
	if s == nil || s.dev == nil {
		return nil
	}
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if !closed {
		s.use(-1)
	}
	return nil
}

// use counts users and destroys the semaphore when there are none.
func (s *Semaphore) use(n int) {
	s.mu.Lock()
	s.users += n
	last := s.users == 0
	s.mu.Unlock()
	if d := s.dev; last && !d.left() {
		C.vm_destroy_semaphore(d.c, s.h)
		d.mu.Lock()
		d.signals--
		d.mu.Unlock()
	}
}

// ordered checks what a submission waits for and signals, and holds the semaphores for it.
func (d *Device) ordered(op string, list []Sync) (o order, err error) {
	for _, x := range list {
		o.wait, o.signal = append(o.wait, x.Wait...), append(o.signal, x.Signal...)
		o.behind = append(o.behind, x.Behind...)
	}
	for _, p := range o.behind {
		if p == nil || p.c.rec.dev != d {
			return order{}, argument(op, "Behind", "nil, or a submission to another device", "one to %s", d.adapter.Name)
		}
	}
	for i, all := range [][]At{o.wait, o.signal} {
		arg := []string{"Wait", "Signal"}[i]
		if len(all) > mostSync {
			return order{}, argument(op, arg, fmt.Sprintf("%d semaphores", len(all)), "at most %d", mostSync)
		}
		for k, at := range all {
			of, err := at.Semaphore.usable(op)
			switch {
			case err != nil:
				return order{}, err
			case of != d:
				return order{}, argument(op, arg, "a semaphore of another device", "one of %s", d.adapter.Name)
			case slices.ContainsFunc(all[:k], func(b At) bool { return b.Semaphore == at.Semaphore }):
				return order{}, argument(op, arg, "a semaphore twice", "each once")
			}
		}
	}
	for i, at := range o.signal {
		if err := at.promise(op); err != nil {
			done := order{signal: o.signal[:i]}
			done.release()
			return order{}, err
		}
	}
	for _, at := range o.wait {
		at.Semaphore.use(1)
	}
	return o, nil
}

// promise notes that a submission is to give the semaphore a value, and holds it.
func (at At) promise(op string) error {
	s := at.Semaphore
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.value(op)
	if err != nil {
		return err
	}
	s.promised = slices.DeleteFunc(s.promised, func(v uint64) bool { return v <= now })
	if n := len(s.promised); n > 0 {
		now = s.promised[n-1]
	}
	if err := inReach(op, "Signal", at.Value, now); err != nil {
		return err
	}
	s.promised = append(s.promised, at.Value)
	s.users++
	return nil
}

// at returns what a part of a submission waits for and signals.
func (o *order) at(part, parts int) (wait, signal []At) {
	if part == 0 {
		wait = o.wait
	}
	if part == parts-1 {
		signal = o.signal
	}
	return wait, signal
}

// release lets go of the semaphores, and of promises that are not kept.
func (o *order) release() {
	for _, at := range o.signal {
		s := at.Semaphore
		s.mu.Lock()
		if i := slices.Index(s.promised, at.Value); i >= 0 && !o.signalled {
			s.promised = slices.Delete(s.promised, i, i+1)
		}
		s.mu.Unlock()
		s.use(-1)
	}
	for _, at := range o.wait {
		at.Semaphore.use(-1)
	}
	o.wait, o.signal, o.behind = nil, nil, nil
}

// failed returns the error of a submission that this one follows, if that has ended with one.
// Those that the device got at once, it got whole.
func (o *order) failed() error {
	for _, p := range o.behind {
		if p.ended == nil {
			continue
		}
		select {
		case <-p.ended:
			if p.err != nil {
				return p.err
			}
		default:
		}
	}
	return nil
}

// handlesOf are the semaphores and values of a submission, as vm_submit takes them.
func handlesOf(wait, signal []At) (h []C.VmHandle, v []C.uint64_t) {
	for _, list := range [][]At{wait, signal} {
		for _, at := range list {
			h, v = append(h, at.Semaphore.h), append(v, C.uint64_t(at.Value))
		}
	}
	return h, v
}

// arrive waits for the semaphores of a submission. Earlier submissions that failed end the wait.
// The time does not count for HangAfter, since the device has nothing of the submission.
func (p *Pending) arrive() error {
	const op = "wait for semaphores"
	d, f := p.c.rec.dev, &p.c.rec.dev.flights
	if err := p.sync.failed(); err != nil { // those before it in the queue have ended
		return err
	}
	start := time.Now()
	for _, at := range p.sync.wait {
		err := at.Semaphore.reach(op, at.Value, func() error {
			f.mu.Lock()
			if len(f.list) > 0 && f.list[0] == p {
				f.progress = time.Now()
			}
			f.mu.Unlock()
			p.parts.Lock()
			cancelled := p.cancel
			p.parts.Unlock()
			if cancelled {
				return fmt.Errorf("vk: %s: %w", op, ErrCancelled)
			}
			if err := d.usable(op); err != nil {
				return err
			}
			if time.Since(start) > d.hangAfter() {
				now, _ := at.Semaphore.value(op)
				return fmt.Errorf("vk: %s: %w: it has %d after %v, want %d", op, ErrUnsignalled, now, d.hangAfter(), at.Value)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
