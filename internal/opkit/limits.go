package opkit

import (
	"fmt"
	"sync"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/vk"
)

// modules keeps what was read of kernels' SPIR-V, by name.
var modules sync.Map

func module(name string, code []byte) (*spirv.Module, error) {
	if m, ok := modules.Load(name); ok {
		return m.(*spirv.Module), nil
	}
	m, err := spirv.Parse(code)
	if err == nil {
		modules.Store(name, m)
	}
	return m, err
}

// CheckLimits holds a kernel against the limits of a device, beyond which a driver may do
// anything. What chooses sizes keeps within those of devices known; this is for others.
//
// Errors: *vk.MissingError.
func CheckLimits(a *vk.Adapter, s vk.KernelSpec) error {
	if a.Caps.MaxWorkgroupInvocations == 0 {
		return nil // no device at all, which vk.Device.Kernel says
	}
	m, err := module(s.Name, s.SPIRV)
	if err != nil {
		return err
	}
	size, err := m.LocalSize(s.Constants...)
	if err != nil {
		return err
	}
	shared, err := m.SharedBytes(s.Constants...)
	if err != nil {
		return err
	}
	c, e := &a.Caps, &vk.MissingError{What: "kernel " + s.Name, Device: a.Name}
	least := func(what string, need, have uint64) {
		if need > have {
			e.Missing = append(e.Missing, fmt.Sprint(need, " ", what))
			e.Available = append(e.Available, fmt.Sprint(have, " ", what))
		}
	}
	least("storage buffers", uint64(len(s.Bindings)), uint64(c.MaxStorageBuffers))
	least("bytes of push constants", uint64(s.PushSize), uint64(c.MaxPushConstants))
	least("bytes of shared memory", uint64(shared), uint64(c.SharedMemory))
	all := uint64(size[0]) * uint64(size[1]) * uint64(size[2])
	least("invocations of a workgroup", all, uint64(c.MaxWorkgroupInvocations))
	for i, axis := range []string{"x", "y", "z"} {
		least("invocations of a workgroup in "+axis, uint64(size[i]), uint64(c.MaxWorkgroupSize[i]))
	}
	if s.SubgroupSize > 0 && c.MaxWorkgroupSubgroups > 0 {
		least("subgroups of a workgroup", (all+uint64(s.SubgroupSize)-1)/uint64(s.SubgroupSize), uint64(c.MaxWorkgroupSubgroups))
	}
	if e.Missing == nil {
		return nil
	}
	e.Required = e.Missing
	return e
}
