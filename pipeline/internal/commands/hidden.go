package commands

import (
	"slices"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// states is a list of tensors of one shape in one buffer.
type states struct {
	arena *tensor.Arena
	list  []tensor.Tensor
}

func (z *Sizes) newHiddenStates(mem vk.Memory, n int, dt tensor.DType, shape ...int) (h states, err error) {
	h.list = make([]tensor.Tensor, n)
	var list memory.List
	for i := range h.list {
		list.Add(&h.list[i], dt, shape...)
	}
	h.arena, err = z.cfg.Count.in(mem).hidden.Arena(z.cfg.Dev, mem, "hidden states", list)
	return h, err
}

func (h *states) buffer() *vk.Buffer { return h.arena.Whole().Buffer }

func (h *states) bytes() uint64 {
	if h.arena == nil {
		return 0
	}
	return h.arena.Whole().Size
}

// of returns the tensor of a layer: it may be one for all layers.
func (h *states) of(layer int) tensor.Tensor {
	switch {
	case len(h.list) == 0:
		return tensor.Tensor{}
	case len(h.list) == 1:
		return h.list[0]
	}
	return h.list[layer]
}

// buildHidden makes the memory for hidden states and kept picks.
func (b *Size) buildHidden() (err error) {
	z := b.z
	n := len(z.cfg.Layers)
	if z.OneTensor() {
		n = 1
	}
	in, out := vk.DeviceLocal, vk.DeviceLocal
	if z.MapsHidden() {
		in, out = vk.Upload, vk.Readback
	}
	if b.in, err = z.newHiddenStates(in, n, tensor.BF16, b.Tokens, z.cfg.Model.Hidden); err != nil {
		return err
	}
	if z.cfg.Count == nil {
		door.Track(b.in.buffer())
	}
	if b.out, err = z.newHiddenStates(out, n, z.out(), b.Tokens, z.cfg.Model.Hidden); err != nil {
		return err
	}
	kept := len(z.cfg.Layers)
	if z.cfg.LayerByLayer {
		kept = 1 // else those of all layers are read when the step has run
	}
	if !z.cfg.KeepTopK || !slices.ContainsFunc(z.cfg.Layers, func(l Layer) bool { return l.Spec.Picks == model.PickOwn }) {
		return nil
	}
	b.topK, err = z.newHiddenStates(out, kept, tensor.I32, b.Tokens, z.cfg.Model.TopK)
	return err
}

// twins are tensors on the device and the same in host memory.
type twins struct {
	device, host *states
	mem          vk.Memory // of host
}

// results are those that a layer writes, hidden all.
func (b *Size) results() []twins {
	return []twins{{&b.out, &b.hostOut, vk.Readback}, {&b.topK, &b.hostTopK, vk.Readback}}
}

func (b *Size) hidden() []twins { return append(b.results(), twins{&b.in, &b.hostIn, vk.Upload}) }

// OpenHost makes the hidden states in host memory.
func (b *Size) OpenHost() (err error) {
	z := b.z
	for _, x := range b.hidden() {
		if x.host.arena != nil || x.device.arena == nil {
			continue
		}
		if z.MapsHidden() {
			*x.host = *x.device
			continue
		}
		like := x.device.list[0]
		fresh, err := z.newHiddenStates(x.mem, len(x.device.list), like.DType, like.Shape...)
		if err != nil {
			return err
		}
		*x.host = fresh
		if z.cfg.Count != nil {
			continue
		}
		// Padding is zeros, not what other memory left there: a dump has no stray NaN.
		clear(fresh.arena.Whole().Buffer.Mapped())
	}
	return nil
}

// Tensors of a layer in a step, on the device and in host memory; zero where there are none, and
// for an unknown layer.

func (b *Size) In(layer int) tensor.Tensor       { return b.tensor(&b.in, layer) }
func (b *Size) Out(layer int) tensor.Tensor      { return b.tensor(&b.out, layer) }
func (b *Size) TopK(layer int) tensor.Tensor     { return b.tensor(&b.topK, layer) }
func (b *Size) HostIn(layer int) tensor.Tensor   { return b.tensor(&b.hostIn, layer) }
func (b *Size) HostOut(layer int) tensor.Tensor  { return b.tensor(&b.hostOut, layer) }
func (b *Size) HostTopK(layer int) tensor.Tensor { return b.tensor(&b.hostTopK, layer) }

func (b *Size) tensor(h *states, layer int) tensor.Tensor {
	if layer < 0 || layer >= len(b.Layers) {
		return tensor.Tensor{}
	}
	return h.of(layer)
}

// TrackInputs makes door.Overwritten count from now on what is written to the inputs.
func (b *Size) TrackInputs() { door.Track(b.in.buffer()) }
