package tuning

import (
	"cmp"
	"fmt"

	"github.com/vkmla/vkmla/vk"
)

// Device describes the room on a device as a whole, where Vulkan does not tell.
type Device struct {
	// DiscreteUnits are the compute units of a discrete GPU where neither the driver nor its id
	// tells them. NVIDIA's, AMD's and ARM's drivers do; of the others the largest discrete GPUs are
	// Intel's, with 32 Xe cores.
	DiscreteUnits int

	// OtherUnits are the same for any other device.
	OtherUnits int

	// OneEach has each of these units count once, however many workgroups it has room for: a
	// processor's workgroups cost more than they share out.
	OneEach bool

	// UnitRegisters are the 32-bit registers that one workgroup can have in all, in subgroups
	// of 32 invocations or more: 65536 on NVIDIA's GPUs; AMD's have more.
	UnitRegisters int

	// MaxRegisters are the most of them that one invocation can have.
	MaxRegisters int

	// OnceSubgroup is the widest subgroup of devices that hold an element of a product's operands
	// in one register. RDNA3 holds it in two, and is known by wider ones, which only it and its
	// relatives have; of these RDNA4 needs less than is assumed.
	OnceSubgroup int

	// NarrowRegisters are those of an invocation in subgroups of fewer than 32: 128 on Intel's
	// GPUs, and as many as a processor compiles in acceptable time.
	NarrowRegisters int

	// OtherRegisters are those of an invocation besides its matrices: addresses, rows on their way,
	// and the rest. Scores have a number of their own.
	OtherRegisters int

	// PerUnit is the number of workgroups of products, and of scores, that fill a compute unit. One
	// of attention with matrices does, and one of a selection.
	PerUnit int

	// MatrixRows names the way in which lanes hold rows of operands, by a number of
	// shaders/lib/cm_rows.glsl: what goes through shared memory then lies so that loads of it meet
	// no two rows in a bank. It counts where a probe finds it so. 0: unknown. In attention it
	// halves the clocks of shared memory, and takes a tenth more instructions, in decode up to a
	// third.
	MatrixRows int

	// AvoidMatrices takes builds with cooperative matrices only where they are asked for by name.
	AvoidMatrices bool
}

// Units returns the number of compute units of a device and its source: the driver, a list of
// devices by their id, or the profile's assumption.
func (p *Profile) Units(a *vk.Adapter) (units int, by string) {
	c := &a.Caps
	switch units, known := p.Device.units(a); {
	case !known:
		return units, "assumed by profile " + p.Name
	case c.ComputeUnits == 0:
		return units, fmt.Sprintf("listed for PCI id %04x:%04x", c.VendorID, c.DeviceID)
	default:
		return units, "said by " + cmp.Or(c.ComputeUnitsBy, "the driver")
	}
}

// units are Units; those that are not known are the profile's.
func (d *Device) units(a *vk.Adapter) (units int, known bool) {
	c := &a.Caps
	listed, _ := intelByID(c.VendorID, c.DeviceID)
	switch {
	case c.ComputeUnits > 0:
		return int(c.ComputeUnits), true
	case listed > 0:
		return listed, true
	case a.Type == vk.TypeDiscrete || a.Type == vk.TypeVirtual:
		return d.DiscreteUnits, false
	}
	return d.OtherUnits, false
}

// WorkgroupsOf returns the number of workgroups that fill a device whose compute units have room
// for `each`.
func (d *Device) WorkgroupsOf(a *vk.Adapter, each int) int {
	units, known := d.units(a)
	if d.OneEach && !known {
		return units
	}
	return units * each
}

// OperandCopies returns the number of copies that a device holds of each element of a product's
// operands.
func (d *Device) OperandCopies(c *vk.Caps) int {
	if int(c.MaxSubgroupSize) > d.OnceSubgroup {
		return 2
	}
	return 1
}

// MatrixRegisters are the 32-bit registers that an invocation of a kernel with matrices can
// have, by the invocations of its subgroup and of its workgroup.
func (d *Device) MatrixRegisters(subgroup, threads int) int {
	if subgroup < 32 {
		return d.NarrowRegisters
	}
	return d.Registers(threads)
}

// Registers are the 32-bit registers that an invocation can have, by the invocations of its
// workgroup, where the driver gives a kernel all that it asks for.
func (d *Device) Registers(threads int) int { return min(d.MaxRegisters, d.UnitRegisters/threads) }
