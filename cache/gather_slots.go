package cache

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// GatherSlotsArgs are the operands of one gather.
type GatherSlotsArgs struct {
	Out     tensor.Tensor // [S, 512] bf16, all of it written
	Cache   KVCache
	Indices tensor.Tensor // [S] i32 slot ids, read when the commands run
}

// GatherSlots unpacks slots to bf16: row i of Out becomes slot Indices[i], or 512
// zeros where the index is negative or beyond the cache. Values are those of
// Gather.
//
// The definition is GatherSlotsRef; results are equal byte for byte.
//
// Source: vLLM dequant_gather_slots
// (vllm/models/deepseek_v4/xpu/xpu_sparse_decode_fp8.py).
type GatherSlots struct{ pagesOp }

// NewGatherSlots chooses the variant and builds its kernel. The device owns the kernel; there is
// nothing to close. Errors: *vk.ArgumentError; *vk.MissingError; those of vk.Device.Kernel.
func NewGatherSlots(dev *vk.Device, cfg PagesConfig) (*GatherSlots, error) {
	x, err := newPagesOp(dev, "gather slots", cfg, gatherSpec("kv_gather_slots"))
	if err != nil {
		return nil, err
	}
	return &GatherSlots{x}, nil
}

// Record checks the arguments and records the gather. Errors: *vk.ArgumentError,
// with nothing recorded; those of vk.Recorder.Dispatch.
func (x *GatherSlots) Record(rec *vk.Recorder, a GatherSlotsArgs) error {
	const op = "gather slots"
	count, out := opkit.DimOrZero(a.Indices, 0), opkit.Target{Name: "Out", T: a.Out, Access: vk.Write, Align: 16}
	if err := opkit.FirstError(
		x.check(op, a.Cache),
		pkg.CheckRows(op, "Indices", a.Indices, tensor.I32, -1),
		pkg.CheckRows(op, "Out", a.Out, tensor.BF16, count, D),
		pkg.Reach(x.dev, op, x.Variant(), out),
	); err != nil || count == 0 {
		return err
	}
	push := kvGatherPush{
		PoolAddr: a.Cache.Pool.View().Address(), OutAddr: a.Out.View().Address(),
		PoolStride: uint32(a.Cache.Layout.Stride), PoolPages: uint32(a.Cache.Pages()), Width: uint32(count),
	}
	return pkg.Dispatch(rec, op, x.Variant(), vk.Dispatch{
		Kernel: x.kernel, Groups: [3]uint32{strided(x.dev, count, 2), 1, 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{x.dev.Dummy(), x.dev.Dummy(), a.Indices.View()},
	}, out, opkit.Target{T: a.Cache.Pool, Access: vk.Read})
}
