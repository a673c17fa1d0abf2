package tuning

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

func TestFor(t *testing.T) {
	p, why := For(&vk.Adapter{Type: vk.TypeCPU})
	assert.Same(t, &cpu, p)
	assert.NotEmpty(t, why)
	p, _ = For(&vk.Adapter{Type: vk.TypeIntegrated})
	assert.Same(t, &generic, p)
	// By their ids: H100, H200; then a GeForce RTX 4090 and 5090, as large and not measured.
	for id, want := range map[uint32]*Profile{0x2330: &hopper, 0x2335: &hopper, 0x2684: &generic, 0x2b85: &generic} {
		p, _ = For(&vk.Adapter{Type: vk.TypeDiscrete, Caps: vk.Caps{ComputeUnits: 132, SubgroupSize: 32, MinSubgroupSize: 32,
			VendorID: vendorNVIDIA, DeviceID: id, Features: map[string]bool{"coopmat.bf16.f32": true}}})
		assert.Same(t, want, p, "%#x", id)
	}
}

// Intel's GPUs are known by their subgroups, whatever matrices they have.
func TestForXe(t *testing.T) {
	for least, want := range map[uint32]*Profile{8: &xe, 16: &xe2, 32: &generic} {
		a := &vk.Adapter{Type: vk.TypeIntegrated, Caps: vk.Caps{MinSubgroupSize: least, SubgroupSize: 32, MaxSubgroupSize: 32}}
		p, _ := For(a)
		assert.Same(t, want, p, "subgroups of %d to 32", least)
		a.Type = vk.TypeCPU
		p, _ = For(a)
		assert.Same(t, &cpu, p)
	}
}

// Xe-LP is known by its ids: its subgroups are those of Arc A.
func TestForXeLP(t *testing.T) {
	subgroups := map[string]uint32{xeLP: 8, "Xe-LPG": 8, "Xe-HPG": 8, "Xe2": 16, "Xe3": 16}
	want := map[string]*Profile{xeLP: &xelp, "Xe-LPG": &xe, "Xe-HPG": &xe, "Xe2": &xe2, "Xe3": &xe2}
	for _, r := range intelGPUs {
		require.Contains(t, want, r.generation)
		for _, id := range r.devices {
			a := &vk.Adapter{Type: vk.TypeIntegrated, Caps: vk.Caps{VendorID: vendorIntel, DeviceID: id,
				MinSubgroupSize: subgroups[r.generation], SubgroupSize: 32, MaxSubgroupSize: 32}}
			p, _ := For(a)
			assert.Same(t, want[r.generation], p, "%04x", id)
			a.Type = vk.TypeCPU
			p, _ = For(a)
			assert.Same(t, &cpu, p, "%04x", id)
		}
	}
}

func TestNamed(t *testing.T) {
	for _, name := range Names() {
		p, err := Named(name)
		require.NoError(t, err)
		assert.Equal(t, name, p.Name)
	}
	_, err := Named("none such")
	assert.ErrorIs(t, err, vk.ErrArgument)
}

// Another family of devices is one profile and one row: everything else finds it.
func TestOneRowIsEnough(t *testing.T) {
	profile := generic
	profile.Name = "made-up"
	saved := profiles
	t.Cleanup(func() { profiles = saved })
	profiles = append([]row{{&profile, "a device of this test", func(a *vk.Adapter) bool { return a.DriverName == "made up" }}}, profiles...)

	p, why := For(&vk.Adapter{Type: vk.TypeDiscrete, DriverName: "made up"})
	assert.Same(t, &profile, p)
	assert.Equal(t, "a device of this test", why)
	p, err := Named("made-up")
	require.NoError(t, err)
	assert.Same(t, &profile, p)
	assert.Contains(t, Names(), "made-up")
	p, _ = For(&vk.Adapter{Type: vk.TypeDiscrete})
	assert.Same(t, &generic, p, "other devices keep theirs")
}

// Whoever fits a profile to a device that runs it says so: builds of others are timed first.
func TestMeasured(t *testing.T) {
	for _, r := range profiles {
		assert.Equal(t, r.profile == &cpu || r.profile == &hopper, r.profile.Measured, r.profile.Name)
	}
}
