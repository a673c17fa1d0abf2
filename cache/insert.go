package cache

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// InsertArgs are the operands of one insertion.
type InsertArgs struct {
	K     tensor.Tensor // [N, 512] bf16, normed and rotated, N >= T
	Slots tensor.Tensor // [T] i64 slot ids; negative ones and those beyond the cache are skipped
	Cache KVCache       // written: all bytes of each slot named, nothing else
}

// Insert quantises rows of K and stores them in the pages of a cache. Of RecordV4 it
// stores, for each 64 values x of the first 448, with sb the byte of the power of two
// 2^ceil(log2(max(max|x|, 1e-4)/448)), the E4M3 codes of x*2^(127-sb) and sb itself;
// the last 64 values unchanged. Record.EncodeRef has the formulas of all records. No
// two tokens may name the same slot.
//
// The definition is InsertRef; results are equal byte for byte.
//
// Source: vLLM quantize_and_insert_k_cache
// (vllm/models/deepseek_v4/common/ops/cache_utils.py), which skips slot -1 only.
type Insert struct{ pagesOp }

// kvInsertPush is the push block of kv_insert.comp.
type kvInsertPush struct {
	PoolAddr   uint64
	PoolStride uint32
	PoolPages  uint32
	Tokens     uint32
	_          uint32
}

// NewInsert chooses the variant and builds its kernel. The device owns the kernel; there is nothing
// to close. Errors: *vk.ArgumentError; *vk.MissingError; those of vk.Device.Kernel.
func NewInsert(dev *vk.Device, cfg PagesConfig) (*Insert, error) {
	x, err := newPagesOp(dev, "insert", cfg, opkit.Spec{Stem: "kv_insert", Bindings: []vk.Access{vk.Read, vk.Read, vk.Write}, Bound: 2,
		Push: kvInsertPush{}})
	if err != nil {
		return nil, err
	}
	return &Insert{x}, nil
}

// Record checks the arguments and records the insertion. Slots are read when the
// commands run. Errors: *vk.ArgumentError, with nothing recorded; those of
// vk.Recorder.Dispatch.
func (x *Insert) Record(rec *vk.Recorder, a InsertArgs) error {
	const op = "insert"
	if err := opkit.FirstError(
		x.check(op, a.Cache),
		pkg.CheckRows(op, "Slots", a.Slots, tensor.I64, -1),
		pkg.CheckRows(op, "K", a.K, tensor.BF16, -1, D),
	); err != nil {
		return err
	}
	tokens, each := a.Slots.Shape[0], 2 // of a workgroup
	if tokens > a.K.Shape[0] {
		return pkg.Wrong(op, "Slots", a.Slots, "at most the %d rows of K", a.K.Shape[0])
	}
	if err := pkg.Grid(x.dev, op, "Slots", tokens, each, 0); err != nil || tokens == 0 {
		return err
	}
	push := kvInsertPush{
		PoolAddr: a.Cache.Pool.View().Address(), PoolStride: uint32(a.Cache.Layout.Stride),
		PoolPages: uint32(a.Cache.Pages()), Tokens: uint32(tokens),
	}
	return pkg.Dispatch(rec, op, x.Variant(), vk.Dispatch{
		Kernel: x.kernel, Groups: [3]uint32{uint32(opkit.CeilDiv(tokens, each)), 1, 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{a.K.View(), a.Slots.View()},
	}, opkit.Target{T: a.Cache.Pool, Access: vk.Write})
}
