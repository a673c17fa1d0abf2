package pipelines_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// known are the devices of knowncaps that drivers make without their GPU, by the names of gateName.
var known = map[string]string{
	"radv-navi10": "RDNA1", "radv-navi21": "RDNA2", "radv-navi31": "RDNA3", "radv-strix_halo": "RDNA3.5", "radv-gfx1201": "RDNA4",
	"anv-tgl-gt2": "Xe-LP", "anv-dg2": "Arc A", "anv-lnl": "Lunar Lake", "anv-bmg-g21": "Arc B",
	"anv-mtl": "Meteor Lake", "anv-ptl": "Panther Lake",
}

// TestKnownCaps holds what knowncaps says of a device against what its driver reports, with
// VKMLA_TEST_COMPILE_ONLY=1.
func TestKnownCaps(t *testing.T) {
	if os.Getenv("VKMLA_TEST_COMPILE_ONLY") != "1" {
		t.Skip("wants a driver that only compiles")
	}
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	name := known[gateName(a)]
	all := append(knowncaps.Owned(), knowncaps.Devices()...)
	i := slices.IndexFunc(all, func(d knowncaps.Device) bool { return d.Name == name })
	if i < 0 {
		t.Skipf("%s is no device of knowncaps", a.Name)
	}
	want, got := all[i].Caps, &a.Caps
	assert.Equal(t, all[i].Type, a.Type)
	assert.Equal(t, all[i].Driver, a.Driver)
	p, _ := tuning.For(&vk.Adapter{Type: all[i].Type, Caps: want})
	own, _ := tuning.For(a)
	assert.Equal(t, p.Name, own.Name, "profile")
	for what, x := range map[string][2]any{
		"shared memory":          {want.SharedMemory, got.SharedMemory},
		"least subgroup":         {want.MinSubgroupSize, got.MinSubgroupSize},
		"largest subgroup":       {want.MaxSubgroupSize, got.MaxSubgroupSize},
		"subgroup":               {want.SubgroupSize, got.SubgroupSize},
		"subgroups of workgroup": {want.MaxWorkgroupSubgroups, got.MaxWorkgroupSubgroups},
		"push constants":         {want.MaxPushConstants, got.MaxPushConstants},
		"storage buffer":         {want.MaxStorageBufferRange, got.MaxStorageBufferRange},
		"buffer":                 {want.MaxBuffer, got.MaxBuffer},
		"invocations":            {want.MaxWorkgroupInvocations, got.MaxWorkgroupInvocations},
		"workgroup":              {want.MaxWorkgroupSize, got.MaxWorkgroupSize},
		"workgroups":             {want.MaxWorkgroupCount, got.MaxWorkgroupCount},
		"alignment":              {want.StorageAlignment, got.StorageAlignment},
		"clock":                  {float32(want.TimestampPeriod), float32(got.TimestampPeriod)},
		"units by":               {want.ComputeUnitsBy, got.ComputeUnitsBy},
	} {
		assert.Equal(t, x[0], x[1], what)
	}
	assert.LessOrEqual(t, want.MaxAllocation, got.MaxAllocation) // ANV's is the device's memory
	assert.Equal(t, want.ComputeUnits, got.ComputeUnits, "units")
	if all[i].Driver == tuning.DriverANV {
		assert.Equal(t, [2]uint32{want.VendorID, want.DeviceID}, [2]uint32{got.VendorID, got.DeviceID})
	}
	for f := range want.Features {
		assert.True(t, got.Features[f], "%s is not there", f)
	}
	for f, there := range got.Features {
		others := []string{"deviceFault", "pipelineExecutableInfo", "exportMemory", "importMemory", "importHostMemory", "exportTimeline",
			"importTimeline"} // which choose no kernel
		assert.True(t, !there || want.Features[f] || slices.Contains(others, f), "%s is there", f)
	}
	for _, s := range want.CoopMat {
		assert.Contains(t, got.CoopMat, s)
	}
}
