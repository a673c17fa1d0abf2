package vk

// #include "abi.h"
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// Memory says where a buffer lives.
type Memory int

const (
	// DeviceLocal memory is the device's own; the host reaches it through
	// Device.Upload and Device.Download, see Device.HostAccess.
	DeviceLocal Memory = iota
	// Upload memory is mapped and coherent, for the host to write.
	Upload
	// Readback memory is mapped, coherent and, where there is such a type, cached,
	// for the host to read.
	Readback
)

// BufferSpec describes a buffer: a label under which its bytes are counted, its
// size in bytes, at least 1, and where it lives (the zero value is DeviceLocal).
type BufferSpec struct {
	Label  string
	Size   uint64
	Memory Memory
	Export bool // other devices and APIs can have it, see Buffer.Export
}

// Buffer is a range of memory that kernels read and write.
type Buffer struct {
	dev    *Device
	spec   BufferSpec
	h      vulkan.Buffer
	mem    vulkan.DeviceMemory
	addr   uint64
	from   origin
	mapped []byte
	cached bool         // the host reads mapped at full speed
	refs   atomic.Int32 // the owner and each recorded command buffer
	closed atomic.Bool

	tracked atomic.Pointer[written] // see Track
}

// View is a byte range of a buffer. The zero View names no buffer.
type View struct {
	Buffer       *Buffer
	Offset, Size uint64
}

// IsZero reports whether the view names no buffer.
func (v View) IsZero() bool { return v.Buffer == nil }

// String reads "label"[first byte:byte after the last].
func (v View) String() string {
	if v.Buffer == nil {
		return "no buffer"
	}
	return fmt.Sprintf("%q[%d:%d]", v.Buffer.spec.Label, v.Offset, v.Offset+v.Size)
}

// Address returns the 64-bit device address of the view's first byte, 0 where the
// device has no bufferDeviceAddress.
func (v View) Address() uint64 {
	if v.Buffer == nil || v.Buffer.addr == 0 {
		return 0
	}
	return v.Buffer.addr + v.Offset
}

// NewBuffer allocates a buffer that kernels can use as storage and that copies
// can read and write. Its content is undefined.
//
// Errors: ErrArgument when the size is 0; ErrOutOfDeviceMemory, also for more than the
// largest heap or Caps.MaxBuffer; *MissingError for Export where the device has no such memory;
// ErrOutOfHostMemory; ErrDeviceLost, ErrClosed; the error of DeviceOptions.MemoryHook.
func (d *Device) NewBuffer(s BufferSpec) (*Buffer, error) {
	op := "new buffer " + s.Label
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if err := d.checkSize(op, s.Size); err != nil {
		return nil, err
	}
	if s.Export {
		if err := d.adapter.requires(op, "exportMemory"); err != nil {
			return nil, err
		}
	}
	if d.opts.MemoryHook != nil {
		if err := d.opts.MemoryHook(s.Size); err != nil {
			return nil, fmt.Errorf("vk: %s: %w", op, err)
		}
	}
	return d.newBuffer(op, s, origin{})
}

// checkSize demands a size that a buffer can have.
func (d *Device) checkSize(op string, size uint64) error {
	if size == 0 {
		return argument(op, "Size", "0", "at least 1 byte")
	}
	// Many drivers give more than MaxAllocation, which is all that they promise. So only
	// what no heap could hold is refused here.
	if most := d.adapter.largestMemory(); size > most {
		return fmt.Errorf("vk: %s: %w: %d bytes asked%s", op, ErrOutOfDeviceMemory, size, d.heapText(d.Caps().largestHeap()))
	}
	if most := d.Caps().MaxBuffer; most > 0 && size > most {
		return fmt.Errorf("vk: %s: %w: %d bytes asked, a buffer has at most %d", op, ErrOutOfDeviceMemory, size, most)
	}
	return nil
}

// newBuffer makes a buffer of checked size. Without an error the memory's origin is the buffer's.
func (d *Device) newBuffer(op string, s BufferSpec, from origin) (*Buffer, error) {
	b := &Buffer{dev: d, spec: s, from: from}
	address := d.Caps().Features["bufferDeviceAddress"]
	usage := vulkan.BufferUsageFlags(vulkan.BufferUsageStorageBufferBit |
		vulkan.BufferUsageTransferSrcBit | vulkan.BufferUsageTransferDstBit)
	if address {
		usage |= 0x20000 // SHADER_DEVICE_ADDRESS, newer than the binding
	}
	size := (s.Size + 3) &^ 3 // fills and word loads need whole words
	var h C.VmHandle
	code := C.vm_create_buffer(d.c, C.uint64_t(size), C.uint32_t(usage), b.handleTypes(), &h)
	if err := d.check(op, int(code)); err != nil {
		return nil, err
	}
	*(*C.VmHandle)(unsafe.Pointer(&b.h)) = h
	if err := b.allocate(op, address); err != nil {
		b.destroy()
		b.free()
		return nil, err
	}
	b.refs.Store(1)
	d.mu.Lock()
	d.memory[s.Label] += s.Size
	d.mu.Unlock()
	return b, nil
}

func (b *Buffer) allocate(op string, address bool) error {
	d := b.dev
	var req vulkan.MemoryRequirements
	vulkan.GetBufferMemoryRequirements(d.h, b.h, &req)
	req.Deref()
	req.Free()
	types, size, err := b.memoryTypes(op, req.MemoryTypeBits, uint64(req.Size))
	for _, t := range types {
		if err = b.allocateFrom(op, size, t, address); !errors.Is(err, ErrOutOfDeviceMemory) {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := d.check(op, int(vulkan.BindBufferMemory(d.h, b.h, b.mem, 0))); err != nil {
		return err
	}
	if address {
		b.addr = uint64(C.vm_buffer_address(d.c, handleValue(unsafe.Pointer(b.h))))
	}
	return nil
}

// allocateFrom gives the buffer memory of a type, mapped if the host is to reach it.
func (b *Buffer) allocateFrom(op string, size uint64, t memoryType, address bool) error {
	d := b.dev
	flag := C.int(0)
	if address {
		flag = 1
	}
	var mem C.VmHandle
	from, host := b.sharing(), unsafe.Pointer(unsafe.SliceData(b.from.host))
	code := int(C.vm_allocate(d.c, C.uint64_t(size), C.uint32_t(t.index), flag, &from, host, &mem))
	if err := d.refused(op, code); err != nil {
		return err
	}
	if err := d.checkHeap(op, code, t.of); err != nil {
		return fmt.Errorf("%w, %d bytes asked", err, size)
	}
	*(*C.VmHandle)(unsafe.Pointer(&b.mem)) = mem
	b.from.size, b.from.memoryType = size, t.index
	if b.from.host != nil {
		b.mapped, b.cached = b.from.host[:b.spec.Size], true
		return nil
	}
	if t.flags&hostFlags != hostFlags || b.spec.Memory == DeviceLocal && d.access == ByCopies {
		return nil
	}
	var p unsafe.Pointer
	if err := d.check(op, int(vulkan.MapMemory(d.h, b.mem, 0, vulkan.DeviceSize(b.spec.Size), 0, &p))); err != nil {
		if b.spec.Memory == DeviceLocal { // the host has no addresses left: copies reach it all the same
			return nil
		}
		return err
	}
	b.mapped, b.cached = unsafe.Slice((*byte)(p), b.spec.Size), t.flags&memHostCached != 0
	return nil
}

// Device returns the device that the buffer was made on.
func (b *Buffer) Device() *Device { return b.dev }

// Label returns the label that the buffer was made with.
func (b *Buffer) Label() string { return b.spec.Label }

// Size returns the buffer's size in bytes.
func (b *Buffer) Size() uint64 { return b.spec.Size }

// Mapped returns the buffer's bytes as the host sees them, nil for DeviceLocal.
// They must not be used after Close.
func (b *Buffer) Mapped() []byte {
	if b.spec.Memory == DeviceLocal {
		return nil
	}
	return b.mapped
}

// View returns the range [offset, offset+size) of the buffer. The range is
// checked where it is used.
func (b *Buffer) View(offset, size uint64) View { return View{b, offset, size} }

// Whole returns the view of all bytes.
func (b *Buffer) Whole() View {
	if b == nil {
		return View{}
	}
	return View{b, 0, b.spec.Size}
}

// Close frees the buffer. If recorded commands still use it, it is freed when the last of
// them is closed. Close always returns nil.
func (b *Buffer) Close() error {
	if b == nil || b.closed.Swap(true) {
		return nil
	}
	b.release()
	return nil
}

func (b *Buffer) retain() { b.refs.Add(1) }

func (b *Buffer) release() {
	if b.refs.Add(-1) > 0 {
		return
	}
	d := b.dev
	d.mu.Lock()
	if d.memory[b.spec.Label] -= b.spec.Size; d.memory[b.spec.Label] == 0 {
		delete(d.memory, b.spec.Label)
	}
	left := d.left()
	if !left {
		b.destroy()
	}
	d.mu.Unlock()
	if !left {
		b.free()
	}
}

// destroy ends the buffer without its memory. While others use the device, its mutex is held:
// were a set that had the buffer written anew meanwhile, the validation layer would call the
// commands invalid that are recorded with it.
func (b *Buffer) destroy() { vulkan.DestroyBuffer(b.dev.h, b.h, nil) }

func (b *Buffer) free() {
	if b.mapped != nil && b.from.host == nil {
		vulkan.UnmapMemory(b.dev.h, b.mem)
	}
	vulkan.FreeMemory(b.dev.h, b.mem, nil)
	b.mapped = nil
	b.from.giveBack(b)
}

// overlaps reports whether the views have bytes in common.
func (v View) overlaps(w View) bool {
	return v.Buffer == w.Buffer && v.Offset < w.Offset+w.Size && w.Offset < v.Offset+v.Size
}

// check reports whether the view lies inside an open buffer of device d.
func (v View) check(d *Device, op, arg string) error {
	switch {
	case v.Buffer == nil:
		return argument(op, arg, "no buffer", "a view of a buffer")
	case v.Buffer.closed.Load():
		return fmt.Errorf("vk: %s: %s: buffer %q %w", op, arg, v.Buffer.spec.Label, ErrClosed)
	case v.Buffer.dev != d:
		return argument(op, arg, "a buffer of another device", "a buffer of %s", d.adapter.Name)
	case v.Size == 0 || v.Offset > v.Buffer.spec.Size || v.Size > v.Buffer.spec.Size-v.Offset:
		return argument(op, arg, v.String(), "a non-empty range within the buffer's %d bytes", v.Buffer.spec.Size)
	}
	return nil
}
