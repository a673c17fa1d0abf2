package pipelines_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// TestMachineCode holds that the driver's compiler leads each kernel that a profile chooses from
// its first instruction to its last; with ANV, which takes longer, that the device's own chooses.
// It wants RADV or ANV with VKMLA_TEST_COMPILE_ONLY=1.
func TestMachineCode(t *testing.T) {
	if os.Getenv("VKMLA_TEST_COMPILE_ONLY") != "1" {
		t.Skip("wants a driver that only compiles")
	}
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
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
