package projection

import (
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// NewJoinedChain is NewLinearChain with the end of the attention in the same launch: parts of rows
// are joined, each head's output is turned back, and the first layer takes the heads as bf16, side
// by side. The bits are those of separate launches.
//
// Errors: those of NewLinearChain; vk.ErrArgument for a first layer whose inputs are not whole
// heads of D; one that wraps vk.ErrMissingFeature where the division of rows leaves too little
// shared memory to join in, and where workgroups are too small for opkit.ChainJoin, so that the
// attention adds in another order.
func NewJoinedChain(first, second *Linear, tokens int) (*LinearChain, error) {
	const op = "joined chain"
	if first == nil || second == nil {
		return nil, pkg.Wrong(op, "layers", "nil", "two that NewLinear made")
	}
	join := opkit.ChainJoin
	if c := first.cfg; c.K%cache.D != 0 {
		return nil, pkg.Wrong(op, "first", fmt.Sprintf("%d inputs", c.K), "a multiple of %d", cache.D)
	}
	if most := first.dev.Caps().MaxWorkgroupInvocations; int(most) < join.Threads() {
		return nil, pkg.Wrap(op, fmt.Errorf("%w: workgroups of %d invocations, this device has up to %d",
			vk.ErrMissingFeature, join.Threads(), most))
	}
	return newLinearChain(op, first, second, tokens, first.cfg.Groups*first.cfg.K/cache.D, nobody)
}

// AttentionParts are rows of attention in parts, as attention.Decoder.RecordParts leaves them.
type AttentionParts struct {
	Out       tensor.Tensor // [T, parts, H, 512] f32: sums relative to 2^m
	State     tensor.Tensor // [T, parts, H, 4] f32: m, the sum of weights relative to 2^m (0 for an empty part), and two unused
	Sink      tensor.Tensor // [H] f32; absent: none
	Positions tensor.Tensor // [T] i32, rows of Table; one outside counts as its nearest row
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines; absent, as Positions: no output is turned
}

// JoinedParts reports whether a chain joins rows of `parts` parts.
func JoinedParts(parts int) bool { return parts > 1 && parts <= opkit.ChainJoin.Parts }

// Joined tells whether parts of rows of attention are joined in front of the first layer.
func (o *LinearChain) Joined() bool { return o != nil && o.heads > 0 }

// access returns the chain's access to the first layer's inputs.
func (o *LinearChain) access() vk.Access {
	if o.heads > 0 {
		return vk.Write
	}
	return vk.Read
}

// checkParts checks what is to be joined.
func (o *LinearChain) checkParts(op string, t int, a LinearChainArgs) error {
	p := a.Parts
	if o.heads == 0 {
		if !p.Out.IsZero() || !p.State.IsZero() || !p.Sink.IsZero() || !p.Positions.IsZero() || !p.Table.IsZero() {
			return pkg.Wrong(op, "Parts", p.Out, "absent without NewJoinedChain")
		}
		return nil
	}
	if err := opkit.FirstError(
		pkg.Check(op, "First.X", a.First.X, tensor.BF16, t, o.heads, cache.D),
		pkg.Check(op, "Parts.Out", p.Out, tensor.F32, t, -1, o.heads, cache.D),
		pkg.Check(op, "Parts.State", p.State, tensor.F32, t, opkit.DimOrZero(p.Out, 1), o.heads, 4),
		pkg.Optional(op, "Parts.Sink", p.Sink, tensor.F32, o.heads),
		pkg.Reach(o.first.dev, op, opkit.DA, opkit.Target{Name: "Parts.Out", T: p.Out, Align: 16},
			opkit.Target{Name: "Parts.State", T: p.State, Align: 16}),
	); err != nil {
		return err
	}
	switch {
	case !JoinedParts(p.Out.Shape[1]):
		return pkg.Wrong(op, "Parts.Out", p.Out, "2 to %d parts", opkit.ChainJoin.Parts)
	case p.Out.Len() >= 1<<32:
		return pkg.Wrong(op, "Parts.Out", p.Out, "fewer than 2^32 numbers")
	case p.Table.IsZero() && p.Positions.IsZero():
		return nil
	}
	return opkit.FirstError(table(op, p.Table), pkg.Check(op, "Parts.Positions", p.Positions, tensor.I32, t),
		pkg.Bindable(o.first.dev, op, "Parts.Table", p.Table))
}

// joins fills in where the parts are, and lists them.
func (o *LinearChain) joins(p AttentionParts, push *projLinearChainPush) []opkit.Target {
	if o.heads == 0 {
		return nil
	}
	push.Splits = uint32(p.Out.Shape[1])
	push.Ahead = uint32(opkit.JoinOf(p.Out.Shape[1]).Ahead)
	push.Flags |= opkit.Bit(1, !p.Sink.IsZero()) | opkit.Bit(2, !p.Table.IsZero())
	if !p.Table.IsZero() {
		push.TableRows = uint32(p.Table.Shape[0])
	}
	return []opkit.Target{{Name: "Parts.Out", T: p.Out, Access: vk.Read, At: &push.PartOutAddr},
		{Name: "Parts.State", T: p.State, Access: vk.Read, At: &push.PartMlAddr}}
}
