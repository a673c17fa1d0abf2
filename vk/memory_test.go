package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// AMD's own drivers are believed where a GPU shows that it has matrices, others always. An
// integrated GPU is not asked for their shapes.
func TestTrustsMatrices(t *testing.T) {
	for _, driver := range []DriverID{1, 2} {
		assert.True(t, trustsMatrices(driver, true), "RDNA3")
		assert.False(t, trustsMatrices(driver, false), "RDNA2")
		a := Adapter{Driver: driver, Type: TypeIntegrated, Caps: Caps{Features: map[string]bool{}}}
		assert.NoError(t, a.fillCoopMat(), "without an instance to ask")
		assert.Equal(t, map[string]bool{"coopmat.f16.f32": true}, a.Caps.Features)
		assert.Len(t, a.Caps.CoopMat, 1)
	}
	for _, driver := range []DriverID{0, 3, 4, 5, 6} {
		assert.True(t, trustsMatrices(driver, false))
	}
}

// Of the types of memory that drivers list, in their order, each kind of buffer gets these, the
// first that has room.
func TestMemoryTypes(t *testing.T) {
	const own, seen, cached = memDeviceLocal, memHostVisible | memHostCoherent, memHostCached
	type list = [][2]int // flags, heap
	for _, c := range []struct {
		name                     string
		kind                     DeviceType
		heaps                    []uint64 // of the device's types in GiB
		types                    list
		access                   HostAccess
		device, upload, readback []uint32
	}{
		{"NVIDIA", TypeDiscrete, []uint64{80, 500, 1}, list{{0, 1}, {own, 0}, {seen, 1}, {seen | cached, 1}, {own | seen, 2}},
			ByCopies, []uint32{1}, []uint32{2}, []uint32{3}},
		{"NVIDIA, resizable BAR", TypeDiscrete, []uint64{16, 32}, list{{0, 1}, {own, 0}, {seen, 1}, {seen | cached, 1}, {own | seen, 0}},
			ByCopies, []uint32{1}, []uint32{2}, []uint32{3}},
		{"RADV", TypeDiscrete, []uint64{24, 32, 1}, list{{own, 0}, {seen, 1}, {own | seen, 2}, {seen | cached, 1}},
			ByCopies, []uint32{0}, []uint32{1}, []uint32{3}},
		{"RADV, Strix Halo", TypeIntegrated, []uint64{42, 84}, list{{own, 1}, {seen, 0}, {own | seen, 1}, {seen | cached, 0}},
			MappedWrites, []uint32{2, 0, 1}, []uint32{2, 1}, []uint32{3, 1}},
		{"ANV, shared caches", TypeIntegrated, []uint64{24}, list{{own | seen | cached, 0}},
			MappedFully, []uint32{0}, []uint32{0}, []uint32{0}},
		{"ANV, Lunar Lake", TypeIntegrated, []uint64{24}, list{{own, 0}, {own | seen, 0}, {own | seen | cached, 0}},
			MappedWrites, []uint32{1, 0}, []uint32{1}, []uint32{2, 1}},
		{"lavapipe", TypeCPU, []uint64{64}, list{{own | seen | cached, 0}},
			MappedFully, []uint32{0}, []uint32{0}, []uint32{0}},
	} {
		a := Adapter{Type: c.kind}
		for i, x := range c.types {
			m := memoryType{uint32(i), uint32(x[0]), x[1], c.heaps[x[1]] << 30}
			if m.flags&own != 0 {
				a.Caps.deviceLocal, a.Caps.HeapBytes = append(a.Caps.deviceLocal, m), max(a.Caps.HeapBytes, m.heap)
			}
			if m.flags&seen == seen {
				a.Caps.hostVisible = append(a.Caps.hostVisible, m)
			}
		}
		access := a.HostAccess()
		assert.Equal(t, c.access, access, c.name)
		for kind, want := range map[Memory][]uint32{DeviceLocal: c.device, Upload: c.upload, Readback: c.readback} {
			var got []uint32
			for _, m := range a.Caps.memoryTypes(kind, 1<<8-1, access, a.shares()) {
				got = append(got, m.index)
			}
			assert.Equal(t, want, got, "%s, memory %d", c.name, kind)
		}
	}
}
