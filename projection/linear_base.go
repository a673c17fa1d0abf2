package projection

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
)

// baseTiles is proj_linear: tiles of up to 128 tokens x 128 rows without matrices. It covers any
// number of tokens.
type baseTiles struct {
	*linearLayer
	tiles []baseTile // largest first
}

// baseTile describes the division of work in proj_linear.
type baseTile struct {
	tuning.BaseTile
	kernel *opkit.Later
}

const baseStep = 16 // numbers of a step of proj_linear

func (t baseTile) threads() int     { return t.Tokens / 8 * t.Rows / (4 * t.Quads) }
func (t baseTile) sharedBytes() int { return 4 * baseStep * (t.Tokens + t.Rows) }

// constants are those of the shader after the formats.
func (t baseTile) constants(unroll int) []uint32 {
	return opkit.Constants(t.Tokens, t.Rows, t.Quads, t.threads(), unroll)
}

// fit keeps the tiles that the device has the invocations and the shared memory for.
func (k *baseTiles) fit(l *linearLayer, _ kernelKind) (bool, error) {
	k.linearLayer = l
	for _, x := range l.tune.Base.Tiles {
		t := baseTile{BaseTile: x}
		if t.threads() <= int(l.caps.MaxWorkgroupInvocations) && t.sharedBytes() <= int(l.caps.SharedMemory) {
			k.tiles = append(k.tiles, t)
		}
	}
	return true, nil
}

func (k *baseTiles) reach() int { return math.MaxInt }

func (k *baseTiles) covers(int) bool { return true }

func (k *baseTiles) build(int) {
	for i, t := range k.tiles {
		spec := k.spec("proj_linear", t.constants(k.tune.Base.Unroll)...)
		spec.Divisible = true
		k.tiles[i].kernel = k.later(spec)
	}
}

// plan takes the tile and the parts of K of the least cost.
func (k *baseTiles) plan(T, scratch int) linearPlan {
	p := linearPlan{step: baseStep}
	var best baseTile
	least := math.Inf(1)
	for _, t := range k.tiles {
		for parts := 1; parts == 1 || k.allowed(parts, T, scratch); parts++ {
			if cost := k.cost(t, T, parts); cost < least {
				least, best = cost, t
				p.cut(k.cfg.K, parts)
			}
		}
	}
	p.kernel = best.kernel
	p.grid = [3]uint32{uint32(opkit.CeilDiv(T, best.Tokens)), uint32(opkit.CeilDiv(k.cfg.N, best.Rows)), uint32(k.cfg.Groups * p.splits)}
	return p
}

// allowed tells whether K may be cut so.
func (k *baseTiles) allowed(parts, T, scratch int) bool {
	p := &k.tune.Parts
	return parts <= p.Most && parts*T*k.rows() <= scratch && p.LeastSteps*parts*baseStep <= k.cfg.K
}

// cost is about how long tiles in parts of K take, with their sums. Tiles are dealt out
// among the compute units; a unit with few invocations waits more.
func (k *baseTiles) cost(t baseTile, T, parts int) float64 {
	p := &k.tune.Base
	units := max(1, k.cfg.Workgroups/k.device.PerUnit)
	tiles := opkit.CeilDiv(T, t.Tokens) * opkit.CeilDiv(k.cfg.N, t.Rows) * k.cfg.Groups * parts
	steps := opkit.CeilDiv(opkit.CeilDiv(k.cfg.K, baseStep), parts)
	busy := min(1, tuning.BaseIdleRate+tuning.BaseThreadsRate*float64(tiles*t.threads())/float64(units*p.Threads))
	cost := float64(opkit.CeilDiv(tiles, units)*t.Tokens*t.Rows*steps*baseStep) / (t.Rate * busy)
	if parts > 1 {
		cost += tuning.BaseLaunchCost + tuning.BaseMoveCost*float64(parts*T*k.rows())/float64(units)
		cost *= float64(tuning.PartsGain) / (tuning.PartsGain - 1)
	}
	return cost
}
