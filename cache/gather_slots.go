package cache

import (
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// GatherSlotsConfig says what a GatherSlots is built for.
type GatherSlotsConfig struct {
	Page     int    // slots per page of the caches it will read
	Record   Record // how these store a slot; 0: RecordV4
	MaxBytes uint64 // size of the largest cache or output; 0: whatever a descriptor of the device can hold
	Variant  string // a build, as vkmla info lists them; "" picks the best
}

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
type GatherSlots struct {
	dev *vk.Device
	cfg GatherSlotsConfig
	built
	kernel *vk.Kernel
}

// NewGatherSlots chooses the variant and builds its kernel. The device owns the
// kernel; there is nothing to close.
//
// Errors: *vk.ArgumentError for a page size or a variant that does not exist or
// cannot hold MaxBytes; *vk.MissingError; those of vk.Device.Kernel.
func NewGatherSlots(dev *vk.Device, cfg GatherSlotsConfig) (*GatherSlots, error) {
	const op = "gather slots"
	if err := least(cfg.Record, cfg.Page).check(op); err != nil {
		return nil, err
	}
	variant, err := pkg.Choose(dev, op, opkit.Builds("kv_gather_slots"), cfg.Variant, cfg.MaxBytes)
	if err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, opkit.Spec{
		Stem: "kv_gather_slots", Variant: variant, Bindings: gatherAccess, Bound: 3,
		PushSize: int(unsafe.Sizeof(kvGatherPush{})), Constants: opkit.AppendNonzero(opkit.Constants(cfg.Page), int(cfg.Record)),
	})
	if err != nil {
		return nil, err
	}
	return &GatherSlots{dev: dev, cfg: cfg, built: built(variant), kernel: k}, nil
}

// Record checks the arguments and records the gather. Errors: *vk.ArgumentError,
// with nothing recorded; those of vk.Recorder.Dispatch.
func (x *GatherSlots) Record(rec *vk.Recorder, a GatherSlotsArgs) error {
	const op = "gather slots"
	if err := checkCache(x.dev, op, x.Variant(), a.Cache, x.cfg.Page, x.cfg.Record); err != nil {
		return err
	}
	if err := pkg.CheckRows(op, "Indices", a.Indices, tensor.I32, -1); err != nil {
		return err
	}
	count := a.Indices.Shape[0]
	if err := pkg.CheckRows(op, "Out", a.Out, tensor.BF16, count, D); err != nil {
		return err
	}
	out := opkit.Target{Name: "Out", T: a.Out, Access: vk.Write, Align: 16}
	if err := pkg.Reach(x.dev, op, x.Variant(), out); err != nil {
		return err
	}
	if count == 0 {
		return nil
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
