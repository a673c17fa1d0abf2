package attention

import (
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

// QueryNorm says that Q is as the projection left it, and asks for each head to be divided
// by its root mean square, its last 64 numbers to be turned by the angles of the token's
// position, and all to be rounded to bf16, as projection.QInsert does, and with its bits.
// Q is left as it is. It takes no launch of its own.
type QueryNorm struct {
	Eps       float32       // added to the mean square, positive
	Positions tensor.Tensor // [T] i32, rows of Table; one outside counts as its nearest row
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines
}

// IsZero reports whether queries are normed already.
func (n QueryNorm) IsZero() bool { return n.Eps == 0 && n.Positions.IsZero() && n.Table.IsZero() }

// Norms reports whether DecodeArgs.Norm may be given for so many tokens, with lists of
// window and topk entries: where heads are divided into small groups, as they are for few
// tokens. Of larger groups each workgroup would have so many queries to norm that a launch
// of its own is shorter.
func (o *Decoder) Norms(tokens, window, topk int) bool {
	return o.twoPass == nil && o.tilings[o.plan(tokens, window+topk).build].norms
}

// checkTurn checks how queries are to be normed and turned and the output is to be turned
// back, if they are.
func (o *Decoder) checkTurn(op string, t int, a DecodeArgs) error {
	win, comp := opkit.Dim(a.Window.Indices, 1), opkit.Dim(a.Compressed.Indices, 1)
	if !a.Turn.IsZero() {
		if !o.Turns(t, win, comp) {
			return pkg.Wrong(op, "Turn", a.Turn.Table, "absent: see Turns")
		}
		if err := o.checkAngles(op, "Turn", t, a.Turn); err != nil {
			return err
		}
	}
	if a.Norm.IsZero() {
		return nil
	}
	if !o.Norms(t, win, comp) {
		return pkg.Wrong(op, "Norm", a.Norm.Table, "absent: see Norms")
	}
	angles := OutputTurn{a.Norm.Positions, a.Norm.Table}
	if err := o.checkAngles(op, "Norm", t, angles); err != nil {
		return err
	}
	if e := float64(a.Norm.Eps); !(e > 0) || math.IsInf(e, 0) {
		return pkg.Wrong(op, "Norm.Eps", a.Norm.Eps, "a positive number")
	}
	if !a.Turn.IsZero() && (!same(a.Turn.Positions, angles.Positions) || !same(a.Turn.Table, angles.Table)) {
		return pkg.Wrong(op, "Norm", a.Norm.Table, "positions and table of Turn")
	}
	return nil
}

// same reports whether two tensors are one.
func same(a, b tensor.Tensor) bool {
	return a.Buffer == b.Buffer && a.Offset == b.Offset && slices.Equal(a.Shape, b.Shape)
}

func (o *Decoder) checkAngles(op, arg string, t int, a OutputTurn) error {
	if err := opkit.First(
		pkg.Check(op, arg+".Positions", a.Positions, tensor.I32, t),
		pkg.Check(op, arg+".Table", a.Table, tensor.F32, -1, 64),
		pkg.Bindable(o.dev, op, arg+".Table", a.Table),
	); err != nil {
		return err
	}
	if a.Table.Shape[0] < 1 {
		return pkg.Wrong(op, arg+".Table", a.Table, "at least one row")
	}
	return nil
}
