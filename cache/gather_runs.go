package cache

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// GatherRunsConfig says what a GatherRuns is built for.
type GatherRunsConfig struct {
	PagesConfig
	Halves bool // rows become f16, as HalvesRef makes them of bf16, for attention's builds with matrices of f16
}

// GatherRunsArgs are the operands of one gather. Runs, table and lists are read when the commands
// run.
type GatherRunsArgs struct {
	Out   tensor.Tensor // [S, 512] bf16, written in the rows of the runs: row First of them is its first
	First int           // 0 or more
	Cache KVCache
	Heads tensor.Tensor // [pieces, 2, 2] i32: first run of a piece and set, and how many runs; one more ends them
	Runs  tensor.Tensor // [.., 4] i32: row, of, first, list
	Table tensor.Tensor // [R, W] i32 page ids
	Lists tensor.Tensor // [T, K] i32 slot ids; absent if no run takes from lists
	Piece int           // which piece of Heads
	Set   int           // 0 or 1: which set of the piece
}

// GatherRuns unpacks runs of slots to bf16 rows. A run fills rows of Out from run.row up to the row
// of the next run, in ascending order; the last run of a set only ends them. Row run.row+i becomes
//
//	run.list = 0: position run.first + i of request run.of, by its page table
//	run.list = 1: slot Lists[run.of][run.first + i]
//
// as 512 values, those of Gather, or zeros where there is no such page or slot. Rows of no run keep
// their bytes. So one launch gathers the pieces of a mixed batch, whatever their number and sizes.
//
// The definition is GatherRunsRef; results are equal byte for byte.
//
// Source: vLLM dequantize_and_gather_k_cache (vllm/models/deepseek_v4/common/ops/cache_utils.py)
// and dequant_gather_slots (vllm/models/deepseek_v4/xpu/xpu_sparse_decode_fp8.py).
type GatherRuns struct {
	pagesOp
	most int // workgroups of a launch
}

// kvGatherRunsPush is the push block of kv_gather_runs.comp.
type kvGatherRunsPush struct {
	PoolAddr   uint64
	OutAddr    uint64
	PoolStride uint32
	PoolPages  uint32
	Piece      uint32
	Set        uint32
	Rows       uint32
	Requests   uint32
	Width      uint32
	Tokens     uint32
	Topk       uint32
	Row0       uint32
}

// runsPerUnit is the number of workgroups of 128 invocations that share a compute unit.
const runsPerUnit = 16

// NewGatherRuns chooses the variant and builds its kernel. The device owns the kernel; there is
// nothing to close. Errors: *vk.ArgumentError; *vk.MissingError; those of vk.Device.Kernel.
func NewGatherRuns(dev *vk.Device, cfg GatherRunsConfig) (*GatherRuns, error) {
	x, err := newPagesOp(dev, "gather runs", cfg.PagesConfig, opkit.Spec{Stem: "kv_gather_runs", Bound: 4, Push: kvGatherRunsPush{},
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Read}}, int(opkit.Bit(0, cfg.Halves)))
	if err != nil {
		return nil, err
	}
	return &GatherRuns{x, tuning.Of(dev).Device.WorkgroupsOf(dev.Adapter(), runsPerUnit)}, nil
}

// Check reports why Record would refuse the arguments, or nil.
func (x *GatherRuns) Check(a GatherRunsArgs) error {
	const op = "gather runs"
	return opkit.FirstError(
		x.check(op, a.Cache),
		pkg.CheckRows(op, "Out", a.Out, tensor.BF16, -1, D),
		pkg.Check(op, "Heads", a.Heads, tensor.I32, -1, 2, 2),
		pkg.Check(op, "Runs", a.Runs, tensor.I32, -1, 4),
		pkg.Check(op, "Table", a.Table, tensor.I32, -1, -1),
		pkg.Optional(op, "Lists", a.Lists, tensor.I32, -1, -1),
		pkg.Range(op, "Piece", a.Piece, 0, opkit.DimOrZero(a.Heads, 0)-1),
		pkg.Range(op, "Set", a.Set, 0, 1),
		pkg.Range(op, "First", a.First, 0, math.MaxInt32),
		pkg.Reach(x.dev, op, x.Variant(), opkit.Target{Name: "Out", T: a.Out, Align: 16}))
}

// Record checks the arguments and records the gather. Errors: *vk.ArgumentError, with nothing
// recorded; those of vk.Recorder.Dispatch.
func (x *GatherRuns) Record(rec *vk.Recorder, a GatherRunsArgs) error {
	const op = "gather runs"
	if err := x.Check(a); err != nil || a.Out.Shape[0] == 0 {
		return err
	}
	push := kvGatherRunsPush{
		PoolAddr: a.Cache.Pool.View().Address(), OutAddr: a.Out.View().Address(),
		PoolStride: uint32(a.Cache.Layout.Stride), PoolPages: uint32(a.Cache.Pages()),
		Piece: uint32(a.Piece), Set: uint32(a.Set), Rows: uint32(a.Out.Shape[0]),
		Requests: uint32(a.Table.Shape[0]), Width: uint32(a.Table.Shape[1]),
		Tokens: uint32(opkit.DimOrZero(a.Lists, 0)), Topk: uint32(opkit.DimOrZero(a.Lists, 1)), Row0: uint32(a.First),
	}
	return pkg.Dispatch(rec, op, x.Variant(), vk.Dispatch{
		Kernel: x.kernel, Groups: [3]uint32{min(strided(x.dev, a.Out.Shape[0], 2), uint32(x.most)), 1, 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{a.Heads.View(), a.Runs.View(), a.Table.View(), opkit.ViewOrDummy(x.dev, a.Lists)},
	}, opkit.Target{Name: "Out", T: a.Out, Access: vk.Write}, opkit.Target{T: a.Cache.Pool, Access: vk.Read})
}
