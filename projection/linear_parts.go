package projection

import (
	"github.com/vkmla/vkmla/internal/opkit"

	"github.com/vkmla/vkmla/internal/tuning"
)

// Few tiles are computed in parts of K, so that more of the device is busy. A second launch adds
// up the parts, which lie in scratch memory.

// cut divides k numbers into about `splits` parts of whole steps, none of them empty.
func (p *linearPlan) cut(k, splits int) {
	steps := opkit.CeilDiv(k, p.step)
	p.splitSteps = opkit.CeilDiv(steps, splits)
	p.splits = opkit.CeilDiv(steps, p.splitSteps)
}

// partsFor is into how many parts K is cut where `fill` workgroups fill the device.
// Writing and reading the f32 parts is not to outweigh reading the weights.
func (l *linearLayer) partsFor(tiles, fill, steps, T, scratch int) int {
	p := &l.tune.Parts
	if l.cfg.Invariant {
		return 1
	}
	return max(1, min(fill/tiles, steps/p.LeastSteps, p.Most, l.cfg.Weights.bytes(1, l.cfg.K)/(4*T), scratch/(T*l.rows())))
}

// partsCost returns the time of `tiles` tiles in `parts` parts of K, with their sums, in numbers of
// K.
func (l *linearLayer) partsCost(tiles, fill, parts int) int {
	return opkit.CeilDiv(parts*tiles, fill)*l.cfg.K/parts + opkit.CeilDiv(parts*tiles*tuning.PartCost, fill) + tuning.LaunchCost
}
