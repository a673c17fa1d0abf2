package attention

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Parts are rows of attention that are split, before they are joined. Each part has its own sums
// for each head, relative to 2^m. MergeRef says how they are joined.
type Parts struct {
	Out   tensor.Tensor // [T, splits, H, 512] f32: sums of weighted values; anything where l is 0
	State tensor.Tensor // [T, splits, H, 4] f32: m, the sum of weights l, the largest score, 0; in base 2
}

// RecordParts records what Record does, except joining the parts, which the caller does. It does
// not write a.Out, and the sink does not count yet. The parts lie in a.Scratch until something else
// is written there.
//
// Errors: those of Record; vk.ErrArgument where rows are not split, see Splits, and for LSE and
// InverseRope, which belong to the joining.
func (o *Decoder) RecordParts(rec *vk.Recorder, a DecodeArgs) (Parts, error) {
	const op = "decode parts"
	switch t, win, comp := opkit.DimOrZero(a.Q, 0), opkit.DimOrZero(a.Window.Indices, 1), opkit.DimOrZero(a.Compressed.Indices, 1); {
	case o.twoPass != nil || t == 0 || o.Splits(t, win, comp) == 1:
		return Parts{}, pkg.Wrong(op, "Q", a.Q, "a number of tokens with Splits > 1")
	case len(o.pieces(a)) > 0:
		return Parts{}, pkg.Wrong(op, "Q", a.Q, "so few tokens that all their parts fit the scratch memory")
	case !a.LSE.IsZero():
		return Parts{}, pkg.Wrong(op, "LSE", a.LSE, "absent")
	case !a.InverseRope.isZero():
		return Parts{}, pkg.Wrong(op, "InverseRope", a.InverseRope.Table, "absent")
	}
	return o.record(op, rec, a)
}
