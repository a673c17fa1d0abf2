package cache

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Touch reads a word of every 2 MiB or so of a pool, which changes nothing, so that the device has
// translated the pool's addresses when rows are gathered from all over it. A GPU remembers
// translations of some gigabytes; where the pools of all layers are larger, each layer would find
// its own forgotten.
type Touch struct {
	dev    *vk.Device
	kernel *vk.Kernel
}

// kvTouchPush is the push block of kv_touch.comp.
type kvTouchPush struct {
	Words uint32
}

const (
	touchBytes = 2 << 20 // that a word stands for: a page, which one translation of addresses covers
	touchGroup = 32      // words that a workgroup reads
)

// NewTouch builds the kernel, which the device owns. Errors: those of vk.Device.Kernel.
func NewTouch(dev *vk.Device) (*Touch, error) {
	k, err := pkg.Kernel(dev, opkit.Spec{Stem: "kv_touch", Variant: opkit.Base, Bindings: []vk.Access{vk.Read, vk.Write},
		Push: kvTouchPush{}, Constants: opkit.Constants(touchGroup, touchBytes/4)})
	if err != nil {
		return nil, err
	}
	return &Touch{dev, k}, nil
}

// Record records the launch for a pool that a descriptor holds. sink is [1] u32 or more, which no
// kernel reads: the device may write to its first word.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (x *Touch) Record(rec *vk.Recorder, pool, sink tensor.Tensor) error {
	const op = "touch"
	if err := opkit.FirstError(
		pkg.Check(op, "pool", pool, tensor.U8, -1, -1),
		pkg.Check(op, "sink", sink, tensor.U32, -1),
		pkg.Bindable(x.dev, op, "pool", pool),
	); err != nil {
		return err
	}
	push := kvTouchPush{uint32(pool.Bytes() / 4)}
	groups := opkit.CeilDiv(int(pool.Bytes()), touchBytes*touchGroup)
	return pkg.Launch(rec, op, x.kernel, groups, vk.Bytes(&push), pool.View(), sink.View())
}
