package attention

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnGlobalTopkPush struct {
	Topk, Requests, TableWidth uint32
}

// GlobalTopKConfig configures a GlobalTopK.
type GlobalTopKConfig struct {
	Page int // slots of a page of the compressed cache (64 for ratio 4)
}

// GlobalTopK turns the indexer's request-local picks into global slots of the
// compressed cache, with a length for each token (vLLM's
// compute_global_topk_indices_and_lens). GlobalTopKRef defines it.
type GlobalTopK struct {
	dev *vk.Device
	k   *vk.Kernel
}

// GlobalTopKArgs are the tensors of one GlobalTopK, for any T, k, R and W.
type GlobalTopKArgs struct {
	TopK       tensor.Tensor // [T, k] i32: entries of the request, negative: none
	TokenToReq tensor.Tensor // [T] i32
	BlockTable tensor.Tensor // [R, W] i32: pages of the compressed cache
	IsValid    tensor.Tensor // [T] u8: 0 for padding
	Slots      tensor.Tensor // [T, k] i32, written: global slots, -1 for none
	Lens       tensor.Tensor // [T] i32, written
}

// NewGlobalTopK builds the kernel.
//
// Errors: vk.ErrArgument for a page size below 1; those of vk.Device.Kernel.
func NewGlobalTopK(dev *vk.Device, cfg GlobalTopKConfig) (*GlobalTopK, error) {
	if err := pkg.Range("new global top-k", "Page", cfg.Page, 1, math.MaxInt32); err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, opkit.Spec{Stem: "attn_global_topk", Variant: opkit.Base,
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Push:     attnGlobalTopkPush{}, Constants: opkit.Constants(cfg.Page),
	})
	if err != nil {
		return nil, err
	}
	return &GlobalTopK{dev, k}, nil
}

// Record checks the tensors and records the operation.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *GlobalTopK) Record(rec *vk.Recorder, a GlobalTopKArgs) error {
	const op = "global top-k"
	t, k := opkit.DimOrZero(a.TopK, 0), opkit.DimOrZero(a.TopK, 1)
	if err := opkit.FirstError(
		pkg.Check(op, "TopK", a.TopK, tensor.I32, -1, -1),
		pkg.Check(op, "TokenToReq", a.TokenToReq, tensor.I32, t),
		pkg.Check(op, "BlockTable", a.BlockTable, tensor.I32, -1, -1),
		pkg.Check(op, "IsValid", a.IsValid, tensor.U8, t),
		pkg.Check(op, "Slots", a.Slots, tensor.I32, t, k),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
	); err != nil || t == 0 {
		return err
	}
	p := attnGlobalTopkPush{uint32(k), uint32(opkit.DimOrZero(a.BlockTable, 0)), uint32(opkit.DimOrZero(a.BlockTable, 1))}
	return pkg.Launch(rec, op, o.k, t, vk.Bytes(&p),
		a.TopK.View(), a.TokenToReq.View(), a.BlockTable.View(), a.IsValid.View(), a.Slots.View(), a.Lens.View())
}
