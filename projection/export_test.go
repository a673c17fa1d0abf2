package projection

import (
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// LanesRequired are the features of kernels whose invocations pass numbers on inside
// subgroups.
func LanesRequired() []string { return shaders.Requires("proj_q_insert_lanes") }

// Tiles8to32 returns the tiles of a workgroup of proj_linear_tokens8to32 for the most tokens.
func Tiles8to32(o *Linear) int {
	d := kindOf[*tokens8to32](o).divisions
	return d[len(d)-1].tiles
}

// Lanes are by how many lanes the kernels of a layer that load fragments themselves share
// a row, each 0 if there is no such kernel.
func Lanes(o *Linear) (tokens8to32Lanes, tokens32to64Lanes int) {
	if k := kindOf[*tokens8to32](o); k != nil {
		tokens8to32Lanes = k.divisions[0].lanes
	}
	if k := kindOf[*tokens32to64](o); k != nil {
		tokens32to64Lanes = k.divisions[0].lanes
	}
	return tokens8to32Lanes, tokens32to64Lanes
}

// kindOf is the kind of kernels of a type that a layer has; else that type's zero.
func kindOf[K kernelKind](o *Linear) (none K) {
	if o == nil {
		return none
	}
	for _, k := range o.kinds {
		if k, ok := k.(K); ok {
			return k
		}
	}
	return none
}

// WholeRows returns the number of rows of a launch of t tokens that are computed whole while the
// others are in parts; 0 where all are the same.
func WholeRows(o *Linear, t int) int { return o.plan(t, math.MaxInt32).whole }

// NewLinearOf is NewLinear with the numbers of a profile.
func NewLinearOf(dev *vk.Device, cfg LinearConfig, tune *tuning.Linear) (*Linear, error) {
	p := *tuning.Of(dev)
	p.Linear = *tune
	return newLinear(dev, cfg, &p, kindsOf(cfg))
}

// OrderOf says in which order the layer adds for t tokens, as far as kinds decide it: the length of
// a product, the numbers of K of a step, and the sums among which steps are dealt out.
func OrderOf(o *Linear, t int) (order [3]int) {
	k := o.kinds[len(o.kinds)-1]
	for _, x := range o.kinds[:len(o.kinds)-1] {
		if x.covers(t) {
			k = x
			break
		}
	}
	switch k := k.(type) {
	case *tokens8to16:
		return [3]int{1, k.passes[0].lanes * k.format.quad, 1}
	case *tokens8to32:
		d := k.divisions[len(k.divisions)-1]
		return [3]int{d.k, d.ahead * d.lanes * k.format.quad, d.parts}
	case *tokens32to64:
		d := k.division(t)
		return [3]int{d.k, d.round(), d.sums}
	case *matrixTiles:
		return [3]int{k.tile(t, 0).k, k.tile(t, 0).k, 1}
	}
	return order
}

// NewLinear32to64 is NewLinear without proj_linear_tokens8to32, which takes layers as small as
// tests have them.
func NewLinear32to64(dev *vk.Device, cfg LinearConfig) (*Linear, error) {
	return newLinear(dev, cfg, tuning.Of(dev), func(variant string) []kernelKind {
		return slices.DeleteFunc(linearKinds(variant), func(k kernelKind) bool { _, ok := k.(*tokens8to32); return ok })
	})
}

// NewLinearTiled is NewLinear with tiles of one shape, BM, BN, BK, WM, WN, and no other kernels
// with matrices. What lavapipe multiplies lies by rows, of lib/cm_rows.glsl, for FP8 with UE8M0
// scales.
func NewLinearTiled(dev *vk.Device, cfg LinearConfig, shape [5]int) (*Linear, error) {
	p := *tuning.Of(dev)
	p.Linear.Tiles.Shapes, p.Linear.Tiles.Pairs = []tuning.LinearTile{{
		Tokens: shape[0], Rows: shape[1], Step: shape[2], SubgroupTokens: shape[3], SubgroupRows: shape[4]}}, true
	if cfg.Weights == FormatFP8 {
		p.Device.MatrixRows = 2
	}
	return newLinear(dev, cfg, &p, onlyTiles)
}

// onlyTiles are the kinds of a layer whose tiles with matrices are exact.
func onlyTiles(variant string) []kernelKind {
	if matrixElement[variant] == "" {
		return linearKinds(variant)
	}
	return []kernelKind{&tokens1to8{}, &matrixTiles{exact: true}}
}

// NewLinearCodes is NewLinear with the profile's tiles for codes and no other kernels with
// matrices. It is false where the device has no such tile.
func NewLinearCodes(dev *vk.Device, cfg LinearConfig) (o *Linear, ok bool, err error) {
	p := *tuning.Of(dev)
	p.Linear.Tiles.Shapes = slices.Clone(p.Linear.Tiles.Codes)
	for i := range p.Linear.Tiles.Shapes {
		p.Linear.Tiles.Shapes[i].Step /= 2 // of halves, in whose place those of codes come
	}
	if len(p.Linear.Tiles.Codes) == 0 {
		return nil, false, nil
	}
	o, err = newLinear(dev, cfg, &p, onlyTiles)
	tiles := kindOf[*matrixTiles](o)
	return o, err == nil && tiles != nil && tiles.tiles[0].codes, err
}

// Paired tells whether the most tokens are computed by proj_linear_whole where tiles compute them.
func Paired(o *Linear) bool {
	t := o.cfg.MaxTokens
	return kindOf[*matrixTiles](o).tile(t, math.MaxInt32).of(t).pairs
}

// Together makes a chain one launch on every device.
func Together(o *LinearChain) { o.apart = false }

// StarvedChain makes a chain of one launch, with the joining or without, whose workgroup `silent`
// gives nothing. The others give up after `polls` looks.
func StarvedChain(first, second *Linear, tokens int, joined bool, silent, polls int) (*LinearChain, error) {
	heads := 0
	if joined {
		heads = first.cfg.Groups * first.cfg.K / cache.D
	}
	one, layer, tune := *first, *first.linearLayer, *first.tune
	tune.ChainPolls = polls
	layer.tune = &tune
	one.linearLayer = &layer
	o, err := newLinearChain("starved chain", &one, second, tokens, heads, silent)
	if err == nil {
		o.apart = false
	}
	return o, err
}

// OnlyTiles are o with one of the tiles of the builds without matrices each.
func OnlyTiles(o *Linear) (all []*Linear) {
	tiles := kindOf[*baseTiles](o)
	for i := range tiles.tiles {
		x, one := *o, *tiles
		one.tiles = tiles.tiles[i : i+1]
		x.kinds = append(slices.Clone(o.kinds[:len(o.kinds)-1]), &one)
		all = append(all, &x)
	}
	return all
}

// PlansOf lists what a layer launches for some numbers of tokens, and with how much scratch memory.
func PlansOf(o *Linear) (plans []any) {
	for _, T := range []int{1, 2, 3, 4, 7, 8, 12, 16, 17, 24, 32, 33, 40, 48, 49, 64, 96, 97, 128, 129, 256, 500, 1024, 4096} {
		if o.cfg.MaxTokens == 0 || T <= o.cfg.MaxTokens {
			p := o.plan(T, math.MaxInt32)
			kernel, err := p.kernel.Kernel() // a device has one for the same constants
			p.kernel = nil
			plans = append(plans, fmt.Sprintf("%p %v %v", kernel, err, p))
		}
	}
	return plans
}

// ChainLaunches counts the launches of a chain of two layers of V4-Flash on a device.
func ChainLaunches(dev *vk.Device, tune *tuning.Linear) any {
	var layers [2]*Linear
	for i, cfg := range []LinearConfig{{N: 1024, K: 4096, Groups: 8}, {N: 4096, K: 8192}} {
		cfg.Weights, cfg.Out = FormatFP8F32, tensor.BF16
		var err error
		if layers[i], err = NewLinearOf(dev, cfg, tune); err != nil {
			return err.Error()
		}
	}
	c, err := NewLinearChain(layers[0], layers[1], 1)
	if err != nil {
		return err.Error()
	}
	kernel, err := c.divisions[0].kernel.Kernel() // a device has one for the same constants
	return fmt.Sprintf("%v of %p, %v", c.launches(1), kernel, err)
}

// SubgroupFor is the size of subgroups inside which kernels pass numbers on, on a device.
func SubgroupFor(c *vk.Caps, tune *tuning.Linear) any { return subgroupFor(c, tune) }

// DataBytes is the size of the data of rows x k weights.
func (f Format) DataBytes(rows, k int) int { return f.bytes(rows, k) }
