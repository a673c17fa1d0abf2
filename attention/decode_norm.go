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

// IsZero reports whether queries are normed already.
func (n QueryNorm) IsZero() bool { return n.Eps == 0 && n.Positions.IsZero() && n.Table.IsZero() }

// NormsQueries reports whether DecodeArgs.Norm may be given in a step of `tokens` tokens, with
// lists of window and topk entries. It may where workgroups have few heads, as they do for few
// tokens. With more heads each workgroup would norm so many queries that a launch of its own is
// shorter.
func (o *Decoder) NormsQueries(tokens, window, topk int) bool {
	return o.twoPass == nil && o.tilings[o.plan(tokens, window+topk).build].norms
}

// rotation is what a kernel norms and turns.
type rotation struct {
	norms, turns bool
	angles       InverseRope // of both; zero for none
	rows         uint32      // of their table
}

// rotationOf is that of a launch of rows in `splits` parts. What joins parts turns them back.
func rotationOf(norm QueryNorm, turn InverseRope, splits int) (r rotation) {
	r.norms, r.turns = !norm.IsZero(), !turn.IsZero() && splits == 1
	switch {
	case r.norms:
		r.angles = InverseRope{norm.Positions, norm.Table}
	case r.turns:
		r.angles = turn
	}
	if !r.angles.IsZero() {
		r.rows = uint32(r.angles.Table.Shape[0])
	}
	return r
}

// flags are those of the launch.
func (r *rotation) flags() (f uint32) {
	if r.turns {
		f = flagUnrope
	}
	if r.norms {
		f |= flagNorm
	}
	return f
}

// checkRope checks DecodeArgs.Norm and DecodeArgs.InverseRope, where they are given.
func (o *Decoder) checkRope(op string, t int, a DecodeArgs) error {
	win, comp := opkit.Dim(a.Window.Indices, 1), opkit.Dim(a.Compressed.Indices, 1)
	return checkRope(o.dev, op, "Decoder", t, a.Norm, a.InverseRope, o.NormsQueries(t, win, comp), o.InvertsRope(t, win, comp))
}

// checkRope checks the Norm and the InverseRope of an operation of type `of`, where they are given.
func checkRope(dev *vk.Device, op, of string, t int, norm QueryNorm, turn InverseRope, norms, turns bool) error {
	if !turn.IsZero() {
		if !turns {
			return pkg.Wrong(op, "InverseRope", turn.Table, "absent: see %s.InvertsRope", of)
		}
		if err := checkAngles(dev, op, "InverseRope", t, turn); err != nil {
			return err
		}
	}
	if norm.IsZero() {
		return nil
	}
	if !norms {
		return pkg.Wrong(op, "Norm", norm.Table, "absent: see %s.NormsQueries", of)
	}
	angles := InverseRope{norm.Positions, norm.Table}
	if err := checkAngles(dev, op, "Norm", t, angles); err != nil {
		return err
	}
	if e := float64(norm.Eps); !(e > 0) || math.IsInf(e, 0) {
		return pkg.Wrong(op, "Norm.Eps", norm.Eps, "a positive number")
	}
	if !turn.IsZero() && (!same(turn.Positions, angles.Positions) || !same(turn.Table, angles.Table)) {
		return pkg.Wrong(op, "Norm", norm.Table, "the positions and table of InverseRope")
	}
	return nil
}

// same reports whether two tensors are one.
func same(a, b tensor.Tensor) bool {
	return a.Buffer == b.Buffer && a.Offset == b.Offset && slices.Equal(a.Shape, b.Shape)
}

func checkAngles(dev *vk.Device, op, arg string, t int, a InverseRope) error {
	if err := opkit.First(
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
