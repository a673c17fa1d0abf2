package attention

import (
	"cmp"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnC128IndicesPush struct {
	Width, Ratio, Requests, TableWidth, Flags uint32
}

// C128IndicesConfig configures a C128Indices.
type C128IndicesConfig struct {
	Page  int // slots of a page of the compressed cache (2 for ratio 128)
	Ratio int // tokens per compressed entry; 0 means 128
}

// C128Indices lists every visible compressed entry of each token, for layers that
// attend all of them (C128A): as global slots for decode, or as rows of a gathered
// workspace for prefill. C128IndicesRef defines it.
type C128Indices struct {
	dev   *vk.Device
	k     *vk.Kernel
	ratio int
}

// C128IndicesArgs are the tensors of one C128Indices. Without a BlockTable the
// local form is built and TokenToReq is not needed.
type C128IndicesArgs struct {
	Positions   tensor.Tensor // [T] i32: position of each token in its request
	SlotMapping tensor.Tensor // [T] i64 or absent: window slot, negative for padding
	TokenToReq  tensor.Tensor // [T] i32; absent in the local form
	BlockTable  tensor.Tensor // [R, W] i32; absent for the local form
	Indices     tensor.Tensor // [T, width] i32, written; see C128Width
	Lens        tensor.Tensor // [T] i32, written; may be absent
}

// C128Width is the width that index rows need for sequences of up to maxLen
// tokens: the number of compressed entries rounded up to a multiple of 128.
//
// Source: vLLM vllm/v1/attention/backends/mla/flashmla_sparse.py.
func C128Width(maxLen, ratio int) int { return opkit.RoundUp(opkit.CeilDiv(maxLen, ratio), 128) }

// NewC128Indices builds the kernel.
//
// Errors: vk.ErrArgument for a page size or ratio below 1; those of vk.Device.Kernel.
func NewC128Indices(dev *vk.Device, cfg C128IndicesConfig) (*C128Indices, error) {
	const op = "new c128 indices"
	cfg.Ratio = cmp.Or(cfg.Ratio, 128)
	if err := opkit.FirstError(pkg.Range(op, "Page", cfg.Page, 1, math.MaxInt32),
		pkg.Range(op, "Ratio", cfg.Ratio, 1, math.MaxInt32)); err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, opkit.Spec{Stem: "attn_c128_indices", Variant: opkit.Base,
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Push:     attnC128IndicesPush{}, Constants: opkit.Constants(cfg.Page),
	})
	if err != nil {
		return nil, err
	}
	return &C128Indices{dev, k, cfg.Ratio}, nil
}

// Record checks the tensors and records the operation.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *C128Indices) Record(rec *vk.Recorder, a C128IndicesArgs) error {
	const op = "c128 indices"
	t, local := opkit.DimOrZero(a.Positions, 0), a.BlockTable.IsZero()
	if local {
		a.TokenToReq = tensor.Tensor{}
	}
	err := opkit.FirstError(
		pkg.Check(op, "Positions", a.Positions, tensor.I32, -1),
		pkg.Check(op, "Indices", a.Indices, tensor.I32, t, -1),
		pkg.Optional(op, "SlotMapping", a.SlotMapping, tensor.I64, t),
		pkg.Optional(op, "BlockTable", a.BlockTable, tensor.I32, -1, -1),
		pkg.Optional(op, "Lens", a.Lens, tensor.I32, t),
	)
	if err == nil && !local {
		err = pkg.Check(op, "TokenToReq", a.TokenToReq, tensor.I32, t)
	}
	if err != nil || t == 0 {
		return err
	}
	p := attnC128IndicesPush{
		uint32(opkit.DimOrZero(a.Indices, 1)), uint32(o.ratio), uint32(opkit.DimOrZero(a.BlockTable, 0)),
		uint32(opkit.DimOrZero(a.BlockTable, 1)),
		opkit.Bit(0, local) | opkit.Bit(1, !a.SlotMapping.IsZero()) | opkit.Bit(2, !a.Lens.IsZero()),
	}
	return pkg.Launch(rec, op, o.k, t, vk.Bytes(&p),
		a.Positions.View(), opkit.ViewOrDummy(o.dev, a.SlotMapping), opkit.ViewOrDummy(o.dev, a.TokenToReq),
		opkit.ViewOrDummy(o.dev, a.BlockTable), a.Indices.View(), opkit.Or(a.Lens, a.Indices).View())
}
