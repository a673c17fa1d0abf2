package gpu

import (
	"fmt"

	"github.com/vkmla/vkmla/vk"
)

// MemoryError says that a model does not fit into a device's memory. It matches
// vk.ErrOutOfDeviceMemory.
type MemoryError struct {
	Need uint64 // bytes of weights, and of what steps work with
	Free uint64 // bytes that the device has for them
}

// Error says what else can be done.
func (e *MemoryError) Error() string {
	return fmt.Sprintf("gpu: the model does not fit: it needs %d bytes (%.1f GiB) of device memory, %d (%.1f GiB) are free; "+
		"--experts cpu leaves the experts in host memory", e.Need, float64(e.Need)/(1<<30), e.Free, float64(e.Free)/(1<<30))
}

// Is reports whether target is vk.ErrOutOfDeviceMemory.
func (e *MemoryError) Is(target error) bool { return target == vk.ErrOutOfDeviceMemory }

// Free returns the bytes that the device may have left for the program, in the largest of its
// memories.
func Free(dev *vk.Device) (free uint64) {
	budget := dev.MemoryBudget()
	for _, b := range budget {
		if b.DeviceLocal {
			free = max(free, b.Free())
		}
	}
	if budget != nil {
		return free
	}
	used := uint64(0)
	for _, n := range dev.MemoryInUse() {
		used += n
	}
	return dev.Caps().HeapBytes - min(used, dev.Caps().HeapBytes)
}
