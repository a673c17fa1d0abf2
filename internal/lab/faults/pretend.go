//go:build linux

package faults

import (
	"slices"
	"sync/atomic"

	"github.com/vkmla/vkmla/vk"
)

// pretend is the interposer's struct pretend.
type pretend struct {
	driver, span, module     atomic.Uint32
	ids, values              [2]atomic.Uint32
	changed                  atomic.Uint32
	fault, faults            atomic.Uint32
	enabled, asked           atomic.Uint32
	budget, budgetMB, usedMB atomic.Uint32
	kind, most               atomic.Uint32
	types, heaps             atomic.Uint32
	typeFlags, typeHeap      [maxTypes]atomic.Uint32
	heapFlags, heapKB        [maxHeaps]atomic.Uint32
	heapUsed                 [maxHeaps]atomic.Uint32
	refused                  atomic.Uint32
	says                     atomic.Uint32
	units                    [3]atomic.Uint32
	vendor, chip             atomic.Uint32
}

const maxTypes, maxHeaps = 8, 4

// Memories describes what a device lists of memory, and where its limits are.
type Memories struct {
	Kind  vk.DeviceType
	Heaps []MadeHeap
	Types []MadeType
	Most  int // KiB of a buffer and of an allocation; 0: no other limit than the heap
}

// MadeHeap is one of its memories.
type MadeHeap struct {
	KB          int
	DeviceLocal bool
}

// MadeType is a type of memory: Vulkan's flags, and whose.
type MadeType struct{ Flags, Heap int }

// Flags of types.
const (
	Local    = 1
	Visible  = 2 | 4 // and coherent
	Cached   = 8
	heapFlag = 1
)

// Memory lets devices that are listed from now on have these memories; nil: their own. An
// allocation without room is refused, and so is mapping what the host does not see.
func (x *Interposer) Memory(m *Memories) {
	p := &x.ctl.pretend
	if m == nil {
		m = &Memories{Kind: -1}
	}
	p.kind.Store(uint32(m.Kind + 1))
	p.most.Store(uint32(m.Most))
	p.refused.Store(0)
	for i, h := range m.Heaps {
		p.heapKB[i].Store(uint32(h.KB))
		p.heapUsed[i].Store(0)
		p.heapFlags[i].Store(0)
		if h.DeviceLocal {
			p.heapFlags[i].Store(heapFlag)
		}
	}
	for i, t := range m.Types {
		p.typeFlags[i].Store(uint32(t.Flags))
		p.typeHeap[i].Store(uint32(t.Heap))
	}
	p.heaps.Store(uint32(len(m.Heaps)))
	p.types.Store(uint32(len(m.Types)))
}

// Refused returns how many allocations found no room since Memory.
func (x *Interposer) Refused() int { return int(x.ctl.pretend.refused.Load()) }

// Fault is an extension that tells why a device was lost.
type Fault uint32

// The extensions.
const (
	NoFault Fault = iota
	FaultEXT
	FaultKHR
)

// Driver lets all devices that are listed from now on be of a driver; 0: of their own.
func (x *Interposer) Driver(id vk.DriverID) { x.ctl.pretend.driver.Store(uint32(id)) }

// Telling are extensions that tell how many compute units a device has.
var Telling = []string{"VK_NV_shader_sm_builtins", "VK_AMD_shader_core_properties2", "VK_AMD_shader_core_properties",
	"VK_ARM_shader_core_builtins"}

// Units lets devices that are listed from now on have one of Telling, which says that many engines,
// arrays of an engine and units of an array, or their product. Another name: none of them.
func (x *Interposer) Units(extension string, engines, arrays, units int) {
	p := &x.ctl.pretend
	for i, n := range []int{engines, arrays, units} {
		p.units[i].Store(uint32(n))
	}
	p.says.Store(uint32(slices.Index(Telling, extension) + 1))
}

// ID lets devices that are listed from now on have these numbers on the PCI bus; 0: their own.
func (x *Interposer) ID(vendor, device int) {
	x.ctl.pretend.vendor.Store(uint32(vendor))
	x.ctl.pretend.chip.Store(uint32(device))
}

// Range lets a descriptor of devices that are listed from now on cover `bytes` bytes; 0: as many as
// it does. Kernels reach what is larger by address.
func (x *Interposer) Range(bytes int) { x.ctl.pretend.span.Store(uint32(bytes)) }

// Constants gives the kernels of a module, made from now on, other values of two specialisation
// constants, until another module is named; nil: none.
func (x *Interposer) Constants(spirv []byte, values map[int]uint32) {
	p, i := &x.ctl.pretend, 0
	for k := range p.ids {
		p.ids[k].Store(never)
	}
	for id, v := range values {
		p.ids[i].Store(uint32(id))
		p.values[i].Store(v)
		i++
	}
	p.changed.Store(0)
	p.module.Store(uint32(len(spirv)))
}

// Changed returns how many kernels Constants changed.
func (x *Interposer) Changed() int { return int(x.ctl.pretend.changed.Load()) }

// Explain lets devices have one of the extensions, or none, which then tells of a loss with `each`
// addresses and `each` words of the vendor.
func (x *Interposer) Explain(f Fault, each int) {
	p := &x.ctl.pretend
	p.faults.Store(uint32(each))
	p.asked.Store(0)
	p.fault.Store(uint32(f))
}

// Explained returns the extension that the last device was opened with, and how often it was asked.
func (x *Interposer) Explained() (Fault, int) {
	return Fault(x.ctl.pretend.enabled.Load()), int(x.ctl.pretend.asked.Load())
}

// Budget lets all memories have `budget` MiB for the process, `used` of them used; negative: the
// driver does not tell.
func (x *Interposer) Budget(budget, used int) {
	p := &x.ctl.pretend
	if budget < 0 {
		p.budget.Store(1)
		return
	}
	p.budgetMB.Store(uint32(budget))
	p.usedMB.Store(uint32(used))
	p.budget.Store(2)
}

// Honest ends all pretences.
func (x *Interposer) Honest() {
	x.Driver(0)
	x.Range(0)
	x.Constants(nil, nil)
	x.Explain(NoFault, 0)
	x.ctl.pretend.budget.Store(0)
	x.Memory(nil)
	x.Units("", 0, 0, 0)
	x.ID(0, 0)
	x.Slow(0, false)
}
