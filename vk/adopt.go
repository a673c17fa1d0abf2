package vk

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	vulkan "github.com/goki/vulkan"
	"github.com/vkmla/vkmla/internal/door"
)

// handles are those of a device that the program has.
type handles door.Handles

// adopt is share.Adopt.
func adopt(h handles, o DeviceOptions) (*Device, error) {
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
func adoptInstance(h *handles) (*Instance, error) {
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
func (h *handles) adapter(op string, in *Instance) (*Adapter, error) {
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

// handles returns share.HandlesOf.
func (d *Device) handles() door.Handles {
	if d == nil || d.c == nil {
		return door.Handles{}
	}
	a := d.adapter
	raw := (*C.VmAdapter)(C.calloc(2, C.size_t(unsafe.Sizeof(C.VmAdapter{}))))
	defer C.free(unsafe.Pointer(raw))
	both := unsafe.Slice(raw, 2)
	both[0] = a.raw
	C.vm_enabled(&both[0], &both[1])
	var names [C.VM_MOST_EXTENSIONS]*C.char
	var extensions []string
	for _, n := range names[:C.vm_extensions(&both[1], &names[0])] {
		extensions = append(extensions, C.GoString(n))
	}
	slices.Sort(extensions)
	enabled := featuresOf(&both[1])
	maps.DeleteFunc(enabled, func(_ string, has bool) bool { return !has })
	return door.Handles{Instance: unsafe.Pointer(a.instance.c.instance), PhysicalDevice: a.phys, Device: unsafe.Pointer(d.h),
		Queue: unsafe.Pointer(d.queue), QueueFamily: uint32(a.raw.queueFamily), GetInstanceProcAddr: a.instance.c.gipa,
		APIVersion: min(uint32(a.APIVersion), 1<<22|3<<12), Lock: d.queueMu,
		Extensions: extensions, Features: slices.Sorted(maps.Keys(enabled))}
}
