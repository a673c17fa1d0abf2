package indexer

import (
	"cmp"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// VisibleConfig configures a Visible.
type VisibleConfig struct {
	Ratio int // tokens of an entry, 1..cache.MaxRatio
}

// VisibleArgs are the tensors of one Visible.
type VisibleArgs struct {
	Positions tensor.Tensor // [T] i32
	IsValid   tensor.Tensor // [>= T] u8: 0 for padding; absent: every token is valid
	Lens      tensor.Tensor // [T] i32, written
	Limit     int           // the most that a length may be; 0: no limit
}

// Visible counts the entries that each token may see: those that its own position or an earlier
// one completed, (p+1)/Ratio, at most Limit; 0 for padding and for a negative position. The
// definition is VisibleRef.
//
// Source: vLLM vllm/v1/attention/backends/mla/indexer.py.
type Visible struct {
	dev *vk.Device
	k   *vk.Kernel
}

// idxVisiblePush is the push block of idx_visible.comp.
type idxVisiblePush struct {
	Tokens, Limit, HasValid uint32
}

// NewVisible builds the kernel. The device owns it; there is nothing to close.
//
// Errors: vk.ErrArgument for a wrong ratio; those of vk.Device.Kernel.
func NewVisible(dev *vk.Device, cfg VisibleConfig) (*Visible, error) {
	if err := pkg.Range("visible", "Ratio", cfg.Ratio, 1, cache.MaxRatio); err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, opkit.Spec{Stem: "idx_visible", Variant: opkit.Base,
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Write}, Constants: opkit.Constants(cfg.Ratio),
		Push: idxVisiblePush{}})
	if err != nil {
		return nil, err
	}
	return &Visible{dev: dev, k: k}, nil
}

// Record checks the arguments and records the launch. Errors: vk.ErrArgument, with
// nothing recorded; those of vk.Recorder.Dispatch.
func (o *Visible) Record(rec *vk.Recorder, a VisibleArgs) error {
	const op, group = "visible", 128
	t := opkit.DimOrZero(a.Positions, 0)
	if err := opkit.FirstError(
		pkg.Check(op, "Positions", a.Positions, tensor.I32, -1),
		pkg.Optional(op, "IsValid", a.IsValid, tensor.U8, -1),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
		pkg.Range(op, "Limit", a.Limit, 0, math.MaxInt32),
	); err != nil {
		return err
	}
	if !a.IsValid.IsZero() && a.IsValid.Shape[0] < t {
		return pkg.Wrong(op, "IsValid", a.IsValid, "at least %d tokens", t)
	}
	if err := pkg.Grid(o.dev, op, "Positions", t, group, 0); err != nil || t == 0 {
		return err
	}
	push := idxVisiblePush{Tokens: uint32(t), Limit: uint32(cmp.Or(a.Limit, math.MaxInt32)), HasValid: opkit.Bit(0, !a.IsValid.IsZero())}
	return pkg.Launch(rec, op, o.k, opkit.CeilDiv(t, group), vk.Bytes(&push),
		a.Positions.View(), opkit.ViewOrDummy(o.dev, a.IsValid), a.Lens.View())
}
