package attention

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Where DecoderConfig.Invariant has the rows of all steps in as many parts, thousands of tokens
// would need gigabytes for them. So a Record takes a piece of the tokens at a time, whose parts are
// joined before those of the next piece take their place.

// pieceTokens divides the tokens of a piece, so that its rows of every tensor begin where a
// descriptor may: each has 4 bytes a token at least.
const pieceTokens = 64

// piece is the most tokens whose parts lie in scratch memory together: as many as the plan permits
// where it is free, or pieceTokens.
func (s splitter) piece(p plan) int {
	if !s.invariant || p.splits == 1 {
		return math.MaxInt
	}
	x := s.tilings[p.build]
	most := s.tune.Waves * s.room(x) / (opkit.CeilDiv(s.heads, x.heads) * p.splits)
	return max(most/pieceTokens*pieceTokens, pieceTokens)
}

// pieces are the first tokens of the pieces of a Record; none where it is in one.
func (o *Decoder) pieces(a DecodeArgs) (first []int) {
	t := opkit.DimOrZero(a.Q, 0)
	if o.twoPass != nil || !o.invariant {
		return nil
	}
	each := o.piece(o.plan(t, opkit.DimOrZero(a.Window.Indices, 1)+opkit.DimOrZero(a.Compressed.Indices, 1)))
	for at := 0; t > each && at < t; at += each {
		first = append(first, at)
	}
	return first
}

// recordPieces is Record by pieces, after a check of all tokens.
func (o *Decoder) recordPieces(op string, rec *vk.Recorder, a DecodeArgs, first []int) error {
	t := opkit.DimOrZero(a.Q, 0)
	if err := opkit.FirstError(o.checkRope(op, t, a), checkDecode(o.dev, op, o.cfg, a)); err != nil {
		return err
	}
	for i, from := range first {
		to := t
		if i+1 < len(first) {
			to = first[i+1]
		}
		if err := o.recordWhole(op, rec, a.rows(from, to)); err != nil {
			return err
		}
	}
	return nil
}

// rows are the arguments for some of the tokens.
func (a DecodeArgs) rows(from, to int) DecodeArgs {
	for _, x := range []*tensor.Tensor{&a.Q, &a.Window.Indices, &a.Window.Lens, &a.Compressed.Indices, &a.Compressed.Lens,
		&a.Out, &a.LSE, &a.InverseRope.Positions, &a.Norm.Positions} {
		*x = x.Rows(from, to)
	}
	return a
}
