package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineKernels demands that an engine asks a device for no kernel that none of its recordings
// launches: a driver takes up to a second for each. An engine asks for steps of one token when it
// is made, and for others when it prepares them. All kernels are asked for before commands are
// recorded, so that they are compiled at the same time.
func TestEngineKernels(t *testing.T) {
	dir := written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0, 4, 128), Storage: fakemodel.FP8}))
	sizes := []int{1, 2, 4, 8, 16, 32, 64, 100}
	if testing.Short() {
		sizes = []int{1, 2, 32}
	}
	for _, profile := range []string{"cpu", "hopper"} {
		for i, tokens := range sizes {
			longest := []int{4096, 300000}[i%2] // selections from many entries need other kernels
			t.Run(fmt.Sprintf("%s/%d of %d", profile, tokens, longest), func(t *testing.T) {
				dev := device(t, vk.DeviceOptions{Profile: profile})
				cfg, layers := uploaded(t, dev, dir)
				e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: longest, MaxStep: tokens})
				asked := len(dev.Kernels())
				assert.Greater(t, asked, 20)
				require.NoError(t, e.Prepare(t.Context(), 1))
				assert.Len(t, dev.Kernels(), asked, "after recording a step of one token")
				require.NoError(t, e.Prepare(t.Context(), tokens))
				assert.Empty(t, testkit.Unlaunched(t, dev))
			})
		}
	}
}
