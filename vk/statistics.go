package vk

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/vkmla/vkmla/internal/door"
)

func (d *Device) pipelineFlags() (flags C.uint32_t) {
	if d.opts.Statistics && d.Caps().Features["pipelineExecutableInfo"] {
		flags = C.VM_PIPELINE_CREATE_CAPTURE_STATISTICS
	}
	if d.opts.Listings && d.Caps().Features["pipelineExecutableInfo"] {
		flags |= C.VM_PIPELINE_CREATE_CAPTURE_REPRESENTATIONS
	}
	return flags
}

// Kernels returns the kernels that the device was asked for so far, compiled or not, ordered
// by name and constants.
func (d *Device) Kernels() []*Kernel {
	d.mu.Lock()
	list := slices.Collect(maps.Values(d.kernels))
	d.mu.Unlock()
	slices.SortFunc(list, func(a, b *Kernel) int {
		if c := strings.Compare(a.spec.Name, b.spec.Name); c != 0 {
			return c
		}
		if c := slices.Compare(a.spec.Constants, b.spec.Constants); c != 0 {
			return c
		}
		return int(a.spec.SubgroupSize) - int(b.spec.SubgroupSize)
	})
	return list
}

// Constants returns the specialisation constants that the kernel was built with.
func (k *Kernel) Constants() []uint32 { return slices.Clone(k.spec.Constants) }

// SubgroupSize returns the subgroup size that the kernel demands, 0 for any.
func (k *Kernel) SubgroupSize() uint32 { return k.spec.SubgroupSize }

// statistics is door.Statistics.
func (d *Device) statistics(k *Kernel) ([]door.Statistic, error) {
	const op = "statistics"
	if err := d.compiled(op, k, "DeviceOptions.Statistics", func(o *DeviceOptions) bool { return o.Statistics }); err != nil {
		return nil, err
	}
	var raw *C.VmPipelineExecutableStatistic
	var n C.uint32_t
	r := C.vm_pipeline_statistics(d.c, handleValue(unsafe.Pointer(k.h)), &raw, &n)
	defer C.free(unsafe.Pointer(raw))
	if err := d.check(op, int(r)); err != nil {
		return nil, err
	}
	list := make([]door.Statistic, n)
	for i, s := range unsafe.Slice(raw, n) {
		list[i] = door.Statistic{Name: C.GoString(&s.name[0]), Description: C.GoString(&s.description[0])}
		p := unsafe.Pointer(&s.value)
		switch s.format {
		case 0:
			list[i].Value = float64(*(*uint32)(p))
		case 1:
			list[i].Value = float64(*(*int64)(p))
		case 2:
			list[i].Value = float64(*(*uint64)(p))
		default:
			list[i].Value = *(*float64)(p)
		}
	}
	return list, nil
}

// listings is door.Listings.
func (d *Device) listings(k *Kernel) ([]door.Listing, error) {
	const op = "listings"
	if err := d.compiled(op, k, "DeviceOptions.Listings", func(o *DeviceOptions) bool { return o.Listings }); err != nil {
		return nil, err
	}
	var raw *C.VmPipelineExecutableRepresentation
	var n C.uint32_t
	r := C.vm_pipeline_representations(d.c, handleValue(unsafe.Pointer(k.h)), &raw, &n)
	defer C.free(unsafe.Pointer(raw))
	if err := d.check(op, int(r)); err != nil {
		return nil, err
	}
	var list []door.Listing
	for _, s := range unsafe.Slice(raw, n) {
		if s.isText != 0 {
			text := C.GoStringN((*C.char)(s.pData), C.int(s.dataSize))
			list = append(list, door.Listing{Name: C.GoString(&s.name[0]), Text: strings.TrimRight(text, "\x00")})
		}
	}
	return list, nil
}

// compiled checks what is asked of a kernel that the driver is to tell about, and compiles it.
func (d *Device) compiled(op string, k *Kernel, option string, on func(o *DeviceOptions) bool) error {
	if err := d.usable(op); err != nil {
		return err
	}
	if k == nil {
		return argument(op, "kernel", "nil", "a kernel of the device")
	}
	if err := d.adapter.requires(op, "pipelineExecutableInfo"); err != nil {
		return err
	}
	if !on(&d.opts) {
		return argument(op, option, "false", "true when the device was opened")
	}
	return k.Ready()
}
