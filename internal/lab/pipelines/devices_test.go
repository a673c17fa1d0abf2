package pipelines_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestKnownDevices makes all operations as devices of many kinds would have them, and holds
// every kernel that they ask for against what the device offers. Each operation has a variant
// that the device can run, but where descriptor sets are too small for it. None is compiled.
func TestKnownDevices(t *testing.T) {
	full := os.Getenv("VKMLA_TEST_FULL") == "1"
	devices := append(knowncaps.Devices(), slices.DeleteFunc(knowncaps.Owned(), func(d knowncaps.Device) bool {
		if full { // those that differ from others in numbers only, too
			return slices.ContainsFunc(knowncaps.Devices(), func(x knowncaps.Device) bool { return x.Name == d.Name })
		}
		return d.Type != vk.TypeDiscrete || !strings.HasSuffix(d.Name, "'s driver") || d.Name == "RDNA3, AMD's driver"
	})...)
	for _, d := range devices {
		t.Run(d.Name, func(t *testing.T) {
			dev := testkit.As(t, d)
			buffers := 0
			err := pipelines.Make(dev, func(op, variant string, err error) {
				var missing *vk.MissingError
				if !errors.As(err, &missing) || !strings.HasPrefix(missing.What, "kernel ") {
					return // by its features, or for want of a shape of matrices
				}
				buffers++
				assert.True(t, d.Name == "least" && len(missing.Missing) == 1 &&
					strings.HasSuffix(missing.Missing[0], " storage buffers"), "%s, variant %s: %v", op, variant, err)
			})
			assert.NoError(t, err)
			assert.Equal(t, d.Name == "least", buffers > 0, "%d variants bind too many buffers", buffers)
			kernels := dev.Kernels()
			assert.GreaterOrEqual(t, len(kernels), 10, "only %d kernels", len(kernels))
			for _, k := range kernels {
				checkChosen(t, &d.Caps, pipelines.Chosen{Kernel: k.Name(), Constants: k.Constants(), Subgroup: k.SubgroupSize()})
			}
		})
	}
}

// parsed are modules by their kernels' names.
var parsed = map[string]*spirv.Module{}

func moduleOf(t *testing.T, name string) *spirv.Module {
	t.Helper()
	if parsed[name] == nil {
		s, err := shaders.Get(name)
		require.NoError(t, err)
		parsed[name], err = spirv.Parse(s.SPIRV)
		require.NoError(t, err)
	}
	return parsed[name]
}

// checkChosen holds a kernel against a device's limits and features.
func checkChosen(t *testing.T, c *vk.Caps, k pipelines.Chosen) {
	t.Helper()
	m, requires := moduleOf(t, k.Kernel), shaders.Requires(k.Kernel)
	size, err1 := m.LocalSize(k.Constants...)
	shared, err2 := m.SharedBytes(k.Constants...)
	require.NoError(t, errors.Join(err1, err2))
	all, subgroup, push := size[0]*size[1]*size[2], k.Subgroup, uint32(0)
	for _, p := range m.Push {
		push = max(push, p.Offset+p.Size)
	}
	wrong := func(what string) { t.Errorf("%s%v: %s", k.Kernel, k.Constants, what) }
	switch {
	case slices.Min(size[:]) < 1 || size[0] > c.MaxWorkgroupSize[0] || size[1] > c.MaxWorkgroupSize[1] || size[2] > c.MaxWorkgroupSize[2] || all > c.MaxWorkgroupInvocations:
		wrong("too many invocations")
	case shared > int(c.SharedMemory):
		wrong("too much shared memory")
	case len(m.Bindings) > int(c.MaxStorageBuffers):
		wrong("too many buffers")
	case push > c.MaxPushConstants:
		wrong("too many push constants")
	case c.Missing(requires) != nil:
		wrong("a feature is missing")
	case subgroup == 0 && (m.HasCapability(spirv.CooperativeMatrix) || slices.Contains(requires, "subgroupShuffle")):
		wrong("any size of subgroups")
	case subgroup > 0 && (subgroup < c.MinSubgroupSize || subgroup > c.MaxSubgroupSize || size[0]%subgroup != 0):
		wrong("no such subgroups, or some that are not full")
	case subgroup > 0 && c.MaxWorkgroupSubgroups > 0 && all/subgroup > c.MaxWorkgroupSubgroups:
		wrong("too many subgroups")
	}
}
