package vk

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// Handles are the Vulkan objects of a device that the program has, for Adopt, or those of a Device,
// for other code of the program, as Device.Handles returns them. They are pointers of C, such as
// (*C.struct_VkDevice_T).
type Handles struct {
	Instance       unsafe.Pointer // VkInstance
	PhysicalDevice unsafe.Pointer // VkPhysicalDevice
	Device         unsafe.Pointer // VkDevice
	Queue          unsafe.Pointer // VkQueue, of a family that computes
	QueueFamily    uint32

	// GetInstanceProcAddr is the vkGetInstanceProcAddr that the instance was made through; nil:
	// that of the system's loader.
	GetInstanceProcAddr unsafe.Pointer
	// APIVersion is that of the instance's VkApplicationInfo; 0: the device's. At least 1.2.
	APIVersion Version
	// Extensions and Features name what was enabled when the device was made: Vulkan's extensions,
	// and the members of VkPhysicalDeviceFeatures and the like that were VK_TRUE. Caps.Features
	// then has no others, and what needs them is a *MissingError, as on a device without them.
	// Device.Handles lists all that this library has a use for.
	Extensions, Features []string
	// Lock is held around each vkQueueSubmit, since Vulkan has one thread at a time use a queue.
	// The program holds it when it submits to the queue, presents, or waits for queue or device to
	// be idle, and waits for nothing of this library meanwhile. nil: nothing else uses the queue.
	Lock sync.Locker
}

// Adopt makes a Device of one that the program has. It adds objects of its own and destroys only
// these: the handles belong to the program, which keeps them until the Device is closed, and they
// stay valid after that. Device.Close waits for the Device's own work, not for the queue's.
//
// What this library wrote is visible to the program's commands on the same queue after a barrier of
// the program's, on other queues after a Semaphore. HangAfter counts the program's work on the
// queue, too: it bounds the time that a submission may wait for it. A process uses one loader.
//
// Errors: *ArgumentError for a nil handle and an unknown family; *MissingError for Vulkan older
// than 1.2 or a family that does not compute; ErrNoLoader; those of Adapter.Open.
func Adopt(h Handles, o DeviceOptions) (*Device, error) {
	const op = "adopt device"
	names := []string{"Instance", "PhysicalDevice", "Device", "Queue"}
	if i := slices.Index([]unsafe.Pointer{h.Instance, h.PhysicalDevice, h.Device, h.Queue}, nil); i >= 0 {
		return nil, argument(op, names[i], "nil", "a handle of the program's")
	}
	in, err := adoptInstance(&h)
	if err != nil {
		return nil, err
	}
	a, err := h.adapter(op, in)
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	d := a.device(o)
	d.adopted, d.c.device = true, h.Device
	raw := (*C.VmAdapter)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmAdapter{}))))
	*raw = a.raw
	C.vm_entries(in.c, raw, d.c)
	C.free(unsafe.Pointer(raw))
	if h.Lock == nil {
		h.Lock = &sync.Mutex{}
	}
	return d.begun(vulkan.Queue(h.Queue), h.Lock)
}

// adoptInstance makes an Instance of one that the program has. It lists no devices.
func adoptInstance(h *Handles) (*Instance, error) {
	gipa := h.GetInstanceProcAddr
	if gipa == nil {
		var err error
		if gipa, err = load(""); err != nil {
			return nil, err
		}
	}
	loader.Lock()
	err := bindTo(gipa)
	loader.Unlock()
	if err != nil {
		return nil, fmt.Errorf("vk: adopt instance: %w: %v", ErrNoLoader, err)
	}
	if err := vulkan.InitInstance(vulkan.Instance(h.Instance)); err != nil {
		return nil, fmt.Errorf("vk: instance functions: %w: %v", ErrNoLoader, err)
	}
	in := &Instance{c: (*C.VmInstance)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmInstance{})))), adopted: true}
	in.c.gipa, in.c.instance = gipa, h.Instance
	return in, nil
}

// adapter is the device's, with what was enabled.
func (h *Handles) adapter(op string, in *Instance) (*Adapter, error) {
	var exts, features cstrings
	defer exts.free()
	defer features.free()
	for _, e := range h.Extensions {
		exts.add(e)
	}
	for _, f := range h.Features {
		features.add(f)
	}
	a, err := newAdapter(in, h.PhysicalDevice, func(raw *C.VmAdapter) {
		C.vm_restrict(raw, C.uint32_t(h.APIVersion), exts.ptr(), exts.len(), features.ptr(), features.len())
		raw.queueFamily, raw.queueFamilyFound = C.uint32_t(h.QueueFamily), 0
		if h.QueueFamily < uint32(raw.families) {
			family := raw.family[h.QueueFamily]
			raw.queueFamilyFound, raw.timestampBits = family.queueFlags&queueCompute, family.timestampValidBits
		}
	})
	if err != nil {
		return nil, err
	}
	if n := uint32(a.raw.families); h.QueueFamily >= n {
		return nil, argument(op, "QueueFamily", fmt.Sprint(h.QueueFamily), "one of the %d families", n)
	}
	return a, a.Usable()
}

// Handles returns the device's Vulkan objects, for other code of the program: kernels of another
// library, or a window. The device keeps them, and Close destroys those that it made.
func (d *Device) Handles() Handles {
	if d.c == nil {
		return Handles{}
	}
	a := d.adapter
	raw := (*C.VmAdapter)(C.calloc(2, C.size_t(unsafe.Sizeof(C.VmAdapter{}))))
	defer C.free(unsafe.Pointer(raw))
	both := unsafe.Slice(raw, 2)
	both[0] = a.raw
	C.vm_enabled(&both[0], &both[1])
	list := func(names []*C.char) (all []string) {
		for _, n := range names {
			all = append(all, C.GoString(n))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	var names [max(C.VM_MOST_EXTENSIONS, C.VM_MOST_FEATURES)]*C.char
	extensions := list(names[:C.vm_extensions(&both[1], &names[0])])
	features := list(names[:C.vm_features(&both[1], &names[0])])
	return Handles{Instance: unsafe.Pointer(a.instance.c.instance), PhysicalDevice: a.phys, Device: unsafe.Pointer(d.h),
		Queue: unsafe.Pointer(d.queue), QueueFamily: uint32(a.raw.queueFamily), GetInstanceProcAddr: a.instance.c.gipa,
		APIVersion: min(a.APIVersion, 1<<22|3<<12), Extensions: extensions, Features: features, Lock: d.queueMu}
}
