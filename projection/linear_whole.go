package projection

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// pairRowBytes bounds the rows of x and weights of proj_linear_whole, whose offsets
// within a tile have 32 bits.
const pairRowBytes = 1 << 26

// paired is the same tiles by proj_linear_whole, which loads the numbers of two steps at
// a time; false where the layer's rows do not fill them, or its loads do not divide
// among the invocations.
//
// Of bf16 rows two steps of 32 are a line of 128 bytes, and what an H100's second-level
// cache gives a multiprocessor is bound by requests: whole lines come in half the time
// of their halves.
// docs/design/linear.md has the measurements.
func (t linearTiling) paired(caps *vk.Caps, cfg LinearConfig) (linearTiling, bool) {
	t.pairs, t.blocks = true, cfg.Weights.fp8()
	x, stored := 8, t.subgroup/max(1, t.wn/4) // rows that a subgroup stores at a time
	if cfg.Activations != ActivationBF16 {
		x = 16
	}
	whole := cfg.N%t.bn == 0 && cfg.K%t.span() == 0 && 2*cfg.K*max(cfg.Groups, 1) < pairRowBytes
	return t, whole && t.bk == 32 && t.passes(t.bm, 2*t.bk/x) && t.passes(t.bn, 2*t.bk/cfg.Weights.perQuad()) && stored > 0 && t.m%stored == 0 &&
		t.registers(operandCopies(caps)) <= opkit.MatrixRegisters(t.subgroup, t.threads())
}

// buildPair makes the kernel for the same tiles by pairs of steps; nil where they cannot
// come so, or the device lacks what it needs.
func (o *Linear) buildPair(spec opkit.Spec, d linearTiling) (*matrixKernel, error) {
	caps := o.dev.Caps()
	spec.Stem = "proj_linear_whole"
	d, ok := d.paired(caps, o.cfg)
	if !ok || caps.Missing(shaders.Requires(opkit.Stem(spec.Stem, o.variant))) != nil {
		return nil, nil
	}
	k, err := pkg.Kernel(o.dev, spec)
	if err != nil {
		return nil, err
	}
	return &matrixKernel{linearTiling: d, k: k}, nil
}

// passes tells whether all invocations load so many rows, of each of them so many quads
// by neighbours, in pairs of passes, and at least so many rows at a time that neighbours
// store to different banks.
func (t linearTiling) passes(rows, quads int) bool {
	lines, least := t.threads()/quads, 8
	if quads == 8 {
		least = 4
	}
	return lines >= least && lines <= 64 && rows%(2*lines) == 0
}
