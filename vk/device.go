package vk

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// DeviceOptions configures Adapter.Open. The zero value keeps no pipeline cache
// on disk.
type DeviceOptions struct {
	// PipelineCacheDir is a directory for compiled pipelines; "" keeps none. They are written
	// when no more wait to be compiled, and by Close. It is only an optimisation: a missing,
	// unwritable or corrupt cache is ignored.
	PipelineCacheDir string
	// MemoryHook, when set, is called before each allocation of device or staging
	// memory with its size in bytes. If it returns an error, nothing is allocated and
	// the caller gets the error. A server can keep a budget with it, a test can let the
	// n-th allocation fail. Caches that grow try less if the error wraps
	// ErrOutOfDeviceMemory. Several goroutines may call it at once.
	MemoryHook func(size uint64) error
	// Statistics keeps what the driver's compiler says about each kernel, for
	// Device.Statistics, on devices with the feature pipelineExecutableInfo. It may
	// make compiling slower.
	Statistics bool
	// Listings keeps what it makes of each kernel as text, for Device.Listings. Drivers compile
	// anew what they have in a cache.
	Listings bool
	// WholeModules gives drivers all of a kernel's module, for tools that look at or change it on
	// the way. Else what its specialisation constants never take is left out.
	WholeModules bool
	// HangAfter bounds the time that the device is busy without finishing a submission, or a part
	// of one; then it counts as hung, see ErrDeviceHung. 0: 2 minutes, or 20 for a processor, which
	// may have other work; negative: no time is too long.
	HangAfter time.Duration
	// Profile names the tuning profile that the packages above take their numbers from,
	// such as "generic"; "" leaves the choice to them. This package makes nothing of it.
	Profile string
	// Staging has the host reach DeviceLocal memory by copies even where it could map it, as on a
	// GPU with memory of its own. It serves tests and comparisons.
	Staging bool
}

// Device is an open device with one compute queue. Its methods may be called
// from several goroutines.
type Device struct {
	adapter *Adapter
	opts    DeviceOptions
	access  HostAccess
	c       *C.VmDevice
	h       vulkan.Device
	queue   vulkan.Queue

	queueMu sync.Locker // vkQueueSubmit wants external synchronisation
	adopted bool        // the handles are the program's, see Adopt
	absent  bool        // there is no handle, see Absent
	lost    atomic.Bool
	hung    atomic.Bool
	why     struct { // of the loss
		once sync.Once
		text string
	}
	closed atomic.Bool // no call begins any more
	gone   atomic.Bool // the handle and everything left open are destroyed

	flights  flights
	waiters  sync.RWMutex // read while the host waits for a semaphore
	starving starving

	mu      sync.Mutex
	kernels map[kernelKey]*Kernel
	layouts map[layoutKey]*layout
	sets    descriptorAllocator
	fences  fenceStore
	memory  map[string]uint64 // bytes by label
	signals int               // semaphores
	notes   sync.Map          // of packages above, see door.Notes
	cache   pipelineCache
	dummy   *Buffer
	staging staging

	waiting   []*Kernel // to be compiled, under mu
	compilers int       // goroutines that compile, under mu
	compiling sync.WaitGroup
}

// Open opens the adapter: a device with one compute queue and every feature that
// this library can use and the adapter has.
//
// Errors: *MissingError when the adapter is older than Vulkan 1.2 or has no
// compute queue; ErrClosed when its instance is closed; ErrOutOfHostMemory,
// ErrOutOfDeviceMemory, ErrDeviceLost; the error of DeviceOptions.MemoryHook.
func (a *Adapter) Open(o DeviceOptions) (*Device, error) {
	if err := a.Usable(); err != nil {
		return nil, err
	}
	if a.instance.c == nil {
		return nil, fmt.Errorf("vk: open %s: instance %w", a.Name, ErrClosed)
	}
	d := a.device(o)
	raw := (*C.VmAdapter)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmAdapter{}))))
	*raw = a.raw
	r := C.vm_create_device(a.instance.c, a.phys, raw, d.c)
	C.free(unsafe.Pointer(raw))
	if err := result("open "+a.Name, int(r)); err != nil {
		C.free(unsafe.Pointer(d.c))
		return nil, err
	}
	var queue vulkan.Queue // handles are received in locals: cgo forbids pointers into Go structures
	vulkan.GetDeviceQueue(vulkan.Device(d.c.device), uint32(a.raw.queueFamily), 0, &queue)
	return d.begun(queue, &sync.Mutex{})
}

// Absent returns a device that is not here, as its adapter says: a kernel is checked for it and
// never compiled, and what needs a driver fails with ErrArgument. It serves plans.
func (a *Adapter) Absent(o DeviceOptions) *Device {
	d := a.device(o)
	C.free(unsafe.Pointer(d.c))
	d.c, d.absent = nil, true
	return d
}

// device is one without a handle.
func (a *Adapter) device(o DeviceOptions) *Device {
	d := &Device{
		adapter: a, opts: o,
		c:       (*C.VmDevice)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmDevice{})))),
		kernels: map[kernelKey]*Kernel{},
		layouts: map[layoutKey]*layout{},
		memory:  map[string]uint64{},
		staging: staging{turns: make(chan struct{}, stagings)},
	}
	if !o.Staging {
		d.access = a.HostAccess()
	}
	return d
}

// begun is the device with its handle and a queue, ready for use.
func (d *Device) begun(queue vulkan.Queue, lock sync.Locker) (*Device, error) {
	d.h, d.queue, d.queueMu = vulkan.Device(d.c.device), queue, lock
	d.sets.free = map[int][]vulkan.DescriptorSet{}
	d.cache.open(d)
	var err error
	if d.dummy, err = d.NewBuffer(BufferSpec{Label: "dummy", Size: 256}); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// nobody is the adapter of a nil device. Code that chooses by its limits fails later, with
// an error that says so.
var nobody = &Adapter{Name: "no device"}

// Adapter returns the adapter that the device was opened from.
func (d *Device) Adapter() *Adapter {
	if d == nil || d.adapter == nil {
		return nobody
	}
	return d.adapter
}

// Caps returns what the device offers.
func (d *Device) Caps() *Caps { return &d.Adapter().Caps }

// Dummy is 256 bytes of device memory to bind where an optional buffer is absent.
func (d *Device) Dummy() View {
	if d == nil {
		return View{}
	}
	return d.dummy.Whole()
}

// MemoryInUse returns the bytes allocated now, by the label of their buffers.
func (d *Device) MemoryInUse() map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.memory)
}

// Err says what is wrong with the device: nil, ErrDeviceLost, ErrDeviceHung or ErrClosed. It asks
// neither driver nor device and does not wait: a device may hang unnoticed while nothing waits.
func (d *Device) Err() error { return d.usable("device") }

// left reports whether the driver's objects are not to be touched any more: they are destroyed
// with the device, or a hung device may still use them.
func (d *Device) left() bool { return d.gone.Load() || d.hung.Load() }

// Close waits for the device to be idle and releases it with everything that it owns.
// Buffers and commands must have been closed before. The error lists the bytes of buffers
// that were not, by label. Closing those afterwards is allowed and does nothing.
//
// Of commands in several parts that are still with the device, it withholds what it can. A device
// whose work does not end within DeviceOptions.HangAfter is left as it is, with the error
// ErrDeviceHung.
func (d *Device) Close() error {
	if d == nil || d.adapter == nil || d.closed.Swap(true) || d.absent {
		return nil
	}
	d.compiling.Wait()
	if d.settle(); d.hung.Load() {
		d.adapter.instance.hung.Store(true)
		return hung("close device")
	}
	d.waiters.Lock()
	defer d.waiters.Unlock()
	for stage := d.staging.take(); stage != nil; stage = d.staging.take() {
		stage.Close()
	}
	d.starving.word.Swap(nil).Close()
	if d.dummy != nil {
		d.dummy.Close()
	}
	d.cache.close(d)
	for _, k := range d.kernels {
		k.destroy()
	}
	d.sets.close(d)
	d.fences.close(d)
	for _, l := range d.layouts {
		l.destroy(d)
	}
	var left error
	if n := len(d.memory); n > 0 {
		left = fmt.Errorf("vk: close device: buffers still open, bytes by label: %v", d.memory)
	}
	if d.signals > 0 {
		left = errors.Join(left, fmt.Errorf("vk: close device: %d semaphores still open", d.signals))
	}
	d.gone.Store(true)
	if d.adopted {
		_ = d.adapter.instance.Close()
	} else {
		vulkan.DestroyDevice(d.h, nil)
	}
	C.free(unsafe.Pointer(d.c))
	d.c = nil
	return left
}

// check turns a result code into an error and remembers that the device is lost.
func (d *Device) check(op string, code int) error {
	if code >= 0 {
		return nil
	}
	return d.checkHeap(op, code, d.Caps().largestHeap())
}

// checkHeap is check for a call that takes memory of a heap.
func (d *Device) checkHeap(op string, code, heap int) error {
	err := result(op, code)
	if err == nil {
		return nil
	}
	e := err.(*resultError)
	switch vulkan.Result(code) {
	case vulkan.ErrorDeviceLost:
		d.lose(true)
		e.detail = d.why.text
	case vulkan.ErrorOutOfDeviceMemory:
		e.detail = d.heapText(heap)
	}
	return e
}

// usable fails when the device is closed or lost, or there is none.
func (d *Device) usable(op string) error {
	if d == nil || d.adapter == nil {
		return argument(op, "device", "nil", "a device that Adapter.Open returned")
	}
	if d.absent {
		return argument(op, "device", d.adapter.Name+", which is not here", "a device that Adapter.Open returned")
	}
	if d.closed.Load() {
		return fmt.Errorf("vk: %s: device %w", op, ErrClosed)
	}
	if d.hung.Load() {
		return hung(op)
	}
	if d.lost.Load() {
		return d.lossError(op)
	}
	return nil
}

// handleValue passes one of the binding's non-dispatchable handles to our own C functions.
func handleValue(h unsafe.Pointer) C.VmHandle { return C.VmHandle(uintptr(h)) }
