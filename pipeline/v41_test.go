package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineNotRun demands that an engine says which part of a model it does not run, before
// anything is uploaded.
func TestEngineNotRun(t *testing.T) {
	dev, cfg := testkit.Device(t), fakemodel.V41()
	c, err := openFake(t, fake(t, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8}), 1, model.CheckpointOptions{})
	require.NoError(t, err)
	layers := must[[]*model.DeviceLayer](t)(c.Plan())
	refused := func(what string) {
		t.Helper()
		_, err := options{MaxTokens: 100}.Estimate(t.Context(), dev, cfg, layers)
		require.ErrorIs(t, err, vk.ErrArgument)
		assert.ErrorContains(t, err, "cfg: got "+what+", want a model without: it is not run yet")
	}
	refused("queries without a norm for each head")
	cfg.PlainQueries = false
	refused("records v41")
	cfg.Records = model.RecordsV4
	refused("layer 1 of kind full2")
}
