package attention

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnPackIndicesPush struct {
	CompWidth, WinWidth, WinRow0, Width, CompSlots, WinSlots, Flags uint32
}

// packIndices lists, for the two-pass decode, the rows of the gathered workspace
// that each token attends; PackIndicesRef defines it.
type packIndices struct {
	dev *vk.Device
	k   *vk.Kernel
}

func newPackIndices(dev *vk.Device) (packIndices, error) {
	k, err := pkg.Kernel(dev, opkit.Spec{
		Stem: "attn_pack_indices", Variant: opkit.Base, Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Push: attnPackIndicesPush{},
	})
	return packIndices{dev, k}, err
}

// packedWidth is the width of packed index rows.
func packedWidth(window, topk int) int { return opkit.RoundUp(window+topk, 16) }

// record packs the lists of t tokens into packed [t, width] and lens [t]. The sets
// were checked by the caller.
func (o packIndices) record(rec *vk.Recorder, win, comp SlotSet, keepMasked bool, packed, lens tensor.Tensor) error {
	const op = "pack indices"
	t, topk := opkit.DimOrZero(packed, 0), opkit.DimOrZero(comp.Indices, 1)
	p := attnPackIndicesPush{
		CompWidth: uint32(topk), WinWidth: uint32(opkit.DimOrZero(win.Indices, 1)),
		WinRow0: uint32(t * topk), Width: uint32(opkit.DimOrZero(packed, 1)),
		WinSlots: uint32(win.Cache.Slots()),
		Flags:    opkit.Bit(0, !comp.isZero()) | opkit.Bit(1, keepMasked),
	}
	if !comp.isZero() {
		p.CompSlots = uint32(comp.Cache.Slots())
	}
	return pkg.Launch(rec, op, o.k, t, vk.Bytes(&p),
		opkit.ViewOrDummy(o.dev, comp.Indices), opkit.ViewOrDummy(o.dev, comp.Lens), win.Indices.View(),
		win.Lens.View(), packed.View(), lens.View())
}
