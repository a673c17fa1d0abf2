package pipelines_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestNoWorse holds what the driver's compiler makes of the kernels that V4-Flash launches against
// what is recorded for the GPU: no spills, no lower occupancy, no more clocks. It wants RADV with
// VKMLA_TEST_COMPILE_ONLY=1. Other versions of RADV make something else: the file says of which it
// is.
func TestNoWorse(t *testing.T) {
	if os.Getenv("VKMLA_TEST_COMPILE_ONLY") != "1" {
		t.Skip("wants a driver that only compiles")
	}
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	_, gpu, ok := strings.Cut(strings.TrimSuffix(a.Name, ")"), "(RADV ")
	if !ok {
		t.Skipf("%s is not RADV's", a.Name)
	}
	list, err := pipelines.Inspect(a, "", model.FlashConfig(), false)
	require.NoError(t, err)
	now := pipelines.GateTable(list)
	assert.Greater(t, strings.Count(now, "\n"), 20, "kernels")

	path := filepath.Join("testdata", "radv-"+strings.ToLower(gpu)+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(a.DriverInfo+"\n"+now), 0o644))
		return
	}
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		t.Skipf("nothing is recorded of %s", gpu)
	}
	require.NoError(t, err)
	version, recorded, _ := strings.Cut(string(text), "\n")
	worse, err := pipelines.Worse(recorded, now)
	require.NoError(t, err)
	if version != a.DriverInfo {
		t.Logf("recorded of %s, this is %s: %d kernels would be worse", version, a.DriverInfo, len(worse))
		return
	}
	assert.Empty(t, worse, "if this is meant, run the test with -update")
	t.Logf("%s: %d kernels no worse than recorded", gpu, strings.Count(now, "\n"))
}

// The gate sees each way to be worse, and lets what is better pass.
func TestWorse(t *testing.T) {
	const was = "a(1,2): spills 0, occupancy 8, clocks 1000\nb(): spills 0, occupancy 4, clocks 200\n"
	for now, want := range map[string]string{
		was: "",
		"a(1,2): spills 0, occupancy 10, clocks 900\n":  "",
		"a(1,2): spills 0, occupancy 8, clocks 1015\n":  "",
		"a(1,2): spills 3, occupancy 8, clocks 1000\n":  "a(1,2) spills 3 registers",
		"a(1,2): spills 0, occupancy 7, clocks 1000\n":  "a(1,2): occupancy 7, recorded 8",
		"a(1,2): spills 0, occupancy 8, clocks 1030\n":  "a(1,2): 1030 clocks, recorded 1000",
		"a(1,3): spills 0, occupancy 8, clocks 1000\n":  "a(1,3) is not recorded",
		"b(): spills 0, occupancy 4, clocks 204.0001\n": "b(): 204 clocks, recorded 200",
	} {
		got, err := pipelines.Worse(was, now)
		require.NoError(t, err)
		assert.Equal(t, want, strings.Join(got, "; "), now)
	}
	_, err := pipelines.Worse("nonsense\n", was)
	assert.Error(t, err)
}
