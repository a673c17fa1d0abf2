package tuning

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/vary"
	"github.com/vkmla/vkmla/vk"
)

// What the driver says of compute units counts; without, the type does.
func TestWorkgroupsOf(t *testing.T) {
	for _, c := range []struct {
		units uint32
		kind  vk.DeviceType
		each  int
		want  int
	}{
		{132, vk.TypeDiscrete, 1, 132}, {132, vk.TypeDiscrete, 2, 264}, {16, vk.TypeIntegrated, 2, 32},
		{0, vk.TypeDiscrete, 1, 32}, {0, vk.TypeVirtual, 2, 64}, {0, vk.TypeIntegrated, 1, 16}, {0, vk.TypeOther, 2, 32},
		{0, vk.TypeCPU, 1, 8}, {0, vk.TypeCPU, 2, 8},
	} {
		a := &vk.Adapter{Type: c.kind, Caps: vk.Caps{ComputeUnits: c.units}}
		p, _ := For(a)
		assert.Equal(t, c.want, p.Device.WorkgroupsOf(a, c.each), "%d compute units, %v, %d each", c.units, c.kind, c.each)
	}
}

// A launch that was never timed is divided by what it has to do.
func TestStepTime(t *testing.T) {
	slow := &vk.Adapter{Type: vk.TypeIntegrated, Caps: vk.Caps{ComputeUnits: 8}}
	for _, r := range profiles {
		plan := func(s *Step) string {
			p := Profile{Device: r.profile.Device, Step: *s}
			return fmt.Sprint(p.Time(slow, vk.Work{Bytes: 1 << 30, Products: 1e10}))
		}
		assert.Empty(t, vary.Idle(r.profile.Step, plan), "profile %s: numbers of Step that decide nothing", r.profile.Name)
	}
	// wq_b of 4096 tokens has 206 GMAC: 12 units of an unknown GPU are not to take them at once.
	wqb := vk.Work{Bytes: 400 << 20, Products: 4096. * 1536 * 32768}
	unknown := &vk.Adapter{Type: vk.TypeIntegrated, Caps: vk.Caps{ComputeUnits: 12}}
	assert.InDelta(t, 1166e6, float64(generic.Time(unknown, wqb)), 1e6, "ns")
	assert.Equal(t, 12, generic.Pieces(unknown, wqb, 100*time.Millisecond))
	h100 := &vk.Adapter{Type: vk.TypeDiscrete, Caps: vk.Caps{ComputeUnits: 132}}
	assert.Equal(t, 1, hopper.Pieces(h100, wqb, 100*time.Millisecond))
	assert.Equal(t, vk.MaxPieces, generic.Pieces(unknown, vk.Work{Products: 1e30}, 1))
	assert.Zero(t, generic.Pieces(unknown, vk.Work{}, 1))
}

// What a driver is thought to allow is never longer than what is known of it.
func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		system string
		kind   vk.DeviceType
		driver vk.DriverID
		want   time.Duration
	}{
		{"linux", vk.TypeCPU, 0, 0}, {"linux", vk.TypeDiscrete, DriverRADV, 2 * time.Second},
		{"linux", vk.TypeIntegrated, DriverANV, 10 * time.Second},
		{"windows", vk.TypeIntegrated, DriverIntelWindows, 2 * time.Second},
		{"windows", vk.TypeDiscrete, DriverNVIDIA, 2 * time.Second}, {"linux", vk.TypeDiscrete, 99, 2 * time.Second},
	} {
		limit, of := watchdogOn(c.system, &vk.Adapter{Type: c.kind, Driver: c.driver})
		assert.Equal(t, c.want, limit, "%+v: %s", c, of)
		assert.NotEmpty(t, of)
	}
}

// Each id of Intel's is listed once, with a number that such GPUs have.
func TestIntelGPUs(t *testing.T) {
	seen := map[uint32]bool{}
	for _, r := range intelGPUs {
		assert.NotEmpty(t, r.of)
		assert.True(t, r.units == 1 || r.units <= 32 && r.units%2 == 0, "%s: %d", r.of, r.units)
		for _, id := range r.devices {
			assert.False(t, seen[id], "%04x is listed twice", id)
			seen[id] = true
			units, generation := intelByID(vendorIntel, id)
			assert.Equal(t, r.units, units)
			assert.Equal(t, r.generation, generation)
			units, generation = intelByID(0x1002, id)
			assert.Zero(t, units)
			assert.Empty(t, generation)
		}
	}
}
