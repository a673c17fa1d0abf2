//go:build linux

package faults_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// listed returns the device as it is listed now, and what vkmla info says of its compute units.
func listed(t *testing.T, profile string) (a *vk.Adapter, units int, by string) {
	t.Helper()
	in, err := vk.NewInstance(vk.InstanceOptions{Library: interposer.Library})
	require.NoError(t, err)
	a, err = in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	d := describe.Of(a, profile, nil, nil)
	require.NoError(t, in.Close())
	return a, d.Limits.ComputeUnits, d.Limits.ComputeUnitsBy
}

// How many compute units a device has is said by whichever extension there is, by a list of
// Intel's, or else assumed; work is divided by it.
func TestComputeUnits(t *testing.T) {
	defer interposer.Honest()
	for _, by := range faults.Telling {
		interposer.Units(by, 4, 2, 6)
		a, units, from := listed(t, "")
		assert.EqualValues(t, 48, a.Caps.ComputeUnits, by)
		assert.Equal(t, 48, units)
		assert.Equal(t, "said by "+by, from)
		p, _ := tuning.For(a)
		assert.Equal(t, 96, p.Device.WorkgroupsOf(a, 2))
	}
	interposer.Units("VK_AMD_shader_core_properties", 4, 2, 0)
	_, _, from := listed(t, "")
	assert.Equal(t, "assumed by profile cpu", from, "an extension that says nothing")
	interposer.Units("", 0, 0, 0)
	for _, c := range []struct {
		vendor, device, units int
		by                    string
	}{
		{0x8086, 0x56a0, 32, "listed for PCI id 8086:56a0"}, {0x8086, 0x56a1, 28, "listed for PCI id 8086:56a1"},
		{0x8086, 0x56a5, 8, "listed for PCI id 8086:56a5"}, {0x8086, 0xe20b, 20, "listed for PCI id 8086:e20b"},
		{0x8086, 0xe20c, 18, "listed for PCI id 8086:e20c"}, {0x8086, 0x64a0, 8, "listed for PCI id 8086:64a0"},
		{0x8086, 0x9a49, 6, "listed for PCI id 8086:9a49"},
		{0x8086, 0xffff, 20, "assumed by profile xe2"}, {0x1002, 0x56a1, 20, "assumed by profile xe2"},
	} {
		interposer.ID(c.vendor, c.device)
		interposer.Memory(&faults.Memories{Kind: vk.TypeDiscrete,
			Heaps: []faults.MadeHeap{{1 << 16, true}}, Types: []faults.MadeType{{faults.Local | faults.Visible, 0}}})
		a, units, from := listed(t, "xe2")
		assert.Equal(t, c.units, units, "%04x:%04x", c.vendor, c.device)
		assert.Equal(t, c.by, from)
		p, err := tuning.Named("xe2")
		require.NoError(t, err)
		assert.Equal(t, 2*c.units, p.Device.WorkgroupsOf(a, 2))
	}
	interposer.ID(0x8086, 0x56a1)
	interposer.Units("VK_NV_shader_sm_builtins", 1, 1, 5)
	_, units, _ := listed(t, "xe2")
	assert.Equal(t, 5, units, "what the driver says counts first")
}
