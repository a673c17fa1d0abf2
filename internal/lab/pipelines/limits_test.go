package pipelines_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// TestLimits makes all operations by each profile for devices of few invocations and little shared
// memory, on which a profile's first choices do not fit: another always does. None is compiled.
func TestLimits(t *testing.T) {
	for _, limits := range [][2]uint32{{128, 16}, {128, 32}, {256, 16}, {256, 32}, {512, 32}, {512, 48}, {1024, 16}, {1024, 32}} {
		caps := knowncaps.Least()
		caps.MaxStorageBuffers, caps.MaxStorageBufferRange = 16, 1<<30
		caps.MaxWorkgroupInvocations, caps.SharedMemory = limits[0], limits[1]<<10
		caps.MaxWorkgroupSize = [3]uint32{limits[0], limits[0], 64}
		for _, profile := range tuning.Names() {
			t.Run(fmt.Sprintf("%s, %d invocations, %d KiB", profile, limits[0], limits[1]), func(t *testing.T) {
				d := knowncaps.Device{Name: profile, Type: vk.TypeOther, Caps: caps}
				dev, err := testkit.AdapterAs(t, d).Open(vk.DeviceOptions{Profile: profile})
				require.NoError(t, err)
				defer dev.Close()
				require.NoError(t, pipelines.Make(dev, func(op, variant string, err error) {
					assert.ErrorIs(t, err, vk.ErrMissingFeature, "%s, variant %s", op, variant)
					if m := new(vk.MissingError); errors.As(err, &m) {
						assert.NotContains(t, m.What, "kernel ", "%s, variant %s: %v", op, variant, err)
					}
				}))
				for _, k := range dev.Kernels() {
					checkChosen(t, &caps, pipelines.Chosen{Kernel: k.Name(), Constants: k.Constants(), Subgroup: k.SubgroupSize()})
				}
			})
		}
	}
}
