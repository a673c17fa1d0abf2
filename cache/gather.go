package cache

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// GatherArgs are the operands of one gather. All lengths and the table are read
// when the commands run.
type GatherArgs struct {
	Out        tensor.Tensor // [R, M, 512] bf16, written in rows Offset..Offset+g-1 of each request only
	Cache      KVCache
	SeqLens    tensor.Tensor // [R] i32, in slots
	GatherLens tensor.Tensor // [R] i32, how many of the last slots; absent: all
	Table      tensor.Tensor // [R, W] i32 page ids; a negative one counts as page 0
	Offset     int           // row of Out that gets a request's first slot, 0..M
}

// Gather unpacks the last g slots of each request to bf16 rows: with n = seq_lens[r]
// and g = gather_lens[r], row Offset+i of request r becomes slot p%page of page
// table[r, p/page], p = n-g+i, i = 0..g-1. Values are code times scale, which bf16
// holds exactly, and in RecordV4 the last 64 the stored bits: Record.DecodeRef.
//
// Rows that would lie beyond M are left out, and every row outside
// [Offset, Offset+g) keeps its bytes. A position outside the table, or a page outside
// the pool, gives a row of zeros.
//
// The definition is GatherRef; results are equal byte for byte.
//
// Source: vLLM dequantize_and_gather_k_cache
// (vllm/models/deepseek_v4/common/ops/cache_utils.py).
type Gather struct{ pagesOp }

// gatherSpec is a kernel that kv_gather.comp makes.
func gatherSpec(stem string) opkit.Spec {
	return opkit.Spec{Stem: stem, Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Write, vk.Read}, Bound: 3, Push: kvGatherPush{}}
}

// kvGatherPush is the push block of kv_gather.comp.
type kvGatherPush struct {
	PoolAddr   uint64
	OutAddr    uint64
	PoolStride uint32
	PoolPages  uint32
	Width      uint32
	Rows       uint32
	Offset     uint32
	HasGather  uint32
}

// NewGather chooses the variant and builds its kernel. The device owns the kernel; there is nothing
// to close. Errors: *vk.ArgumentError; *vk.MissingError; those of vk.Device.Kernel.
func NewGather(dev *vk.Device, cfg PagesConfig) (*Gather, error) {
	x, err := newPagesOp(dev, "gather", cfg, gatherSpec("kv_gather"))
	if err != nil {
		return nil, err
	}
	return &Gather{x}, nil
}

// Record checks the arguments and records the gather. Errors: *vk.ArgumentError,
// with nothing recorded; those of vk.Recorder.Dispatch.
func (x *Gather) Record(rec *vk.Recorder, a GatherArgs) error {
	const op = "gather"
	requests, rows := opkit.DimOrZero(a.Out, 0), opkit.DimOrZero(a.Out, 1)
	out := opkit.Target{Name: "Out", T: a.Out, Access: vk.Write, Align: 16}
	if err := opkit.FirstError(
		x.check(op, a.Cache),
		pkg.CheckRows(op, "Out", a.Out, tensor.BF16, -1, -1, D),
		pkg.CheckRows(op, "SeqLens", a.SeqLens, tensor.I32, requests),
		pkg.Optional(op, "GatherLens", a.GatherLens, tensor.I32, requests),
		pkg.CheckRows(op, "Table", a.Table, tensor.I32, requests, -1),
		pkg.Range(op, "Offset", a.Offset, 0, rows),
		pkg.Reach(x.dev, op, x.Variant(), out),
	); err != nil || requests == 0 || rows == a.Offset {
		return err
	}
	push := kvGatherPush{
		PoolAddr: a.Cache.Pool.View().Address(), OutAddr: a.Out.View().Address(),
		PoolStride: uint32(a.Cache.Layout.Stride), PoolPages: uint32(a.Cache.Pages()),
		Width: uint32(a.Table.Shape[1]), Rows: uint32(rows), Offset: uint32(a.Offset),
		HasGather: opkit.Bit(0, !a.GatherLens.IsZero()),
	}
	return pkg.Dispatch(rec, op, x.Variant(), vk.Dispatch{
		Kernel: x.kernel, Groups: [3]uint32{strided(x.dev, rows-a.Offset, 2), uint32(requests), 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{a.SeqLens.View(), opkit.ViewOrDummy(x.dev, a.GatherLens), a.Table.View()},
	}, out, opkit.Target{T: a.Cache.Pool, Access: vk.Read})
}
