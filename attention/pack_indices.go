package attention

import (
	"unsafe"

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
	k, err := kernel(dev, "attn_pack_indices", []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		int(unsafe.Sizeof(attnPackIndicesPush{})), 0)
	return packIndices{dev, k}, err
}

// packedWidth is the width of packed index rows.
func packedWidth(window, topk int) int { return roundUp(window+topk, 16) }

// record packs the lists of t tokens into packed [t, width] and lens [t]. The sets
// were checked by the caller.
func (o packIndices) record(rec *vk.Recorder, win, comp SlotSet, keepMasked bool, packed, lens tensor.Tensor) error {
	t, topk := dim(packed, 0), dim(comp.Indices, 1)
	p := attnPackIndicesPush{
		CompWidth: uint32(topk), WinWidth: uint32(dim(win.Indices, 1)), WinRow0: uint32(t * topk), Width: uint32(dim(packed, 1)),
		WinSlots: uint32(win.Cache.Slots()),
		Flags:    bit(0, !comp.IsZero()) | bit(1, keepMasked),
	}
	if !comp.IsZero() {
		p.CompSlots = uint32(comp.Cache.Slots())
	}
	return rec.Dispatch(vk.Dispatch{
		Kernel: o.k, Groups: [3]uint32{uint32(t), 1, 1},
		Bind: []vk.View{present(o.dev, comp.Indices), present(o.dev, comp.Lens), win.Indices.View(), win.Lens.View(), packed.View(), lens.View()},
		Push: vk.Bytes(&p),
	})
}
