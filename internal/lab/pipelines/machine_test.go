package pipelines_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/machine"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// TestMachineCode holds that the driver's compiler leads each kernel that a profile chooses from
// its first instruction to its last; with ANV, which takes longer, that the device's own chooses.
// It wants RADV or ANV with VKMLA_TEST_COMPILE_ONLY=1.
func TestMachineCode(t *testing.T) {
	a := compileOnly(t)
	// For RDNA2 the compiler of Mesa 26 crashes there.
	if a.Driver == tuning.DriverRADV && !strings.Contains(a.Name, "NAVI21") {
		twoExits(t, a)
	}
	profiles := []string{""} // the device's own
	if a.Driver == tuning.DriverRADV {
		profiles = tuning.Names()
	}
	kernels, faults, err := pipelines.Broken(a, profiles...)
	require.NoError(t, err)
	assert.Greater(t, kernels, 40)
	for _, f := range faults {
		t.Error(f)
	}
	t.Logf("%s, %s: %d kernels, %d faults", a.Name, a.DriverInfo, kernels, len(faults))
}

// twoExits demands that what is known to be wrong with a driver's code of testdata/two_exits.comp
// is found, and nothing in that of other versions.
func twoExits(t *testing.T, a *vk.Adapter) {
	t.Helper()
	module, err := os.ReadFile("testdata/two_exits.spv")
	require.NoError(t, err)
	dev, err := a.Open(vk.DeviceOptions{Listings: true})
	require.NoError(t, err)
	defer dev.Close()
	k, err := dev.Kernel(vk.KernelSpec{Name: "two_exits", SPIRV: module, Bindings: []vk.Access{vk.ReadWrite}, PushSize: 8})
	require.NoError(t, err)
	list, err := door.Listings(dev, k)
	require.NoError(t, err)
	i := slices.IndexFunc(list, func(x door.Listing) bool { return x.Name == "Assembly" })
	require.GreaterOrEqual(t, i, 0)
	faults := machine.AMD(list[i].Text)
	if !strings.HasPrefix(a.DriverInfo, "Mesa 26.1.") && !strings.HasPrefix(a.DriverInfo, "Mesa 26.2.") {
		assert.Empty(t, faults)
		return
	}
	require.Len(t, faults, 1)
	assert.Regexp(t, `^BB\d+ has no code: it is at the first word, BB\d+ is not$`, faults[0])
}
