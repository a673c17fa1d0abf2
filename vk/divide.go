package vk

// #include "abi.h"
import "C"

import (
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// MaxPieces bounds the pieces of one launch.
const MaxPieces = 64

// Work bounds what a launch has to do.
type Work struct {
	Bytes    uint64  // of all that it binds and reaches
	Products float64 // multiply-adds, see Dispatch.Products
}

// Part describes the contents of one of several submissions.
type Part struct {
	First      int  // its first operation, counted from 0 in the order of recording
	Operations int  // how many; 1 for a piece of a launch
	Divisible  bool // Split can divide it further
	Work       Work // of its launches; a piece has its share
}

// Division returns the parts, in their order; nil if the recording was not split.
func (c *Commands) Division() []Part { return c.rec.parts.list }

// piecesOf returns the number of pieces of the operation that is recorded next, and the
// most that the workgroups along its side allow.
func (r *Recorder) piecesOf(groups [3]uint32, side int, w Work) (n, most int) {
	if !r.parts.on {
		return 1, 1
	}
	most = min(int(groups[side]), MaxPieces)
	n, given := r.parts.Of[r.operations]
	if count := r.parts.Count; !given && count != nil {
		n = count(w)
	}
	return min(max(n, 1), most), most
}

// workOf is the work of a launch that accesses these views.
func workOf(products float64, uses []use) Work {
	w := Work{Products: products}
	for _, u := range uses {
		w.Bytes += u.view.Size
	}
	return w
}

// add adds a launch, or the share of it that one of `pieces` has.
func (w *Work) add(x Work, pieces int) {
	w.Bytes += x.Bytes / uint64(pieces)
	w.Products += x.Products / float64(pieces)
}

// side is the axis along which launches of the kernel are divided: the longest. It is not x
// for kernels that read the number of workgroups, which they use along x only, because a
// piece reports its own number.
func (k *Kernel) side(groups [3]uint32) int {
	side := 0
	if k.counts {
		side = 1
	}
	for i := side + 1; i < 3; i++ {
		if groups[i] > groups[side] {
			side = i
		}
	}
	return side
}

// launchPieces records a launch in pieces, each from the second on in a part of its own.
func (r *Recorder) launchPieces(k *Kernel, set vulkan.DescriptorSet, x Dispatch, w Work, side, n int) error {
	all, pieces := uint64(x.Groups[side]), uint64(n)
	for i := range pieces {
		from, to := uint32(i*all/pieces), uint32((i+1)*all/pieces)
		if i > 0 {
			if err := r.cut(); err != nil {
				return err
			}
			r.parts.first-- // the operation goes on
		}
		r.parts.work.add(w, n)
		r.bind(k, set, x.Push)
		base, count := [3]uint32{}, x.Groups
		base[side], count[side] = from, to-from
		C.vm_dispatch_base(r.dev.c, unsafe.Pointer(r.cmd), (*C.uint32_t)(&base[0]), (*C.uint32_t)(&count[0]))
	}
	r.dispatches++
	return nil
}
