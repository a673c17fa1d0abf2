package projection

import "github.com/vkmla/vkmla/internal/opkit"

// wholeRowBytes bounds the rows of x and weights of proj_linear_whole, whose offsets
// within a tile have 32 bits.
const wholeRowBytes = 1 << 26

// wholeTile returns the tile as proj_linear_whole computes it, which loads the numbers of two steps
// at a time. It is nil if the device lacks a feature or registers, if the layer's rows do not fill
// the tile, or if loads do not divide among the invocations.
//
// Two steps of 32 bf16 numbers are a line of 128 bytes. What the second-level cache gives a
// multiprocessor is bound by requests: whole lines come in half the time of their halves. Of FP8
// weights four steps are a line, and come together where linesFit says so.
func (l *linearLayer) wholeTile(t linearTiling) *matrixTile {
	if !l.tune.Tiles.Pairs || !l.runs("proj_linear_whole") || l.cfg.MaxTokens > 0 && l.cfg.MaxTokens < t.bm {
		return nil
	}
	t.pairs, t.blocks = true, l.format.span
	stored := t.subgroup / max(1, t.wn/4) // rows that a subgroup stores at a time
	rows := l.cfg.N%t.bn == 0 && l.cfg.K%t.span() == 0 && 2*l.cfg.K*l.cfg.Groups < wholeRowBytes
	loads := t.bk == 32 && t.passes(t.bm, 2*t.bk/l.cfg.Activations.row().quad)
	if t.blocks > 0 && l.linesFit() {
		loads = loads && t.passes(t.bn/2, t.blocks/l.format.quad) // in two passes for each pair of steps
	} else {
		loads = loads && t.passes(t.bn, 2*t.bk/l.format.quad)
	}
	stores := stored > 0 && t.m%stored == 0
	if !rows || !loads || !stores || t.registers(l.caps, l.device) > l.device.MatrixRegisters(t.subgroup, t.threads()) {
		return nil
	}
	return &matrixTile{linearTiling: t}
}

// linesFit reports, for weights with a scale a line, whether the registers hold three steps of a
// line beside the decoding of x. They do not with packed scales (bf16 elements) or with bf16
// activations (f16 elements).
func (l *linearLayer) linesFit() bool {
	if l.variant == opkit.CMB {
		return l.cfg.Activations != ActivationFP8Packed
	}
	return l.cfg.Activations != ActivationBF16
}

// passes tells whether the loads of a tile divide: neighbouring invocations load the quads of a
// row, every invocation loads an even number of quads, and a pass has enough rows that neighbours
// store to different banks.
func (t linearTiling) passes(rows, quads int) bool {
	lines, least := t.threads()/quads, 8
	if quads == 8 {
		least = 4
	}
	return lines >= least && lines <= 64 && rows%(2*lines) == 0
}
