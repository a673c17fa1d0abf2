package measure_test

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline/internal/measure"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// tried runs a measurement and lists what was tried.
func tried(t *testing.T, dev *vk.Device, dir string) (list []string) {
	t.Helper()
	t.Cleanup(func() { tuning.Choose(dev.Adapter(), nil) })
	require.NoError(t, measure.Small(t.Context(), dev, dir, func(pkg, build string) { list = append(list, pkg+" "+build) }))
	return list
}

// Builds are timed once, base first, and what was kept is read; but not where it belongs to other
// kernels or cannot be read.
func TestBuilds(t *testing.T) {
	dev, dir := testkit.Device(t), t.TempDir()
	path := tuning.ChoicePath(dir, dev.Adapter())
	first := tried(t, dev, dir)
	require.Subset(t, first, []string{"projection base", "attention base"})
	c, ok := tuning.LoadChoice(dir, dev.Adapter())
	require.True(t, ok)
	for pkg, timed := range c.Timed {
		assert.Empty(t, timed.Failed, pkg)
		for build, us := range timed.Microseconds {
			assert.Contains(t, first, pkg+" "+build)
			assert.Positive(t, us, "%s %s", pkg, build)
		}
	}
	_, err := os.Stat(path + ".trying")
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Empty(t, tried(t, dev, dir), "timed again")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	assert.Equal(t, first, tried(t, dev, dir), "after the file was spoilt")
}

// A build during which the program ends is not tried again, and nothing runs it; the others are.
func TestCrashes(t *testing.T) {
	dev, dir := testkit.Device(t), t.TempDir()
	best := tried(t, dev, t.TempDir())
	crash := best[slices.Index(best, "attention base")-1] // the last of projection
	assert.Panics(t, func() {
		_ = measure.Small(t.Context(), dev, dir, func(pkg, build string) {
			if pkg+" "+build == crash {
				panic("the driver's compiler")
			}
		})
	})
	list := tried(t, dev, dir)
	assert.NotContains(t, list, crash)
	assert.Contains(t, list, "attention base")
	assert.Empty(t, tried(t, dev, dir))
	c, _ := tuning.LoadChoice(dir, dev.Adapter())
	build := crash[len("projection "):]
	assert.Contains(t, c.Timed["projection"].Failed[build], "ended")
	op, err := projection.NewLinear(dev, projection.LinearConfig{N: 64, K: 64, Weights: projection.WeightBF16,
		Out: tensor.BF16, OnDemand: true})
	require.NoError(t, err)
	if build != "base" {
		assert.NotEqual(t, build, op.Variant(), "what crashed runs")
	}
}

// The same where the program is killed, as a driver's compiler or the system does it: nothing of it
// is left but the mark.
func TestKilled(t *testing.T) {
	testkit.WithoutMatrices(t)
	const folder, build = "VKMLA_TEST_KILLED", "attention base"
	dev := testkit.Device(t)
	if dir := os.Getenv(folder); dir != "" { // the program that is killed
		err := measure.Small(t.Context(), dev, dir, func(pkg, name string) {
			if pkg+" "+name == build {
				self, err := os.FindProcess(os.Getpid())
				require.NoError(t, err)
				_ = self.Kill()
				select {}
			}
		})
		t.Fatal("lives on", err)
	}
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), self, "-test.run=^TestKilled$")
	child.Env = append(os.Environ(), folder+"="+dir)
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	require.NotContains(t, string(out), "lives on")
	mark, err := os.ReadFile(tuning.ChoicePath(dir, dev.Adapter()) + ".trying")
	require.NoError(t, err, "%s", out)
	assert.Equal(t, build+"\n", string(mark))
	assert.NotContains(t, tried(t, dev, dir), build)
	c, _ := tuning.LoadChoice(dir, dev.Adapter())
	assert.Contains(t, c.Timed["attention"].Failed["base"], "ended")
	assert.NotEmpty(t, c.Timed["projection"].Microseconds, "what was timed before it")
}

func TestDistance(t *testing.T) {
	want := []float32{1, -2, 3}
	assert.Zero(t, measure.Distance(want, want))
	assert.Less(t, measure.Distance([]float32{1.003, -2, 3}, want), measure.Farthest)
	nan := float32(math.NaN())
	for _, got := range [][]float32{{1, 2, 3}, {1.1, -2, 3}, {1, -2, nan}, {1, -2}, nil} {
		assert.Greater(t, measure.Distance(got, want), measure.Farthest, "%v", got)
	}
}
