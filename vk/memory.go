package vk

import "slices"

// Flags of memory types.
const (
	memDeviceLocal  = 1
	memHostVisible  = 2
	memHostCoherent = 4
	memHostCached   = 8

	hostFlags = memHostVisible | memHostCoherent
)

// HostAccess names the way in which the host reaches DeviceLocal memory.
type HostAccess int

const (
	// ByCopies: commands copy between it and memory that the host reaches. So it is on GPUs
	// with memory of their own, even where the host sees all of it (resizable BAR):
	// mapped it was no faster, see docs/design/host.md.
	ByCopies HostAccess = iota
	// MappedWrites: the host writes it where it is, and reads by copies, because its reads
	// would pass every cache.
	MappedWrites
	// MappedFully: the host writes and reads it where it is, as on processors and many
	// integrated GPUs.
	MappedFully
)

// String reads "by copies", "mapped, reads by copies" or "mapped".
func (h HostAccess) String() string {
	return [...]string{"by copies", "mapped, reads by copies", "mapped"}[h]
}

// HostAccess says how the host reaches DeviceLocal memory, by the types of memory that the driver
// of a device without memory of its own lists: where the whole of its largest memory can be mapped,
// coherently, it is. Single buffers may be out of reach all the same, and are then copied.
func (a *Adapter) HostAccess() HostAccess {
	access := ByCopies
	if !a.shares() {
		return access
	}
	for _, t := range a.Caps.deviceLocal {
		switch {
		case t.flags&hostFlags != hostFlags || t.heap != a.Caps.HeapBytes:
		case t.flags&memHostCached == 0:
			return MappedWrites // what the driver lists beside it is slower for the device
		default:
			access = MappedFully
		}
	}
	return access
}

// HostAccess is Adapter.HostAccess, or ByCopies with DeviceOptions.Staging.
func (d *Device) HostAccess() HostAccess {
	if d == nil {
		return ByCopies
	}
	return d.access
}

// Unified reports whether device and host compute in the same memory and the host reaches all of
// it, so that no copy between the two gains anything. False with DeviceOptions.Staging.
func (d *Device) Unified() bool { return d != nil && d.access != ByCopies && d.adapter.shares() }

// shares reports whether the device has no memory of its own, whatever its driver calls it.
func (a *Adapter) shares() bool { return a.Type == TypeIntegrated || a.Type == TypeCPU }

// largestMemory returns the bytes of the largest memory that DeviceLocal buffers can be in.
func (a *Adapter) largestMemory() uint64 {
	most := a.Caps.HeapBytes
	for _, t := range a.Caps.hostVisible {
		if a.shares() {
			most = max(most, t.heap)
		}
	}
	return most
}

// memoryTypes lists the types of memory that a buffer may have, best first. Vulkan orders types
// so that, of those with the same flags, the first is the best.
//
// A device that shares the host's memory may list a part of it as its own: some drivers two
// thirds. When that is full, the rest serves as well.
func (c *Caps) memoryTypes(m Memory, allowed uint32, access HostAccess, shares bool) (list []memoryType) {
	add := func(types []memoryType, want, avoid uint32) {
		for _, t := range types {
			if allowed>>t.index&1 == 1 && t.flags&want == want && t.flags&avoid == 0 {
				if !slices.Contains(list, t) {
					list = append(list, t)
				}
				return
			}
		}
	}
	one := func(list []memoryType) []memoryType {
		if shares {
			return list
		}
		return list[:min(1, len(list))]
	}
	switch m {
	case Readback:
		add(c.hostVisible, memHostCached, 0)
		add(c.hostVisible, 0, 0)
		return one(list)
	case Upload:
		if shares {
			add(c.hostVisible, memDeviceLocal, memHostCached)
		}
		add(c.hostVisible, 0, memDeviceLocal|memHostCached)
		add(c.hostVisible, 0, memDeviceLocal)
		add(c.hostVisible, 0, 0)
		return one(list)
	}
	if access != ByCopies {
		var whole []memoryType
		for _, t := range c.deviceLocal {
			if t.heap == c.HeapBytes {
				whole = append(whole, t)
			}
		}
		add(whole, hostFlags, memHostCached)
		add(whole, hostFlags, 0)
	}
	add(c.deviceLocal, 0, memHostVisible)
	add(c.deviceLocal, 0, 0)
	if shares {
		add(c.hostVisible, 0, memDeviceLocal|memHostCached)
		add(c.hostVisible, 0, memDeviceLocal)
	}
	return list
}
