package projection

import (
	"math"

	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// PushLayouts is for the tests outside the package, which alone can use testkit.
var PushLayouts = pushLayouts

// LanesRequired are the features of kernels whose invocations pass numbers on inside
// subgroups.
func LanesRequired() []string { return shaders.Requires("proj_q_insert_lanes") }

// Lanes are by how many lanes the kernels of a layer that load fragments themselves share
// a row, each 0 if there is no such kernel.
func Lanes(o *Linear) (thin, mid int) {
	if len(o.thin) > 0 {
		thin = o.thin[0].lanes
	}
	if len(o.mid) > 0 {
		mid = o.mid[0].lanes
	}
	return thin, mid
}

// WholeRows is how many rows of a launch of t tokens are computed whole while the others are
// in parts; 0 where all are the same.
func WholeRows(o *Linear, t int) int { return o.plan(t, math.MaxInt32).whole }

// NewLinearMid is NewLinear without proj_linear_tokens8to32, which takes layers as small as tests
// have them.
func NewLinearMid(dev *vk.Device, cfg LinearConfig) (*Linear, error) {
	return newLinear(dev, cfg, linearDivider{tilings: linearTilings, mid: midDivision})
}

// Paired tells whether t tokens are computed by proj_linear_whole where tiles compute them.
func Paired(o *Linear, t int) bool { return o.tilingFor(t, math.MaxInt32).of(t).pairs }

// Together makes a chain one launch on every device.
func Together(o *LinearChain) { o.apart = false }

// NewLinearLong is NewLinear with all kernels of the builds without matrices, also on a CPU.
func NewLinearLong(dev *vk.Device, cfg LinearConfig) (*Linear, error) {
	return newLinear(dev, cfg, linearDivider{})
}

// OnlyTiles are o with one of the tiles of the builds without matrices each.
func OnlyTiles(o *Linear) (all []*Linear) {
	for i := range o.plain {
		x := *o
		x.plain = o.plain[i : i+1]
		all = append(all, &x)
	}
	return all
}
