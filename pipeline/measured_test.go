package pipeline_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/timed"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestMeasure holds that builds of every family are timed on a device whose profile has no
// measurements, and on no other, and that a folder where nothing can be kept is an error.
func TestMeasure(t *testing.T) {
	testkit.WithoutMatrices(t)
	folder := filepath.Join(t.TempDir(), "builds")
	kept := timed.Path(folder, testkit.Device(t).Adapter())
	measure := func(profile string) error {
		return pipeline.Measure(t.Context(), device(t, vk.DeviceOptions{Profile: profile}), folder)
	}
	require.NoError(t, measure("cpu"))
	assert.NoFileExists(t, kept, "a profile that was measured")
	require.NoError(t, measure("generic"))
	c, ok := timed.Load(folder, testkit.Device(t).Adapter())
	require.True(t, ok)
	for _, family := range tuning.Families {
		assert.Positive(t, c.Timed[family].Microseconds["base"], family)
	}
	folder = kept // which is none
	assert.ErrorContains(t, measure("generic"), "pipeline: measure")
}
