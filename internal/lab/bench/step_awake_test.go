package bench

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestAwake holds that what follows a pause of the host counts neither in the device's time nor in
// the host's, and that what is slow without a pause does. The samples are as an H200's were: it
// records the third step anew, and 12 of 40 run at a quarter of the speed.
func TestAwake(t *testing.T) {
	device, host := slices.Repeat([]float64{3630e3}, 40), slices.Repeat([]float64{80e3}, 40)
	host[2] = 3926703e3
	for i := 2; i < 14; i++ {
		device[i] = 15118e3
	}
	device[30], host[31] = 5000e3, 300e3 // what happens besides
	those := awake(host, device)
	for i, is := range those {
		assert.Equal(t, i < 2 || i >= 14, is, i)
	}
	d, h := summariseThose(device, those), summariseThose(host, those)
	assert.Equal(t, []float64{3630, 3630, 80, 80}, []float64{d.Median, d.P95, h.Median, h.P95})
	assert.Len(t, d.Samples, 40)
	assert.Equal(t, 15118.0, d.Samples[5])
	assert.Greater(t, summarise(device).P95, 15000.0)

	device[30], device[31], device[35] = 9000e3, 9000e3, 9000e3 // slow without a pause: it is the step's
	assert.Equal(t, 9000.0, summariseThose(device, awake(host, device)).P95)
}
