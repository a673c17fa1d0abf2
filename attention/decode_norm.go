package attention

import (
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// QueryNorm says that Q is as the projection left it. Each head is divided by its root mean square,
// its last 64 numbers are rotated by RoPE at the token's position, and all are rounded to bf16. Q
// itself stays. It takes no launch of its own, and has the bits of projection.QInsert.
type QueryNorm struct {
	Eps       float32       // added to the mean square, positive
	Positions tensor.Tensor // [T] i32, rows of Table; one outside counts as its nearest row
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines
}

// isZero reports whether queries are normed already.
func (n QueryNorm) isZero() bool { return n.Eps == 0 && n.Positions.IsZero() && n.Table.IsZero() }

// NormsQueries reports whether DecodeArgs.Norm may be given in a step of `tokens` tokens, with
// lists of window and topk entries. It may where workgroups have few heads, as they do for few
// tokens. With more heads each workgroup would norm more queries, and a launch of its own is
// shorter.
func (o *Decoder) NormsQueries(tokens, window, topk int) bool {
	return o.twoPass == nil && o.tilings[o.plan(tokens, window+topk).build].norms
}

// checkRope checks DecodeArgs.Norm and DecodeArgs.InverseRope, where they are given.
func (o *Decoder) checkRope(op string, t int, a DecodeArgs) error {
	win, comp := opkit.DimOrZero(a.Window.Indices, 1), opkit.DimOrZero(a.Compressed.Indices, 1)
	if !a.InverseRope.isZero() {
		if !o.InvertsRope(t, win, comp) {
			return pkg.Wrong(op, "InverseRope", a.InverseRope.Table, "absent: see Decoder.InvertsRope")
		}
		if err := checkAngles(o.dev, op, "InverseRope", t, a.InverseRope); err != nil {
			return err
		}
	}
	if a.Norm.isZero() {
		return nil
	}
	if !o.NormsQueries(t, win, comp) {
		return pkg.Wrong(op, "Norm", a.Norm.Table, "absent: see Decoder.NormsQueries")
	}
	if err := checkNorm(o.dev, op, t, a.Norm); err != nil {
		return err
	}
	if !a.InverseRope.isZero() && (!same(a.InverseRope.Positions, a.Norm.Positions) || !same(a.InverseRope.Table, a.Norm.Table)) {
		return pkg.Wrong(op, "Norm", a.Norm.Table, "the positions and table of InverseRope")
	}
	return nil
}

// checkNorm checks a norm that is given and permitted.
func checkNorm(dev *vk.Device, op string, t int, n QueryNorm) error {
	if err := checkAngles(dev, op, "Norm", t, InverseRope{n.Positions, n.Table}); err != nil {
		return err
	}
	if e := float64(n.Eps); !(e > 0) || math.IsInf(e, 0) {
		return pkg.Wrong(op, "Norm.Eps", n.Eps, "a positive number")
	}
	return nil
}

// same reports whether two tensors are one.
func same(a, b tensor.Tensor) bool {
	return a.Buffer == b.Buffer && a.Offset == b.Offset && slices.Equal(a.Shape, b.Shape)
}

func checkAngles(dev *vk.Device, op, arg string, t int, a InverseRope) error {
	if err := opkit.FirstError(
		pkg.Check(op, arg+".Positions", a.Positions, tensor.I32, t),
		pkg.Check(op, arg+".Table", a.Table, tensor.F32, -1, 64),
		pkg.Bindable(dev, op, arg+".Table", a.Table),
	); err != nil {
		return err
	}
	if a.Table.Shape[0] < 1 {
		return pkg.Wrong(op, arg+".Table", a.Table, "at least one row")
	}
	return nil
}
