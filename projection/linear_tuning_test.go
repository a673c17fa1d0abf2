package projection_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vary"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Every number of the profile changes what some layer launches on some device.
func TestLinearTuning(t *testing.T) {
	profile, err := tuning.Named("hopper")
	require.NoError(t, err)
	rig := newTuningRig(t)
	assert.Empty(t, vary.Idle(profile.Linear, rig.plans()...), "numbers of Linear that decide nothing")
}

// tuningRig is layers on devices that differ in what they can run.
type tuningRig struct {
	devices []*vk.Device
	layers  []projection.LinearConfig
}

func newTuningRig(t *testing.T) *tuningRig {
	r := &tuningRig{}
	for _, d := range knowncaps.Devices() {
		switch d.Name {
		case "H100", "RDNA2", "RDNA4", "Arc B", "newer lavapipe":
			r.devices = append(r.devices, testkit.As(t, d))
		}
	}
	flash := []projection.LinearConfig{{N: 1536, K: 4096}, {N: 32768, K: 1024}, {N: 1024, K: 4096, Groups: 8},
		{N: 4096, K: 8192}, {N: 512, K: 4096}, {N: 64, K: 4096},
		{N: 7168, K: 16384}, {N: 1024, K: 256}, {N: 1536, K: 4096, Beside: 2560}}
	for _, c := range flash {
		for _, f := range []projection.Format{projection.FormatBF16, projection.FormatFP8F32, projection.FormatNVFP4} {
			c.Weights, c.Out = f, tensor.BF16
			r.layers = append(r.layers, c)
		}
	}
	normed := r.layers[0]
	normed.Norm, normed.NormColumns = tensor.BF16, 1024
	r.layers = append(r.layers, normed)
	return r
}

// plans returns functions that say what a layer launches on a device, one for each of both.
func (r *tuningRig) plans() (list []func(tune *tuning.Linear) string) {
	for _, dev := range r.devices {
		list = append(list, func(tune *tuning.Linear) string {
			return fmt.Sprint(projection.ChainLaunches(dev, tune), projection.SubgroupFor(dev.Caps(), tune))
		})
		for _, cfg := range r.layers {
			list = append(list, func(tune *tuning.Linear) string {
				o, err := projection.NewLinearOf(dev, cfg, tune)
				if err != nil {
					return err.Error()
				}
				return fmt.Sprint(projection.PlansOf(o))
			})
		}
	}
	return list
}
