package projection

import (
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// kernelKind is one way to multiply by the weights of a layer: a shader and the rules by which it
// is built and launched. A kind is one file, named after its shader.
type kernelKind interface {
	// fit divides a layer for the shader, before any kernel is made. It is false where the device
	// or the layer does not suit. next is the kind that takes more tokens, nil for the last.
	fit(l *linearLayer, next kernelKind) (bool, error)
	// reach returns the most tokens that never come to a later kind.
	reach() int
	// covers tells whether T tokens are this kind's, unless an earlier one covers them.
	covers(T int) bool
	// build says what the kernels for from tokens or more are.
	build(from int)
	// plan is the launch for T tokens, which it covers, with `scratch` f32 of scratch memory.
	plan(T, scratch int) linearPlan
}

// linearKinds are the kinds of kernels of a variant, fewest tokens first. The last covers any
// number.
func linearKinds(variant string) []kernelKind {
	if matrixElement[variant] == "" {
		return []kernelKind{&tokens1to8{}, &tokens8to16{}, &baseTiles{}}
	}
	return []kernelKind{&tokens1to8{}, &tokens8to32{}, &tokens32to64{}, &matrixTiles{}}
}

// fitKinds keeps the kinds that suit a layer. It begins with the last, so that each knows what
// comes after it.
func fitKinds(l *linearLayer, all []kernelKind) ([]kernelKind, error) {
	var kinds []kernelKind // the last first
	var next kernelKind
	for i := range all {
		k := all[len(all)-1-i]
		ok, err := k.fit(l, next)
		if err != nil {
			return nil, err
		}
		if ok {
			kinds, next = append(kinds, k), k
		}
	}
	slices.Reverse(kinds)
	return kinds, nil
}

// plan picks the kernel for T tokens, with `scratch` f32 of scratch memory.
func (o *Linear) plan(T, scratch int) linearPlan {
	for _, k := range o.kinds[:len(o.kinds)-1] {
		if k.covers(T) {
			return k.plan(T, scratch)
		}
	}
	return o.kinds[len(o.kinds)-1].plan(T, scratch)
}

// linearPlan describes the launches for a number of tokens.
type linearPlan struct {
	kernel     *opkit.Later
	grid       [3]uint32
	splits     int  // parts of K, summed by a second launch where there are several
	splitSteps int  // of each
	step       int  // numbers of K in one
	whole      int  // rows that a launch before has in one part, with as many steps as there are; the grid has the others
	rows       int  // of a tile, where there are such
	norms      bool // the kernel can norm what it gives
}

// linearLayer holds the part of a layer that the kinds of kernels share.
type linearLayer struct {
	dev     *vk.Device
	caps    *vk.Caps
	cfg     LinearConfig
	variant string
	format  *format
	tune    *tuning.Linear
	device  *tuning.Device
	lanes   laneFinder
	kernels []*opkit.Later // of all kinds
}

// matrixElement is the type of the elements that a variant's matrices have.
var matrixElement = map[string]string{opkit.CM: "f16", opkit.CMB: "bf16"}

// matrices tells whether there are cooperative matrices.
func (l *linearLayer) matrices() bool { return matrixElement[l.variant] != "" }

// halves tells whether the variant multiplies pairs of halves.
func (l *linearLayer) halves() bool { return l.variant == opkit.Dot }

// buildOf is the build of a kernel that the variant takes. Of those without pairs of halves it is
// the one that decodes to halves, where it needs no matrices.
func (l *linearLayer) buildOf(stem string) string {
	if !l.halves() || shaders.Requires(opkit.Stem(stem, l.variant)) != nil {
		return l.variant
	}
	if need := shaders.Requires(opkit.Stem(stem, opkit.CM)); need != nil && !slices.Contains(need, "cooperativeMatrix") {
		return opkit.CM
	}
	return opkit.DA
}

// rows are the rows of all groups.
func (l *linearLayer) rows() int { return l.cfg.N * l.cfg.Groups }

// runs tells whether the device can run a kernel.
func (l *linearLayer) runs(stem string) bool {
	return l.caps.Missing(shaders.Requires(opkit.Stem(stem, l.buildOf(stem)))) == nil
}

// enough tells whether MaxTokens needs no kernels for more tokens.
func (l *linearLayer) enough(tokens int) bool {
	return l.cfg.MaxTokens > 0 && tokens >= l.cfg.MaxTokens
}

// later is a kernel of a specification.
func (l *linearLayer) later(s opkit.Spec) *opkit.Later {
	k := pkg.Later(l.dev, s)
	l.kernels = append(l.kernels, k)
	return k
}

// spec begins the specification of a kernel, whose constants follow those of the formats.
func (l *linearLayer) spec(stem string, constants ...uint32) opkit.Spec {
	return opkit.Spec{
		Stem: stem, Variant: l.buildOf(stem),
		Bindings:  []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write},
		Bound:     3,
		Push:      projLinearPush{},
		Constants: append([]uint32{l.format.word(), uint32(l.cfg.Activations)}, constants...),
	}
}

// rowTiles returns the number of tiles of `rows` rows in a group. They begin at multiples of their
// size among the rows of all groups, which a group need not.
func (l *linearLayer) rowTiles(rows int) int {
	n := opkit.CeilDiv(l.cfg.N, rows)
	if l.cfg.Groups > 1 && l.cfg.N%rows != 0 {
		n++
	}
	return n
}

// laneFinder finds how many lanes share a row of a fragment, for kernels that load fragments
// themselves; 0: no number that they could use. Errors: those of running a kernel.
type laneFinder func(m, n, k, subgroup int) (int, error)

// findLanes asks the device.
func (l *linearLayer) findLanes(m, n, k, subgroup int) (int, error) {
	words, err := pkg.MatrixLayout(l.dev, l.variant, m, n, k, subgroup)
	return layoutLanes(m, n, k, subgroup, words), err
}

// findRows asks the device how it holds rows, of lib/cm_rows.glsl.
func (l *linearLayer) findRows(t linearTiling) (int, error) {
	return pkg.MatrixRows(l.dev, l.variant, t.m, t.n, t.k, t.subgroup, l.device.MatrixRows)
}

func (o *Linear) checkGrid(op string, p linearPlan) error {
	for i, limit := range o.caps.MaxWorkgroupCount {
		if p.grid[i] > limit {
			return pkg.Wrong(op, "Out", p.grid, "at most %v workgroups on this device", o.caps.MaxWorkgroupCount)
		}
	}
	return nil
}
