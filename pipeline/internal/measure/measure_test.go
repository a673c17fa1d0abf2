package measure_test

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/timed"
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
	t.Cleanup(func() { tuning.Time(dev, nil) })
	require.NoError(t, measure.Small(t.Context(), dev, dir, func(family, build string) { list = append(list, family+" "+build) }))
	return list
}

// Builds of every family are timed once, base first, and what was kept is read; but not where it
// has an older form or cannot be read.
func TestBuilds(t *testing.T) {
	dev, dir := testkit.Device(t), t.TempDir()
	path := timed.Path(dir, dev.Adapter())
	first := tried(t, dev, dir)
	families := func() {
		t.Helper()
		c, ok := timed.Load(dir, dev.Adapter())
		require.True(t, ok)
		assert.ElementsMatch(t, slices.Collect(maps.Values(tuning.Families)), slices.Collect(maps.Keys(c.Timed)))
		for family, x := range c.Timed {
			assert.Empty(t, x.Failed, family)
			assert.Contains(t, x.Microseconds, "base", family)
			for build, us := range x.Microseconds {
				assert.Contains(t, first, family+" "+build)
				assert.Positive(t, us, "%s %s", family, build)
			}
		}
	}
	families()
	_, err := os.Stat(path + ".trying")
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Empty(t, tried(t, dev, dir), "timed again")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	assert.Equal(t, first, tried(t, dev, dir), "after the file was spoilt")

	// As it was when products and attention were timed, and the program had ended.
	c, _ := timed.Load(dir, dev.Adapter())
	older, err := json.Marshal(map[string]any{"device": c.Device, "kernels": c.Kernels, "date": c.Date, "timed": map[string]tuning.Timed{
		"attention": {Microseconds: map[string]float64{"base": 1}}, "projection": {Microseconds: map[string]float64{"base": 1}}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, older, 0o600))
	require.NoError(t, os.WriteFile(path+".trying", []byte("attention base\n"), 0o600))
	assert.Equal(t, first, tried(t, dev, dir), "after an older version")
	families()
}

// Of every family, builds with matrices or dot products are timed beside base where a device has
// what they need, and a profile that avoids matrices avoids them here.
func TestCandidates(t *testing.T) {
	devices := knowncaps.Devices()
	find := func(features ...string) *vk.Caps {
		i := slices.IndexFunc(devices, func(d knowncaps.Device) bool { return len(d.Caps.Missing(features)) == 0 })
		require.GreaterOrEqual(t, i, 0, features)
		return &devices[i].Caps
	}
	const dot = "shaderMixedFloatDotProductFloat16AccFloat32"
	both, least := find("cooperativeMatrix", dot), knowncaps.Least()
	for _, family := range tuning.Families {
		assert.Subset(t, measure.Candidates(both, false)[family], []string{"base", "cm", "dot"}, family)
		assert.Equal(t, []string{"base", "dot"}, measure.Candidates(both, true)[family], family)
		assert.Equal(t, []string{"base"}, measure.Candidates(&least, false)[family], family)
	}
}

// A build during which the program is killed, as a driver's compiler or the system does it, is not
// tried again, and no operation of its family runs it; the others are tried.
func TestKilled(t *testing.T) {
	const folder, at = "VKMLA_TEST_KILLED", "VKMLA_TEST_KILLED_AT"
	dev := testkit.Device(t)
	if dir := os.Getenv(folder); dir != "" { // the program that is killed
		err := measure.Small(t.Context(), dev, dir, func(family, build string) {
			if family+" "+build == os.Getenv(at) {
				self, err := os.FindProcess(os.Getpid())
				require.NoError(t, err)
				_ = self.Kill()
				select {}
			}
		})
		t.Fatal("lives on", err)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	all := tried(t, dev, t.TempDir())
	for family, variant := range operations(dev) {
		t.Run(family, func(t *testing.T) {
			dir := t.TempDir()
			last := slices.IndexFunc(all, func(s string) bool { return strings.HasPrefix(s, family+" ") })
			for last+1 < len(all) && strings.HasPrefix(all[last+1], family+" ") {
				last++
			}
			_, build, _ := strings.Cut(all[last], " ")
			child := exec.CommandContext(t.Context(), self, "-test.run=^TestKilled$")
			child.Env = append(os.Environ(), folder+"="+dir, at+"="+all[last])
			out, err := child.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "%s", out)
			require.NotContains(t, string(out), "lives on")
			mark, err := os.ReadFile(timed.Path(dir, dev.Adapter()) + ".trying")
			require.NoError(t, err, "%s", out)
			assert.Equal(t, all[last]+"\n", string(mark))
			rest := tried(t, dev, dir)
			assert.NotContains(t, rest, all[last])
			assert.Subset(t, rest, all[last+1:], "behind it")
			assert.Empty(t, tried(t, dev, dir))
			c, _ := timed.Load(dir, dev.Adapter())
			assert.Contains(t, c.Timed[family].Failed[build], "ended")
			assert.Len(t, c.Timed, len(tuning.Families))
			runs, err := variant()
			require.NoError(t, err)
			if build != "base" {
				assert.NotEqual(t, build, runs, "what crashed runs")
			}
			if best := c.Timed[family].Best(); len(best) > 0 {
				assert.Equal(t, best[0], runs)
			}
		})
	}
}

// operations are those of each family, which tell the build that they run.
func operations(dev *vk.Device) map[string]func() (string, error) {
	return map[string]func() (string, error){
		tuning.Products: func() (string, error) {
			op, err := projection.NewLinear(dev, projection.LinearConfig{N: 64, K: 64, Weights: projection.FormatBF16,
				Out: tensor.BF16, OnDemand: true})
			return op.Variant(), err
		},
		tuning.Prefill: func() (string, error) {
			op, err := attention.NewPrefill(dev, attention.PrefillConfig{Heads: 16, OnDemand: true})
			return op.Variant(), err
		},
		tuning.Decode: func() (string, error) {
			op, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: 16, WindowPage: 64, OnDemand: true})
			return op.Variant(), err
		},
		tuning.Scores: func() (string, error) {
			op, err := indexer.NewLogits(dev, indexer.LogitsConfig{Heads: 16, Format: cache.IndexKeyFP8, Page: 64})
			return op.Variant(), err
		},
	}
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
