//go:build linux

package faults

import (
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
}

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

// Range lets a descriptor of devices that are listed from now on cover so many bytes; 0: as many as
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

// Changed is how many kernels Constants changed.
func (x *Interposer) Changed() int { return int(x.ctl.pretend.changed.Load()) }

// Explain lets devices have one of the extensions, or none, which then has so many addresses and so
// many words of the vendor to tell of a loss.
func (x *Interposer) Explain(f Fault, each int) {
	p := &x.ctl.pretend
	p.faults.Store(uint32(each))
	p.asked.Store(0)
	p.fault.Store(uint32(f))
}

// Explained is the extension that the last device was opened with, and how often it was asked.
func (x *Interposer) Explained() (Fault, int) {
	return Fault(x.ctl.pretend.enabled.Load()), int(x.ctl.pretend.asked.Load())
}

// Budget lets all memories have so many MiB for the process, and so many used; negative: the driver
// does not tell.
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
}
