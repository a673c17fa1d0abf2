package pipeline_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/timed"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineMeasured holds that the first engine on a device without measurements has builds of
// every family timed, that the next ones read that, and that a folder where nothing can be kept
// fails it.
func TestEngineMeasured(t *testing.T) {
	testkit.WithoutMatrices(t)
	cfg, o := small()
	path := written(t, fake(t, fakemodel.Options{Config: cfg}))
	folder := filepath.Join(t.TempDir(), "builds")
	kept := timed.Path(folder, testkit.Device(t).Adapter())
	start := func(profile string) error {
		dev := must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{Profile: profile}))
		defer dev.Close()
		cfg, layers := uploaded(t, dev, path)
		defer layers[0].Close()
		if err := pipeline.Measure(t.Context(), dev, folder); err != nil {
			return err
		}
		e, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, o)
		if err == nil {
			err = e.Close()
		}
		return err
	}
	require.NoError(t, start("cpu"))
	assert.NoFileExists(t, kept, "a profile that was measured")
	require.NoError(t, start("generic"))
	c, ok := timed.Load(folder, testkit.Device(t).Adapter())
	require.True(t, ok)
	for _, family := range tuning.Families {
		assert.Positive(t, c.Timed[family].Microseconds["base"], family)
	}
	first, err := os.Stat(kept)
	require.NoError(t, err)
	require.NoError(t, start("generic"))
	second, err := os.Stat(kept)
	require.NoError(t, err)
	assert.True(t, os.SameFile(first, second), "timed again")
	folder = kept // which is none
	assert.ErrorContains(t, start("generic"), "pipeline: measure")
}
