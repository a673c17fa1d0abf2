package vk

// #include "abi.h"
import "C"

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/vkmla/vkmla/internal/door"
)

// origin says where a buffer's memory comes from, if it is more than the device's.
type origin struct {
	handle     *door.Exported // imported
	host       []byte         // the program's own
	pin        *runtime.Pinner
	size       uint64 // of the allocation
	memoryType uint32
}

// hosted are the buffers over memory of the program. The collector finds that memory, and what pins
// it, until the buffers are freed: never, beside a hung device.
var hosted sync.Map

// driver is the UUID of the device's driver: with that of the device it says who can import.
func (d *Device) driver() string {
	return hex.EncodeToString(C.GoBytes(unsafe.Pointer(&d.adapter.raw.props11.driverUUID), 16))
}

// export is share.Export.
func (b *Buffer) export() (door.Exported, error) {
	if b == nil {
		return door.Exported{}, argument("export", "buffer", "nil", "one that Device.NewBuffer returned")
	}
	op, d := "export buffer "+b.spec.Label, b.dev
	if err := d.usable(op); err != nil {
		return door.Exported{}, err
	}
	if b.closed.Load() {
		return door.Exported{}, fmt.Errorf("vk: %s: buffer %w", op, ErrClosed)
	}
	if !b.spec.Export {
		return door.Exported{}, argument(op, "BufferSpec.Export", "false", "true when the buffer is made")
	}
	var h C.uintptr_t
	if err := d.check(op, int(C.vm_memory_handle(d.c, handleValue(unsafe.Pointer(b.mem)), &h))); err != nil {
		return door.Exported{}, err
	}
	return door.Exported{Handle: uintptr(h), Device: d.adapter.UUID, Driver: d.driver(), Size: b.spec.Size,
		Allocated: b.from.size, MemoryType: b.from.memoryType, Dedicated: d.dedicated()}, nil
}

// dedicated reports whether memory that is shared has to be one buffer's alone.
func (d *Device) dedicated() bool {
	return d.adapter.raw.memoryHandles&C.VM_EXTERNAL_DEDICATED_ONLY != 0
}

// importBuffer is share.Import.
func (d *Device) importBuffer(label string, m Memory, x door.Exported) (*Buffer, error) {
	op := "import buffer " + label
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if err := d.adapter.requires(op, "importMemory"); err != nil {
		return nil, err
	}
	if err := d.same(op, x); err != nil {
		return nil, err
	}
	bad := func(arg string, got any, want string, a ...any) (*Buffer, error) {
		return nil, argument(op, arg, fmt.Sprint(got), want, a...)
	}
	raw := &d.adapter.raw.memory
	switch n := uint32(raw.memoryTypeCount); {
	case m < DeviceLocal || m > Readback:
		return bad("memory", int(m), "DeviceLocal, Upload or Readback")
	case x.Allocated < x.Size:
		return bad("Allocated", x.Allocated, "at least the buffer's %d bytes", x.Size)
	case x.MemoryType >= n:
		return bad("MemoryType", x.MemoryType, "0 to %d", n-1)
	case m != DeviceLocal && uint32(raw.memoryTypes[x.MemoryType].propertyFlags)&hostFlags != hostFlags:
		return bad("memory", "Upload or Readback", "DeviceLocal, for memory that the host does not reach")
	}
	if err := cmp.Or(d.checkSize(op, x.Size), checkHandle(op, x.Handle, x.Allocated)); err != nil {
		return nil, err
	}
	var b *Buffer
	err := passHandle(op, x.Handle, func(h uintptr) (err error) {
		x.Handle = h
		b, err = d.newBuffer(op, BufferSpec{Label: label, Size: x.Size, Memory: m}, origin{handle: &x})
		return err
	})
	return b, err
}

// passHandle has an import take a handle. If it succeeds the caller's is closed.
func passHandle(op string, h uintptr, take func(uintptr) error) error {
	own, err := passedHandle(op, h)
	if err != nil {
		return err
	}
	if err := take(own); err != nil {
		refuseHandle(own, h)
		return err
	}
	_ = closeHandle(h)
	return nil
}

// same demands something of this device and driver.
func (d *Device) same(op string, x door.Exported) error {
	if x.Device != d.adapter.UUID {
		return argument(op, "Device", fmt.Sprintf("UUID %q", x.Device), "%q, that of %s", d.adapter.UUID, d.adapter.Name)
	}
	if own := d.driver(); x.Driver != own {
		return argument(op, "Driver", fmt.Sprintf("UUID %q", x.Driver), "%q, that of %s", own, d.adapter.DriverName)
	}
	return nil
}

// importHost is share.ImportHost.
func (d *Device) importHost(label string, memory []byte, size uint64) (*Buffer, error) {
	op := "import memory " + label
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if err := d.adapter.requires(op, "importHostMemory"); err != nil {
		return nil, err
	}
	p, align := unsafe.Pointer(unsafe.SliceData(memory)), d.hostAlignment()
	switch n := uint64(len(memory)); {
	case uint64(uintptr(p))%align != 0:
		return nil, argument(op, "memory", fmt.Sprintf("address %p", p), "a multiple of %d", align)
	case n == 0 || n%align != 0:
		return nil, argument(op, "memory", fmt.Sprintf("%d bytes", n), "a multiple of %d", align)
	case size == 0 || size > n:
		return nil, argument(op, "size", fmt.Sprint(size), "1 to the memory's %d bytes", n)
	}
	if err := d.checkSize(op, size); err != nil {
		return nil, err
	}
	from := origin{host: memory, pin: &runtime.Pinner{}}
	from.pin.Pin(p)
	b, err := d.newBuffer(op, BufferSpec{Label: label, Size: size, Memory: Readback}, from)
	if err != nil {
		from.pin.Unpin()
		return nil, err
	}
	hosted.Store(b, nil)
	return b, nil
}

// giveBack ends the hold on memory of the program.
func (o *origin) giveBack(b *Buffer) {
	if o.pin != nil {
		hosted.Delete(b)
		o.pin.Unpin()
		o.host, o.pin = nil, nil
	}
}

// hostAlignment is share.HostAlignment.
func (d *Device) hostAlignment() uint64 { return cmp.Or(d.Caps().hostAlignment, 1) }

// handleTypes are the kinds of handles that a buffer is made for.
func (b *Buffer) handleTypes() (t C.uint32_t) {
	if b.from.host != nil {
		t |= C.VM_HANDLE_HOST
	}
	if b.spec.Export || b.from.handle != nil {
		t |= C.VM_HANDLE
	}
	return t
}

// sharing returns what an allocation says of others.
func (b *Buffer) sharing() (from C.VmOrigin) {
	x := b.from.handle
	if b.spec.Export {
		from.exported = 1
	}
	if x != nil {
		from.imported, from.handle = 1, C.uintptr_t(x.Handle)
	}
	if b.spec.Export && b.dev.dedicated() || x != nil && x.Dedicated {
		from.dedicated = handleValue(unsafe.Pointer(b.h))
	}
	return from
}

// memoryTypes lists the types that the buffer's memory may have, best first, and its bytes.
func (b *Buffer) memoryTypes(op string, allowed uint32, size uint64) ([]memoryType, uint64, error) {
	d, c := b.dev, b.dev.Caps()
	none := fmt.Errorf("vk: %s: %w: no suitable memory type", op, ErrOutOfDeviceMemory)
	switch x := b.from.handle; {
	case x != nil && (allowed>>x.MemoryType&1 == 0 || x.Allocated < size):
		return nil, 0, argument(op, "Allocated, MemoryType", fmt.Sprintf("%d bytes of type %d", x.Allocated, x.MemoryType),
			"at least %d of one of the types %#b", size, allowed)
	case x != nil:
		t := d.adapter.raw.memory.memoryTypes[x.MemoryType]
		return []memoryType{{index: x.MemoryType, flags: uint32(t.propertyFlags), of: int(t.heapIndex)}}, x.Allocated, nil
	case b.from.host != nil:
		if n := uint64(len(b.from.host)); n < size {
			return nil, 0, argument(op, "memory", fmt.Sprintf("%d bytes", n), "%d, which a buffer takes", size)
		}
		var types C.uint32_t
		code := int(C.vm_host_types(d.c, unsafe.Pointer(unsafe.SliceData(b.from.host)), &types))
		if err := cmp.Or(d.refused(op, code), d.check(op, code)); err != nil {
			return nil, 0, err
		}
		var list []memoryType
		for _, t := range c.hostVisible {
			if uint32(types)&allowed>>t.index&1 == 1 {
				list = append(list, t)
			}
		}
		return list, uint64(len(b.from.host)), none
	}
	return c.memoryTypes(b.spec.Memory, allowed, d.access, d.adapter.shares()), size, none
}

// refused is the error for a handle or an address that the driver does not take.
func (d *Device) refused(op string, code int) error {
	const invalidHandle = -1000072003
	if code != invalidHandle {
		return nil
	}
	return argument(op, "handle or memory", fmt.Sprintf("one that the driver refuses (VkResult %d)", code),
		"what %s, driver %s, can import", d.adapter.Name, d.adapter.DriverName)
}
