package cache

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// SlotMappingConfig says what a SlotMapping is built for.
type SlotMappingConfig struct {
	Page  int // slots per page of the cache
	Ratio int // tokens per slot: 1 for a window cache, 1..MaxRatio for a compressed one
}

// SlotMappingArgs are the operands of one mapping, read when the commands run.
type SlotMappingArgs struct {
	QueryStart tensor.Tensor // [R+1] i32, where the tokens of each request begin; QueryStart[R] of them are real
	SeqLens    tensor.Tensor // [R] i32 tokens, those of this step included
	Table      tensor.Tensor // [R, W] i32 page ids, an entry per Page*Ratio tokens; negative: no page
	Slots      tensor.Tensor // [T] i64, all of it written; T may exceed the real tokens
}

// SlotMapping computes where the tokens of a step are stored. Token i of request r
// has position p = seq_lens[r] - query_start[r+1] + i. If (p+1)%ratio == 0, with
// q = p/ratio, its slot is table[r, q/page]*page + q%page; otherwise, and for tokens
// past query_start[R], it is -1. It is -1 as well where the table has no page for
// q, so that no row is written to a page that was not allocated.
//
// The definition is SlotMappingRef; results are equal.
//
// Source: vLLM get_compressed_slot_mapping
// (vllm/v1/attention/backends/mla/compressor_utils.py), and for ratio 1 the slot
// mapping of every paged cache.
type SlotMapping struct{ kernel *vk.Kernel }

// kvSlotMappingPush is the push block of kv_slot_mapping.comp.
type kvSlotMappingPush struct {
	Tokens   uint32
	Requests uint32
	Width    uint32
}

// NewSlotMapping builds the kernel. The device owns it; there is nothing to close.
//
// Errors: *vk.ArgumentError; those of vk.Device.Kernel.
func NewSlotMapping(dev *vk.Device, cfg SlotMappingConfig) (*SlotMapping, error) {
	const op = "slot mapping"
	if err := least(RecordV4, cfg.Page).check(op); err != nil {
		return nil, err
	}
	if cfg.Ratio < 1 || cfg.Ratio > MaxRatio {
		return nil, pkg.Wrong(op, "Ratio", cfg.Ratio, "1..%d tokens per slot", MaxRatio)
	}
	k, err := pkg.Kernel(dev, opkit.Spec{
		Stem: "kv_slot_mapping", Variant: opkit.Base, Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Write},
		Push: kvSlotMappingPush{}, Constants: opkit.Constants(cfg.Page, cfg.Ratio),
	})
	if err != nil {
		return nil, err
	}
	return &SlotMapping{k}, nil
}

// Record checks the arguments and records the mapping. Errors: *vk.ArgumentError,
// with nothing recorded; those of vk.Recorder.Dispatch.
func (x *SlotMapping) Record(rec *vk.Recorder, a SlotMappingArgs) error {
	const op = "slot mapping"
	requests, tokens := opkit.DimOrZero(a.SeqLens, 0), opkit.DimOrZero(a.Slots, 0)
	if err := opkit.FirstError(
		pkg.CheckRows(op, "SeqLens", a.SeqLens, tensor.I32, -1),
		pkg.CheckRows(op, "QueryStart", a.QueryStart, tensor.I32, requests+1),
		pkg.CheckRows(op, "Table", a.Table, tensor.I32, requests, -1),
		pkg.CheckRows(op, "Slots", a.Slots, tensor.I64, -1),
	); err != nil {
		return err
	}
	if requests == 0 {
		return pkg.Wrong(op, "SeqLens", a.SeqLens, "at least 1 request")
	}
	if tokens == 0 {
		return nil
	}
	push := kvSlotMappingPush{Tokens: uint32(tokens), Requests: uint32(requests), Width: uint32(a.Table.Shape[1])}
	return pkg.Launch(rec, op, x.kernel, opkit.CeilDiv(tokens, 64), vk.Bytes(&push),
		a.QueryStart.View(), a.SeqLens.View(), a.Table.View(), a.Slots.View())
}
