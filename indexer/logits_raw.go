package indexer

import (
	"cmp"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// RawQueries are queries as the projection left them. The kernel of the scores turns and quantises
// them with the bits of QueryQuant, which saves a launch: every workgroup does it for its token
// while its first keys are on their way. They are not mixed by Hadamard's matrix.
type RawQueries struct {
	Q         tensor.Tensor // [T, H, 128] bf16
	Positions tensor.Tensor // [T] i32; one outside the table counts as its nearest row
	Weights   tensor.Tensor // [T, H] bf16
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines

	SoftmaxScale float32 // 0: DefaultSoftmaxScale
	HeadScale    float32 // 0: DefaultHeadScale of the number of heads
}

// isZero reports whether they are absent.
func (r RawQueries) isZero() bool { return r.Q.IsZero() && r.Weights.IsZero() }

// rows are those of some of the tokens.
func (r RawQueries) rows(part func(tensor.Tensor) tensor.Tensor) RawQueries {
	r.Q, r.Positions, r.Weights = part(r.Q), part(r.Positions), part(r.Weights)
	return r
}

func (r RawQueries) targets() []opkit.Target {
	return []opkit.Target{
		{Name: "Raw.Q", T: r.Q, Access: vk.Read, Align: 16}, {Name: "Raw.Weights", T: r.Weights, Access: vk.Read, Align: 4},
		{Name: "Raw.Positions", T: r.Positions, Access: vk.Read, Align: 4}, {Name: "Raw.Table", T: r.Table, Access: vk.Read, Align: 16},
	}
}

// raw puts queries r in place of quantised ones.
func (p *idxLogitsPush) raw(r RawQueries) {
	p.QAddr, p.QScaleAddr, p.WeightsAddr, p.TableAddr = address(r.Q), address(r.Positions), address(r.Weights), address(r.Table)
	p.Tokens, p.SoftmaxScale = uint32(r.Table.Shape[0]), cmp.Or(r.SoftmaxScale, DefaultSoftmaxScale)
	p.HeadScale = cmp.Or(r.HeadScale, DefaultHeadScale(int(p.Heads)))
}

// address is the device address of a tensor, 0 of an absent one.
func address(t tensor.Tensor) uint64 {
	if t.IsZero() {
		return 0
	}
	return t.View().Address()
}

// tokens is T.
func (a LogitsArgs) tokens() int {
	if a.Raw.isZero() {
		return opkit.DimOrZero(a.Q, 0)
	}
	return opkit.DimOrZero(a.Raw.Q, 0)
}

// checkRaw checks queries that are to be quantised.
func (o *Logits) checkRaw(op string, t int, a LogitsArgs) error {
	for name, x := range map[string]tensor.Tensor{"Q": a.Q, "QScale": a.QScale, "Weights": a.Weights} {
		if !x.IsZero() {
			return pkg.Wrong(op, name, x, "absent: with LogitsConfig.Raw it is in Raw")
		}
	}
	h, r := o.cfg.Heads, a.Raw
	if err := opkit.FirstError(
		pkg.Check(op, "Raw.Q", r.Q, tensor.BF16, t, h, cache.IndexDim),
		pkg.Check(op, "Raw.Positions", r.Positions, tensor.I32, t),
		pkg.Check(op, "Raw.Weights", r.Weights, tensor.BF16, t, h),
		pkg.Check(op, "Raw.Table", r.Table, tensor.F32, -1, cache.RopeDim),
		checkScale(op, "Raw.SoftmaxScale", r.SoftmaxScale),
		checkScale(op, "Raw.HeadScale", r.HeadScale),
	); err != nil {
		return err
	}
	if r.Table.Shape[0] < 1 {
		return pkg.Wrong(op, "Raw.Table", r.Table, "at least one row")
	}
	return nil
}
