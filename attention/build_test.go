package attention_test

import (
	"fmt"
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/testkit"
)

// TestBuilds makes every variant of decode and prefill that the device can run,
// for head counts on both sides of where the tiling changes. It executes nothing,
// so that it also shows whether a driver that can only compile (RADV over a GPU
// that is not there: with-radv of scripts/newer-mesa) accepts the kernels.
func TestBuilds(t *testing.T) {
	dev := testkit.Device(t)
	for _, heads := range []int{1, 16, 17, 32, 33, 128} {
		for _, v := range attention.DecodeVariants {
			t.Run(fmt.Sprint(heads, "/", v.Name), func(t *testing.T) {
				if err := attention.CanDecode(dev.Adapter(), v.Name, heads); err != nil {
					t.Skip(err)
				}
				if _, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: heads, WindowPage: 64, CompressedPage: 2, Variant: v.Name}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	testkit.Compile(t, dev)
}
