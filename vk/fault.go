package vk

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"fmt"
	"strings"
	"unicode"
	"unsafe"
)

// lose remembers that the device is lost and asks it why, once. The driver may have said so itself,
// or be found out by a proof.
func (d *Device) lose(said bool) {
	d.why.once.Do(func() { d.why.text = d.faults(said) })
	d.lost.Store(true)
}

// lossError is ErrDeviceLost, for a device that is, with what it told of it.
func (d *Device) lossError(op string) error {
	return fmt.Errorf("vk: %s: %w%s", op, ErrDeviceLost, d.why.text)
}

// faults returns what the device tells of its loss, for the end of an error: "" where that is
// nothing, as without VK_EXT_device_fault and VK_KHR_device_fault.
func (d *Device) faults(said bool) string {
	if d.c == nil || d.c.getFaultEXT == nil && d.c.getFaultKHR == nil {
		return ""
	}
	f := (*C.VmFaults)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmFaults{}))))
	defer C.free(unsafe.Pointer(f))
	lost := C.int(0)
	if said {
		lost = 1
	}
	if r := C.vm_faults(d.c, lost, f); r < 0 {
		return fmt.Sprintf(" (the driver does not say why: VkResult %d)", int(r))
	}
	var list []string
	for i := range int(f.ndescriptions) {
		list = append(list, readable(&f.descriptions[i]))
	}
	for _, a := range f.addresses[:f.naddresses] {
		list = append(list, faultAddress(uint32(a.addressType), uint64(a.reportedAddress), uint64(a.addressPrecision)))
	}
	for i := range int(f.nvendors) {
		v := &f.vendors[i]
		code, data := uint64(v.vendorFaultCode), uint64(v.vendorFaultData)
		list = append(list, fmt.Sprintf("vendor: %s (code %#x, data %#x)", readable(&v.description), code, data))
	}
	if f.more != 0 {
		list = append(list, "and more")
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, "; ") + ")"
}

// faultAddress names an address and what was wrong with it. It lies in a range of precision bytes.
func faultAddress(kind uint32, at, precision uint64) string {
	names := []string{"no address", "invalid read", "invalid write", "invalid execution",
		"instruction pointer", "invalid instruction pointer", "instruction pointer at the fault"}
	name := fmt.Sprintf("address of kind %d", kind)
	if kind < uint32(len(names)) {
		name = names[kind]
	}
	if precision > 1 {
		return fmt.Sprintf("%s at %#x, to %d bytes", name, at, precision)
	}
	return fmt.Sprintf("%s at %#x", name, at)
}

// readable is a driver's text without what a terminal would take for commands.
func readable(text *[256]C.char) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(text)), len(text))
	s, _, _ := strings.Cut(string(b), "\x00")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}
