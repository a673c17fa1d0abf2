package attention

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// plainTiling is the tiling of the builds without matrices: the first form that a device has
// shared memory and invocations for and that heads fill more than half of. Each workgroup
// decodes its rows anew, so forms with few heads do not pay even for few tokens
// (docs/design/decode.md).
func plainTiling(tune *tuning.Attention, caps *vk.Caps, heads int) tiling {
	f := plainForm(tune.Plain[len(tune.Plain)-1])
	for _, x := range tune.Plain {
		x := plainForm(x)
		if x.sharedBytes() <= int(caps.SharedMemory) && x.threads() <= int(caps.MaxWorkgroupInvocations) && x.Heads < 2*heads {
			f = x
			break
		}
	}
	return tiling{heads: f.Heads, tile: f.Tile, constants: opkit.Constants(f.threads()), perUnit: f.PerUnit, cost: f.Time}
}

// plainForm describes the division of work in a build without matrices; shaders/lib/sparse_mla.glsl
// has the letters.
type plainForm tuning.PlainForm

func (f plainForm) threads() int { return 16 * f.Heads }

// sharedBytes is the sum of the shared arrays.
func (f plainForm) sharedBytes() int {
	return 1024*(f.Heads+f.Tile) + 1024/f.Tile*(f.Heads*(f.Tile/2+2)+1) + 6*f.Heads*f.Tile + 4*(f.Heads+f.Tile) + 4
}
