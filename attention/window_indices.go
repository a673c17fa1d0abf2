package attention

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnWindowIndicesPush struct {
	Tokens, Window, Requests, TableWidth, Width uint32
}

// WindowIndicesConfig configures a WindowIndices.
type WindowIndicesConfig struct {
	Page int // slots of a page of the window cache (64)

	// Drafts is the most tokens of a draft block, whose tokens all attend the whole block; 0:
	// tokens attend themselves and what is before them. DeepSeek-V4.1 drafts 5.
	Drafts int
}

// WindowIndices lists the slots of the sliding window of decode tokens, oldest first, as
// WindowIndicesRef defines it. With WindowIndicesConfig.Drafts the tokens of a request are a draft
// block, and DraftIndicesRef defines it.
type WindowIndices struct {
	dev *vk.Device
	cfg WindowIndicesConfig
	k   *vk.Kernel
}

// WindowIndicesArgs are the tensors of one WindowIndices. The width of Slots is that of the window
// (128 in DeepSeek-V4), and for draft blocks Drafts more (133 in DeepSeek-V4.1).
type WindowIndicesArgs struct {
	QueryStart tensor.Tensor // [R+1] i32: first token of each request, then their number
	SeqLens    tensor.Tensor // [R] i32: tokens of each request including this step's
	TokenToReq tensor.Tensor // [>= T] i32
	IsValid    tensor.Tensor // [>= T] u8: 0 for padding
	BlockTable tensor.Tensor // [R, W] i32: pages of the window cache
	Slots      tensor.Tensor // [T, window + Drafts] i32, written for valid tokens
	Lens       tensor.Tensor // [>= T] i32, written: all of it, 0 beyond T
}

// NewWindowIndices builds the kernel.
//
// Errors: vk.ErrArgument for a page size below 1 or negative Drafts; those of
// vk.Device.Kernel.
func NewWindowIndices(dev *vk.Device, cfg WindowIndicesConfig) (*WindowIndices, error) {
	const op = "new window indices"
	if err := opkit.FirstError(
		pkg.Range(op, "Page", cfg.Page, 1, math.MaxInt32),
		pkg.Range(op, "Drafts", cfg.Drafts, 0, math.MaxInt32/2),
	); err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, opkit.Spec{Stem: "attn_window_indices", Variant: opkit.Base,
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Push:     attnWindowIndicesPush{}, Constants: []uint32{uint32(cfg.Page), opkit.Bit(0, cfg.Drafts > 0)},
	})
	if err != nil {
		return nil, err
	}
	return &WindowIndices{dev, cfg, k}, nil
}

// Record checks the tensors and records the operation.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *WindowIndices) Record(rec *vk.Recorder, a WindowIndicesArgs) error {
	const op = "window indices"
	t, rows, r := opkit.DimOrZero(a.Slots, 0), opkit.DimOrZero(a.Lens, 0), opkit.DimOrZero(a.SeqLens, 0)
	err := opkit.FirstError(
		pkg.Check(op, "Slots", a.Slots, tensor.I32, -1, -1),
		pkg.Check(op, "SeqLens", a.SeqLens, tensor.I32, -1),
		pkg.Check(op, "QueryStart", a.QueryStart, tensor.I32, r+1),
		pkg.Check(op, "TokenToReq", a.TokenToReq, tensor.I32, -1),
		pkg.Check(op, "IsValid", a.IsValid, tensor.U8, -1),
		pkg.Check(op, "BlockTable", a.BlockTable, tensor.I32, r, -1),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, -1),
	)
	switch {
	case err != nil:
		return err
	case opkit.DimOrZero(a.Slots, 1) <= o.cfg.Drafts:
		return pkg.Wrong(op, "Slots", a.Slots, "a window of at least 1, and %d drafts", o.cfg.Drafts)
	case opkit.DimOrZero(a.TokenToReq, 0) < t:
		return pkg.Wrong(op, "TokenToReq", a.TokenToReq, "at least %d tokens", t)
	case opkit.DimOrZero(a.IsValid, 0) < t:
		return pkg.Wrong(op, "IsValid", a.IsValid, "at least %d tokens", t)
	case rows < t:
		return pkg.Wrong(op, "Lens", a.Lens, "at least %d rows", t)
	case rows == 0:
		return nil
	}
	width := opkit.DimOrZero(a.Slots, 1)
	p := attnWindowIndicesPush{uint32(t), uint32(width - o.cfg.Drafts), uint32(r), uint32(opkit.DimOrZero(a.BlockTable, 1)), uint32(width)}
	return pkg.Launch(rec, op, o.k, rows, vk.Bytes(&p),
		a.QueryStart.View(), a.SeqLens.View(), a.TokenToReq.View(), a.IsValid.View(),
		a.BlockTable.View(), a.Slots.View(), a.Lens.View())
}
