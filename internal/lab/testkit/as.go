package testkit

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// As opens the device of the tests once more, as if it were another one. What asks for
// kernels is told the other's limits and features; what executes them, and compiles them
// before, needs those that the device has. A GPU compiles in the background whatever was asked for,
// and a driver may crash over what it lacks, so there the test is skipped.
func As(t testing.TB, other knowncaps.Device) *vk.Device {
	t.Helper()
	if Device(t).Adapter().Type != vk.TypeCPU {
		t.Skip("a GPU's driver compiles what another device would get")
	}
	dev, err := AdapterAs(t, other).Open(vk.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, dev.Close())
	})
	return dev
}

// AdapterAs returns what As opens.
func AdapterAs(t testing.TB, other knowncaps.Device) *vk.Adapter {
	t.Helper()
	a := *Device(t).Adapter()
	fake(&a, other)
	a.Facts = &opkit.Facts{Layout: other.Layout, Rows: other.Rows}
	return &a
}

// fake gives an adapter another's name, type, limits and features, and leaves what memory
// it has.
func fake(a *vk.Adapter, other knowncaps.Device) {
	to, from := &a.Caps, &other.Caps
	a.Name, a.Type, a.DriverName, a.DriverInfo, a.Driver = other.Name, other.Type, "simulated", "", other.Driver
	to.MaxStorageBufferRange, to.MaxAllocation, to.MaxBuffer = from.MaxStorageBufferRange, from.MaxAllocation, from.MaxBuffer
	to.MaxStorageBuffers, to.MaxPushConstants, to.SharedMemory = from.MaxStorageBuffers, from.MaxPushConstants, from.SharedMemory
	to.MaxWorkgroupInvocations, to.MaxWorkgroupSize = from.MaxWorkgroupInvocations, from.MaxWorkgroupSize
	to.MaxWorkgroupCount = from.MaxWorkgroupCount
	to.SubgroupSize, to.MinSubgroupSize, to.MaxSubgroupSize = from.SubgroupSize, from.MinSubgroupSize, from.MaxSubgroupSize
	to.MaxWorkgroupSubgroups, to.StorageAlignment = from.MaxWorkgroupSubgroups, from.StorageAlignment
	to.ComputeUnits, to.ComputeUnitsBy, to.VendorID, to.DeviceID = from.ComputeUnits, from.ComputeUnitsBy, from.VendorID, from.DeviceID
	to.TimestampPeriod = from.TimestampPeriod
	to.CoopMat, to.Features = from.CoopMat, maps.Clone(from.Features)
}
