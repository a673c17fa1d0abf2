package vk

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// HeapBudget bounds what this process may use of one of a device's memories now.
type HeapBudget struct {
	Heap
	Budget uint64 // bytes that the driver thinks the process can have, those in use included
	Usage  uint64 // bytes that it has
}

// Free returns the number of further bytes that the process may expect to get.
func (b HeapBudget) Free() uint64 { return b.Budget - min(b.Usage, b.Budget) }

// MemoryBudget returns how much of each of Caps.Heaps the process may use now, in their order; nil
// where the driver does not tell, without VK_EXT_memory_budget. Other programs change it at any
// time: it is an estimate.
func (a *Adapter) MemoryBudget() []HeapBudget {
	if a.instance == nil || a.instance.c == nil || a.raw.hasBudget == 0 {
		return nil
	}
	b := (*C.VmMemoryBudget)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmMemoryBudget{}))))
	defer C.free(unsafe.Pointer(b))
	if C.vm_memory_budget(a.instance.c, a.phys, b) < 0 {
		return nil
	}
	list := make([]HeapBudget, len(a.Caps.Heaps))
	for i, h := range a.Caps.Heaps {
		list[i] = HeapBudget{h, uint64(b.heapBudget[i]), uint64(b.heapUsage[i])}
	}
	return list
}

// MemoryBudget is Adapter.MemoryBudget; nil also for a device that is closed.
func (d *Device) MemoryBudget() []HeapBudget {
	if d.closed.Load() || d.absent {
		return nil
	}
	return d.adapter.MemoryBudget()
}

// heapText says how full a memory is, at the end of an error.
func (d *Device) heapText(heap int) string {
	heaps, budget := d.Caps().Heaps, d.MemoryBudget()
	if heap < 0 || heap >= len(heaps) {
		return ""
	}
	kind := "host"
	if heaps[heap].DeviceLocal {
		kind = "device"
	}
	text := fmt.Sprintf(" (memory %d, of the %s: %d bytes", heap, kind, heaps[heap].Bytes)
	if budget == nil {
		return text + "; the driver does not tell what is free)"
	}
	return text + fmt.Sprintf(", budget %d, in use %d)", budget[heap].Budget, budget[heap].Usage)
}

// largestHeap is that of the device's own memories, which most buffers are in; -1 without one.
func (c *Caps) largestHeap() int {
	at := -1
	for i, h := range c.Heaps {
		if h.DeviceLocal && (at < 0 || h.Bytes > c.Heaps[at].Bytes) {
			at = i
		}
	}
	return at
}
