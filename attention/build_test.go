package attention_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// TestBuilds makes every variant of decode and prefill that the device can run,
// for head counts on both sides of where the tiling changes. It executes nothing,
// so that it also shows whether a driver that can only compile (RADV over a GPU
// that is not there: with-radv of scripts/newer-mesa) accepts the kernels.
func TestBuilds(t *testing.T) {
	dev := testkit.Device(t)
	for _, heads := range []int{1, 16, 17, 32, 33, 128} {
		for _, v := range opkit.Decodes() {
			t.Run(fmt.Sprint(heads, "/", v.Name), func(t *testing.T) {
				if err := attention.CanDecode(dev.Adapter(), v.Name, heads); err != nil {
					t.Skip(err)
				}
				_, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: heads, WindowPage: 64, CompressedPage: 2, Variant: v.Name})
				assert.NoError(t, err)
			})
		}
	}
	testkit.Compile(t, dev)
}

// Whatever name is refused, the error says all that there are.
func TestUnknownDecoder(t *testing.T) {
	dev := testkit.Device(t)
	for _, name := range []string{"fastest", opkit.TwoPass + "fastest"} {
		_, made := attention.NewDecoder(dev, attention.DecoderConfig{Heads: 5, WindowPage: 16, Variant: name})
		for _, err := range []error{made, attention.CanDecode(dev.Adapter(), name, 5)} {
			require.ErrorIs(t, err, vk.ErrArgument)
			require.Contains(t, err.Error(), " base da twopass-")
			assert.Contains(t, err.Error(), name)
		}
	}
}
