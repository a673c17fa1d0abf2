package tuning

import "github.com/vkmla/vkmla/vk"

// Device is what a device as a whole has room for, where Vulkan does not tell.
type Device struct {
	// DiscreteUnits are the compute units of a discrete GPU whose driver does not say. NVIDIA's
	// and AMD's drivers do; of the others the largest discrete GPUs are Intel's, with 32 Xe cores.
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

	// AvoidMatrices takes builds with cooperative matrices only where they are asked for by name.
	AvoidMatrices bool
}

// WorkgroupsOf is how many workgroups fill a device of which a compute unit has room for each.
func (d *Device) WorkgroupsOf(a *vk.Adapter, each int) int {
	if units := int(a.Caps.ComputeUnits); units > 0 {
		return units * each
	}
	units := d.OtherUnits
	if a.Type == vk.TypeDiscrete || a.Type == vk.TypeVirtual {
		units = d.DiscreteUnits
	}
	if d.OneEach {
		return units
	}
	return units * each
}

// OperandCopies is how often a device holds each element of a product's operands.
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
