// Package share shares memory, semaphores and devices of package vk with CUDA, HIP, other Vulkan
// code of the program, and other processes.
//
// Nothing is copied. A [vk.Semaphore] orders who writes and who reads, or waiting does.
package share

import (
	"sync"
	"unsafe"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/vk"
)

// Exported describes memory or a semaphore to other APIs and programs.
type Exported struct {
	// Handle is a file descriptor, opaque to all but drivers; on Windows a HANDLE. It is the
	// caller's: it goes to an import that succeeds, or is closed.
	Handle uintptr

	Device string // UUID of the device, 32 hexadecimal digits, as vk.Adapter.UUID
	Driver string // UUID of the driver

	// Of memory only:
	Size       uint64 // bytes of the buffer, which begins with the memory
	Allocated  uint64 // bytes of the memory: CUDA_EXTERNAL_MEMORY_HANDLE_DESC.size
	MemoryType uint32 // index of Vulkan's type
	Dedicated  bool   // the memory is the buffer's alone: CUDA_EXTERNAL_MEMORY_DEDICATED
}

// Close closes the handle, if no import took it. A handle of 0 is none.
func (x Exported) Close() error { return door.CloseHandle(x.Handle) }

// Export returns a handle of a buffer's memory, for another device of the same GPU and driver, in
// this process or another, or for CUDA or HIP (cudaImportExternalMemory). Each call returns another
// handle.
//
// The memory lives until the buffer and all that was imported are closed, in any order.
//
// Errors: vk.ErrArgument for a buffer without vk.BufferSpec.Export; vk.ErrClosed, vk.ErrDeviceLost,
// vk.ErrOutOfHostMemory, vk.ErrDriver for want of file descriptors.
func Export(b *vk.Buffer) (Exported, error) {
	x, err := door.ExportBuffer(b)
	return Exported(x), err
}

// Import makes a buffer of memory that Export told of, of this or another vk.Device, process or
// program; see Export for who may. It has the memory's content. Label and m are the new buffer's:
// with vk.Upload or vk.Readback it is mapped, if its owner made it so.
//
// Without an error the handle is taken. With one it is still the caller's.
//
// Errors: *vk.MissingError where the device imports no memory; *vk.ArgumentError for memory of
// another device or driver, with both UUIDs, for sizes and types that do not fit, and for a handle
// that the driver refuses; vk.ErrOutOfDeviceMemory, vk.ErrOutOfHostMemory, vk.ErrDeviceLost,
// vk.ErrClosed.
func Import(dev *vk.Device, label string, m vk.Memory, x Exported) (*vk.Buffer, error) {
	b, err := door.ImportBuffer(dev, label, int(m), door.Exported(x))
	buffer, _ := b.(*vk.Buffer)
	return buffer, err
}

// ImportHost makes a buffer of memory that the program has: kernels and copies read and write the
// bytes where they are. vk.Buffer.Mapped returns them. Both the address and the length are
// multiples of HostAlignment; the buffer has the first size bytes.
//
// Memory may be Go's, which a large slice often is at such an address, C's, or mapped from a file.
// Go's is pinned until the buffer is freed. The rest must stay mapped for so long: until the buffer
// and all commands recorded with it are closed.
//
// Errors: *vk.MissingError where the device imports none; *vk.ArgumentError for an address, a
// length or a size that is none, and for memory that the driver refuses, such as that of another
// device; vk.ErrOutOfDeviceMemory, vk.ErrOutOfHostMemory, vk.ErrDeviceLost, vk.ErrClosed.
func ImportHost(dev *vk.Device, label string, memory []byte, size uint64) (*vk.Buffer, error) {
	b, err := door.ImportHost(dev, label, memory, size)
	buffer, _ := b.(*vk.Buffer)
	return buffer, err
}

// HostAlignment returns the bytes that addresses and lengths of memory for ImportHost are multiples
// of, a page; 1 where the device imports none.
func HostAlignment(dev *vk.Device) uint64 { return door.HostAlignment(dev) }

// ExportSemaphore returns a handle of a semaphore, for another device of the same GPU and driver,
// in this process or another, or for CUDA or HIP
// (CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD). Each call returns another handle. The
// semaphore lives until all are closed.
//
// Errors: vk.ErrArgument for a semaphore that was not made for it; vk.ErrClosed, vk.ErrDeviceLost,
// vk.ErrOutOfHostMemory, vk.ErrDriver for want of file descriptors.
func ExportSemaphore(s *vk.Semaphore) (Exported, error) {
	x, err := door.ExportSemaphore(s)
	return Exported(x), err
}

// ImportSemaphore makes a semaphore of one that ExportSemaphore told of: both are one number.
// Without an error the handle is taken. With one it is still the caller's.
//
// Errors: *vk.MissingError where the device imports none; *vk.ArgumentError for a semaphore of
// another device or driver, with both UUIDs, and for a handle that the driver refuses;
// vk.ErrClosed, vk.ErrDeviceLost, vk.ErrOutOfHostMemory, vk.ErrOutOfDeviceMemory.
func ImportSemaphore(dev *vk.Device, x Exported) (*vk.Semaphore, error) {
	s, err := door.ImportSemaphore(dev, door.Exported(x))
	semaphore, _ := s.(*vk.Semaphore)
	return semaphore, err
}

// Handles are the Vulkan objects of a device that the program has, for Adopt, or those of a
// vk.Device, for other code of the program, as HandlesOf returns them. They are pointers of C, such
// as (*C.struct_VkDevice_T).
type Handles struct {
	// VkInstance, VkPhysicalDevice, VkDevice, and a VkQueue of a family that computes.
	Instance, PhysicalDevice, Device, Queue unsafe.Pointer
	QueueFamily                             uint32

	// GetInstanceProcAddr is the vkGetInstanceProcAddr that the instance was made through; nil:
	// that of the system's loader.
	GetInstanceProcAddr unsafe.Pointer
	// APIVersion is that of the instance's VkApplicationInfo; 0: the device's. At least 1.2.
	APIVersion uint32
	// Extensions and Features name what was enabled when the device was made: Vulkan's extensions,
	// and the members of VkPhysicalDeviceFeatures and the like that were VK_TRUE. vk.Caps.Features
	// then has no others, and what needs them is a *vk.MissingError, as on a device without them.
	// HandlesOf lists all that this library has a use for.
	Extensions, Features []string
	// Lock is held around each vkQueueSubmit, since Vulkan has one thread at a time use a queue.
	// The program holds it when it submits to the queue, presents, or waits for queue or device to
	// be idle, and waits for nothing of this library meanwhile. nil: nothing else uses the queue.
	Lock sync.Locker
}

// Adopt makes a vk.Device of one that the program has. It adds objects of its own and destroys only
// these: the handles belong to the program, which keeps them until the vk.Device is closed, and
// they stay valid after that. vk.Device.Close waits for the device's own work, not for the queue's.
//
// What this library wrote is visible to the program's commands on the same queue after a barrier of
// the program's, on other queues after a semaphore. vk.DeviceOptions.HangAfter counts the program's
// work on the queue, too: it bounds the time that a submission may wait for it. A process uses one
// loader.
//
// Errors: *vk.ArgumentError for a nil handle and an unknown family; *vk.MissingError for Vulkan
// older than 1.2 or a family that does not compute; vk.ErrNoLoader; those of vk.Adapter.Open.
func Adopt(h Handles, o vk.DeviceOptions) (*vk.Device, error) {
	d, err := door.Adopt(door.Handles(h), o)
	dev, _ := d.(*vk.Device)
	return dev, err
}

// HandlesOf returns a device's Vulkan objects, for other code of the program: kernels of another
// library, or a window. The device keeps them, and Close destroys those that it made.
func HandlesOf(dev *vk.Device) Handles { return Handles(door.HandlesOf(dev)) }
