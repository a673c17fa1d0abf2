package attention

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Parts are rows of attention that are split, before they are joined: for each part
// and head numbers relative to 2^m, and m. MergeRef says what becomes of them.
type Parts struct {
	Out   tensor.Tensor // [T, splits, H, 512] f32: sums of weighted values; anything where l is 0
	State tensor.Tensor // [T, splits, H, 4] f32: m, the sum of weights l, the largest score, 0; in base 2
}

// RecordParts records what Record does but for the joining of parts, which is left to
// somebody else: a.Out is not written, and the sink does not count yet. The parts lie in
// a.Scratch until something else is written there.
//
// Errors: those of Record; vk.ErrArgument where rows are not split, see Splits, and for LSE
// and Turn, which belong to the joining.
func (o *Decoder) RecordParts(rec *vk.Recorder, a DecodeArgs) (Parts, error) {
	const op = "decode parts"
	switch t, win, comp := opkit.Dim(a.Q, 0), opkit.Dim(a.Window.Indices, 1), opkit.Dim(a.Compressed.Indices, 1); {
	case o.twoPass != nil || t == 0 || o.Splits(t, win, comp) == 1:
		return Parts{}, pkg.Wrong(op, "Q", a.Q, "tokens whose rows are split")
	case !a.LSE.IsZero():
		return Parts{}, pkg.Wrong(op, "LSE", a.LSE, "absent")
	case !a.Turn.IsZero():
		return Parts{}, pkg.Wrong(op, "Turn", a.Turn.Table, "absent")
	}
	return o.record(op, rec, a)
}
