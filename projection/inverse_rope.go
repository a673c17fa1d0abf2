package projection

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// InverseRopeConfig says what an InverseRope is built for.
type InverseRopeConfig struct {
	MaxBytes uint64 // size of the largest O; 0: whatever a descriptor of the device can hold
	Variant  string // a build, as vkmla info lists them; "" picks the best
}

// InverseRopeArgs are the tensors of one InverseRope.
type InverseRopeArgs struct {
	O         tensor.Tensor // [T, H, 512] bf16, read and written
	Positions tensor.Tensor // [T] i32, rows of Table; one outside counts as its nearest row
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines
}

// InverseRope turns the last 64 numbers of the attention's output back by the angles of
// the query's position, in place: the values that attention sums were keys, turned by
// their own positions. With e, o a pair of neighbours and c, s its cosine and sine,
//
//	e' = bf16(e*c + o*s),  o' = bf16(o*c - e*s)
//
// in binary32. A second launch turns again. O then has what the output projection takes, with the
// heads of a group side by side.
//
// The definition is InverseRopeRef; results are equal bit for bit.
//
// Source: vLLM rocm_inv_rope_einsum (vllm/v1/attention/ops/rocm_aiter_mla_sparse.py);
// DeepSeek's inference/model.py (apply_rotary_emb with inverse).
type InverseRope struct {
	dev *vk.Device
	built
	k *vk.Kernel
}

// projInverseRopePush is the push block of proj_inverse_rope.comp.
type projInverseRopePush struct {
	OAddr            uint64
	Heads, TableRows uint32
}

// inverseHeads is the number of heads that a workgroup takes.
const inverseHeads = 16

// NewInverseRope chooses the variant and builds its kernel. The device owns the kernel;
// there is nothing to close.
//
// Errors: vk.ErrArgument for a variant that does not exist or cannot hold MaxBytes;
// *vk.MissingError; those of vk.Device.Kernel.
func NewInverseRope(dev *vk.Device, cfg InverseRopeConfig) (*InverseRope, error) {
	const op = "inverse rope"
	variant, k, err := pkg.Build(dev, op, cfg.Variant, cfg.MaxBytes, opkit.Spec{
		Stem: "proj_inverse_rope", Bindings: []vk.Access{vk.Read, vk.Read, vk.ReadWrite}, Bound: 2,
		Push: projInverseRopePush{},
	})
	if err != nil {
		return nil, err
	}
	return &InverseRope{dev: dev, built: variant, k: k}, nil
}

// Record checks the arguments and records the launch; no tokens are no error and no
// launch. Positions are read when the commands run. Errors: vk.ErrArgument, with nothing
// recorded; those of vk.Recorder.Dispatch.
func (o *InverseRope) Record(rec *vk.Recorder, a InverseRopeArgs) error {
	const op = "inverse rope"
	t, h := opkit.DimOrZero(a.O, 0), opkit.DimOrZero(a.O, 1)
	target := opkit.Target{Name: "O", T: a.O, Access: vk.ReadWrite, Align: 16}
	if err := opkit.FirstError(
		rows(op, "O", a.O),
		pkg.Check(op, "Positions", a.Positions, tensor.I32, t),
		table(op, a.Table),
		pkg.Bindable(o.dev, op, "Table", a.Table),
		pkg.Reach(o.dev, op, o.Variant(), target),
	); err != nil {
		return err
	}
	groups, err := grid(o.dev, op, "O", t, h, opkit.CeilDiv(h, inverseHeads))
	if err != nil || t == 0 {
		return err
	}
	push := projInverseRopePush{OAddr: a.O.View().Address(), Heads: uint32(h), TableRows: uint32(a.Table.Shape[0])}
	return pkg.Dispatch(rec, op, o.Variant(), vk.Dispatch{
		Kernel: o.k, Groups: groups, Push: vk.Bytes(&push), Bind: []vk.View{a.Positions.View(), a.Table.View()},
	}, target)
}
