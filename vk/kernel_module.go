package vk

import (
	"fmt"
	"sync"

	"github.com/vkmla/vkmla/internal/spirv"
)

// modules keeps what was read of modules, by their code.
var modules struct {
	sync.Mutex
	read map[string]*spirv.Module
}

// parseModule reads a module. Equal code gives the same one.
func parseModule(code []byte) (*spirv.Module, error) {
	modules.Lock()
	defer modules.Unlock()
	if m := modules.read[string(code)]; m != nil {
		return m, nil
	}
	m, err := spirv.Parse(code)
	if err != nil {
		return nil, err
	}
	if modules.read == nil {
		modules.read = map[string]*spirv.Module{}
	}
	modules.read[string(code)] = m
	return m, nil
}

// checkModule holds a specification against its module: a driver takes what is wrong in silence.
func checkModule(op string, s *KernelSpec, m *spirv.Module) error {
	if m.EntryPoint != "main" {
		return argument(op, "SPIRV", fmt.Sprintf("entry point %q", m.EntryPoint), "main")
	}
	for _, b := range m.Bindings {
		switch name := fmt.Sprintf("%q", b.Name); {
		case b.Set != 0:
			return argument(op, "SPIRV", fmt.Sprintf("buffer %s in descriptor set %d", name, b.Set), "set 0")
		case int64(b.Binding) >= int64(len(s.Bindings)):
			return argument(op, "Bindings", fmt.Sprint(len(s.Bindings)), "more than %d, the binding of %s", b.Binding, name)
		case s.Bindings[b.Binding]&Write == 0 && !b.ReadOnly:
			return argument(op, fmt.Sprintf("Bindings[%d]", b.Binding), "read", "write: %s is not readonly in the module", name)
		}
	}
	for _, p := range m.Push {
		if end := p.Offset + p.Size; int64(end) > int64(s.PushSize) {
			return argument(op, "PushSize", fmt.Sprint(s.PushSize), "at least %d, where %q ends", end, p.Name)
		}
	}
	return nil
}

// checkLimits holds a kernel against the limits of the device, beyond which a driver may do
// anything.
func (d *Device) checkLimits(op string, s *KernelSpec, m *spirv.Module) error {
	size, err := m.LocalSize(s.Constants...)
	if err != nil {
		return argument(op, "SPIRV", err.Error(), "a size of workgroups")
	}
	shared, err := m.SharedBytes(s.Constants...)
	if err != nil {
		return argument(op, "SPIRV", err.Error(), "shared memory of a known size")
	}
	c, e := d.Caps(), &MissingError{What: op, Device: d.adapter.Name, limits: true}
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
