package pipelines_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// TestNoWorse holds what the driver's compiler makes of the kernels that V4-Flash and V4.1-Flash
// launch against what is recorded for the GPU: no more spills, no lower occupancy, no more clocks
// by the compiler. It wants RADV or ANV with VKMLA_TEST_COMPILE_ONLY=1. Other versions make
// something else: the file says of which it is.
func TestNoWorse(t *testing.T) {
	if os.Getenv("VKMLA_TEST_COMPILE_ONLY") != "1" {
		t.Skip("wants a driver that only compiles")
	}
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	gpu := gateName(a)
	if gpu == "" {
		t.Skipf("%s is neither RADV's nor ANV's", a.Name)
	}
	list, err := pipelines.Inspect(a, "", false)
	require.NoError(t, err)
	now := pipelines.GateTable(list)
	assert.Greater(t, strings.Count(now, "\n"), 20, "kernels")

	path := filepath.Join("testdata", gpu+".txt")
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

// gateName names what is recorded of a GPU: its driver, and what that calls it in parentheses, as
// radv-navi31 or anv-lnl. It is empty for other drivers.
func gateName(a *vk.Adapter) string {
	driver := map[vk.DriverID]string{tuning.DriverRADV: "radv", tuning.DriverANV: "anv"}[a.Driver]
	words := strings.Fields(strings.ToLower(strings.Trim(a.Name[strings.LastIndex(a.Name, "(")+1:], ")")))
	if driver == "" || len(words) == 0 {
		return ""
	}
	if words[0] == driver {
		words = words[1:]
	}
	return strings.Join(append([]string{driver}, words...), "-")
}

// The gate sees each way to be worse, and lets what is better pass.
func TestWorse(t *testing.T) {
	const was = "a(1,2): spills 0, occupancy 8, clocks 1000\nb(): spills 0, occupancy 4, clocks 200\nc(): spills 11, occupancy -1, clocks 9\n"
	for now, want := range map[string]string{
		was: "",
		"a(1,2): spills 0, occupancy 10, clocks 900\n":  "",
		"a(1,2): spills 0, occupancy 8, clocks 1015\n":  "",
		"a(1,2): spills 3, occupancy 8, clocks 1000\n":  "a(1,2) spills 3 registers, recorded 0",
		"a(1,2): spills 0, occupancy 7, clocks 1000\n":  "a(1,2): occupancy 7, recorded 8",
		"a(1,2): spills 0, occupancy 8, clocks 1030\n":  "a(1,2): 1030 clocks, recorded 1000",
		"c(): spills 11, occupancy -1, clocks 9\n":      "",
		"c(): spills 12, occupancy -1, clocks 9\n":      "c() spills 12 registers, recorded 11",
		"a(1,3): spills 0, occupancy 8, clocks 1000\n":  "a(1,3) is not recorded",
		"b(): spills 0, occupancy 4, clocks 204.0001\n": "b(): 204 clocks, recorded 200",
	} {
		got, err := pipelines.Worse(was, now)
		require.NoError(t, err)
		assert.Equal(t, want, strings.Join(got, "; "), now)
	}
	for _, line := range []string{"nonsense\n", "d(): spills 0, occupancy 8, clocks x\n", "d(): spills 0, occupancy 8, clocks 9, modelled 8\n"} {
		_, err := pipelines.Worse(line, was)
		assert.Error(t, err, line)
	}
}
