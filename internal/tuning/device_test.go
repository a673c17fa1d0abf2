package tuning

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/tuning/vary"
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

// A submission that was never timed is short, but not on a discrete GPU.
func TestStepFirst(t *testing.T) {
	for _, r := range profiles {
		first := func(s *Step) string { return fmt.Sprint(s.First(&vk.Adapter{Type: vk.TypeIntegrated})) }
		assert.Empty(t, vary.Idle(r.profile.Step, first), "profile %s: numbers of Step that decide nothing", r.profile.Name)
		assert.Zero(t, r.profile.Step.First(&vk.Adapter{Type: vk.TypeDiscrete}))
	}
}
