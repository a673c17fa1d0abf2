package vk

// #include "abi.h"
import "C"

import (
	"runtime"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// descriptorAllocator hands out descriptor sets by their number of storage
// buffers. Sets whose commands were closed are written anew and reused; pools grow
// by chunks and are destroyed with the device. Guarded by Device.mu.
type descriptorAllocator struct {
	pools []vulkan.DescriptorPool
	free  map[int][]vulkan.DescriptorSet
}

const setsPerPool = 64

func (d *Device) newSet(op string, l *layout, views []View) (vulkan.DescriptorSet, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := &d.sets
	if len(a.free[l.bindings]) == 0 {
		if err := a.grow(d, op, l); err != nil {
			return nil, err
		}
	}
	list := a.free[l.bindings]
	set := list[len(list)-1]
	a.free[l.bindings] = list[:len(list)-1]

	// The array stands on the stack of this call and holds no Go pointers.
	var infos [64]C.VmDescriptorBufferInfo
	for i, v := range views {
		infos[i] = C.VmDescriptorBufferInfo{buffer: handleValue(unsafe.Pointer(v.Buffer.h)),
			offset: C.uint64_t(v.Offset), _range: C.uint64_t((v.Size + 3) &^ 3)}
	}
	C.vm_update_set(d.c, handleValue(unsafe.Pointer(set)), &infos[0], C.uint32_t(len(views)))
	return set, nil
}

func (a *descriptorAllocator) grow(d *Device, op string, l *layout) error {
	pi := vulkan.DescriptorPoolCreateInfo{SType: vulkan.StructureTypeDescriptorPoolCreateInfo, MaxSets: setsPerPool}
	pi.PoolSizeCount = 1
	pi.PPoolSizes = []vulkan.DescriptorPoolSize{{
		Type: vulkan.DescriptorTypeStorageBuffer, DescriptorCount: uint32(max(1, l.bindings) * setsPerPool),
	}}
	var pool vulkan.DescriptorPool
	code := vulkan.CreateDescriptorPool(d.h, &pi, nil, &pool)
	pi.Free()
	if err := d.check(op, int(code)); err != nil {
		return err
	}
	a.pools = append(a.pools, pool)
	layouts := []vulkan.DescriptorSetLayout{l.set}
	var pins runtime.Pinner // the binding copies the address into C's memory
	defer pins.Unpin()
	pins.Pin(&layouts[0])
	for range setsPerPool {
		ai := vulkan.DescriptorSetAllocateInfo{
			SType: vulkan.StructureTypeDescriptorSetAllocateInfo, DescriptorPool: pool,
			DescriptorSetCount: 1, PSetLayouts: layouts,
		}
		var set vulkan.DescriptorSet
		code := vulkan.AllocateDescriptorSets(d.h, &ai, &set)
		ai.Free()
		if err := d.check(op, int(code)); err != nil {
			return err
		}
		a.free[l.bindings] = append(a.free[l.bindings], set)
	}
	return nil
}

func (d *Device) releaseSet(bindings int, set vulkan.DescriptorSet) {
	d.mu.Lock()
	d.sets.free[bindings] = append(d.sets.free[bindings], set)
	d.mu.Unlock()
}

func (a *descriptorAllocator) close(d *Device) {
	for _, p := range a.pools {
		vulkan.DestroyDescriptorPool(d.h, p, nil)
	}
	a.pools, a.free = nil, nil
}
