package cache

import (
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TableUpdateArgs are the operands of one update, read when the commands run.
type TableUpdateArgs struct {
	// List, in the device's memory or in the host's, is [1 + 2*capacity] u32: how many
	// entries change, then for each the word of Tables and its new value. A count beyond the
	// capacity counts as the capacity; a word beyond Tables is skipped. No two entries may name
	// the same word.
	List   tensor.Tensor
	Tables tensor.Tensor // [words] i32, or of any other shape: one block table or several, end to end
}

// TableUpdate writes changed entries of block tables that stay on the device from step
// to step, so that a step brings a few words instead of whole tables.
//
// The definition is TableUpdateRef; results are equal.
type TableUpdate struct {
	kernel *vk.Kernel
}

// kvTableUpdatePush is the push block of kv_table_update.comp.
type kvTableUpdatePush struct {
	Capacity uint32
	Words    uint32
}

// NewTableUpdate builds the kernel. The device owns it; there is nothing to close.
//
// Errors: those of vk.Device.Kernel.
func NewTableUpdate(dev *vk.Device) (*TableUpdate, error) {
	k, err := pkg.Kernel(dev, opkit.Spec{Stem: "kv_table_update", Variant: opkit.Base, Bindings: []vk.Access{vk.Read, vk.Write},
		Push: kvTableUpdatePush{}})
	if err != nil {
		return nil, err
	}
	return &TableUpdate{kernel: k}, nil
}

// Record checks the arguments and records the update. Errors: *vk.ArgumentError, with
// nothing recorded; those of vk.Recorder.Dispatch.
func (x *TableUpdate) Record(rec *vk.Recorder, a TableUpdateArgs) error {
	const op = "table update"
	if err := pkg.CheckRows(op, "List", a.List, tensor.U32, -1); err != nil {
		return err
	}
	n := a.List.Shape[0]
	if n%2 != 1 {
		return pkg.Wrong(op, "List", a.List, "a count and pairs of words")
	}
	anyShape := slices.Repeat([]int{-1}, len(a.Tables.Shape))
	if err := tensor.Check("cache: "+op, "Tables", a.Tables, tensor.I32, anyShape...); err != nil {
		return err
	}
	if n == 1 || a.Tables.Len() == 0 {
		return nil
	}
	push := kvTableUpdatePush{Capacity: uint32(n / 2), Words: uint32(a.Tables.Len())}
	return pkg.Launch(rec, op, x.kernel, opkit.CeilDiv(n/2, 64), vk.Bytes(&push),
		a.List.View(), a.Tables.View())
}
