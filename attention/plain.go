package attention

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// plainForm is how a build without matrix units divides its work; the letters are those of shaders/lib/sparse_mla.glsl.
type plainForm struct {
	heads int     // HG, heads of a workgroup
	tile  int     // TILE, rows of cache at a time
	room  int     // workgroups that share a compute unit with 48 KiB of shared memory, which is what an H100 gives them
	cost  float64 // of a tile where that many do, in microseconds of an H100: about what the constants of splitter.plan are in
}

// plainForms are the forms that there are, the one with the most heads first. What every device has, 128 invocations and 16 KiB of
// shared memory, is enough for the last.
var plainForms = []plainForm{{16, 16, 1, 3.8}, {8, 8, 2, 2.6}, {4, 8, 3, 2.9}}

func (f plainForm) threads() int { return 16 * f.heads }

// sharedBytes is the sum of the shared arrays.
func (f plainForm) sharedBytes() int {
	return 1024*(f.heads+f.tile) + 1024/f.tile*(f.heads*(f.tile/2+2)+1) + 6*f.heads*f.tile + 4*(f.heads+f.tile) + 4
}

// baseTiling is the tiling of the builds without matrix units: the first form that a device has shared memory and invocations for
// and that heads fill more than half of. A row is dequantised for each workgroup anew, so that few heads are no good even where
// there are few tokens (docs/design/decode.md).
func baseTiling(caps *vk.Caps, heads int) tiling {
	f := plainForms[len(plainForms)-1]
	for _, x := range plainForms {
		if x.sharedBytes() <= int(caps.SharedMemory) && x.threads() <= int(caps.MaxWorkgroupInvocations) && x.heads < 2*heads {
			f = x
			break
		}
	}
	return tiling{HeadsPerGroup: f.heads, Tile: f.tile, Constants: opkit.Words(f.threads()), PerUnit: f.room, RowCost: f.cost}
}
