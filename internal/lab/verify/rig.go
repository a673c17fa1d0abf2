package verify

import (
	"bytes"
	"context"
	"fmt"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Bytes that fill what a kernel must overwrite. For floating-point outputs it
// is all ones, a NaN in every format; for everything else 0xA5, because all
// ones would be -1, which index arrays legitimately contain.
const (
	poisonFloat = 0xFF
	poisonOther = 0xA5
)

// fence is the number of guard bytes on either side of a tensor of a Rig. It is
// a multiple of every storage-buffer offset alignment that Vulkan permits.
const fence = 256

// Rig holds the device memory of one run of an operation. Its methods remember
// the first error and do nothing after it, so a Run function can use them in a
// row and look at the error of Results. Close frees everything.
type Rig struct {
	ctx  context.Context
	dev  *vk.Device
	err  error
	held []held
}

type held struct {
	whole  tensor.Tensor // the guard bytes and what is between them
	inner  tensor.Tensor
	poison byte
}

// NewRig returns a rig for one run on dev.
func NewRig(ctx context.Context, dev *vk.Device) *Rig { return &Rig{ctx: ctx, dev: dev} }

// Err is the first error, nil if there was none.
func (r *Rig) Err() error { return r.err }

// Fail remembers err if it is the first one.
func (r *Rig) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Close frees the device memory.
func (r *Rig) Close() {
	for _, h := range r.held {
		h.whole.Close()
	}
	r.held = nil
}

// In uploads an array as a tensor with elements of type dt, which must have the
// size of the array's elements. The zero Array gives the zero Tensor.
func (r *Rig) In(a Array, dt tensor.DType) tensor.Tensor {
	if r.err != nil || a.IsZero() {
		return tensor.Tensor{}
	}
	if dt.Size() != a.Type.Size() {
		r.Fail(fmt.Errorf("verify: upload: cannot hold %v in elements of type %v", a, dt))
		return tensor.Tensor{}
	}
	return r.place(a.Data, poisonOther, dt, a.Shape)
}

// Out makes a tensor filled with poison, between guard bytes that Results
// checks.
func (r *Rig) Out(dt tensor.DType, shape ...int) tensor.Tensor {
	n := dt.Size()
	for _, d := range shape {
		n *= d
	}
	if r.err != nil {
		return tensor.Tensor{}
	}
	poison := byte(poisonOther)
	switch dt {
	case tensor.BF16, tensor.F16, tensor.F32:
		poison = poisonFloat
	}
	return r.place(bytes.Repeat([]byte{poison}, n), poison, dt, shape)
}

func (r *Rig) place(data []byte, poison byte, dt tensor.DType, shape []int) tensor.Tensor {
	// Room up to the next multiple of the fence keeps the rear guard aligned.
	room := (len(data) + fence - 1) / fence * fence
	img := bytes.Repeat([]byte{poison}, room+2*fence)
	copy(img[fence:], data)
	whole, err := tensor.New(r.dev, "verify", tensor.U8, len(img))
	if err != nil {
		r.Fail(err)
		return tensor.Tensor{}
	}
	inner := tensor.Tensor{Buffer: whole.Buffer, Offset: whole.Offset + fence, DType: dt, Shape: append([]int(nil), shape...)}
	r.held = append(r.held, held{whole, inner, poison})
	if err := whole.Upload(r.ctx, img); err != nil {
		r.Fail(err)
		return tensor.Tensor{}
	}
	return inner
}

// Do records commands with f and runs them to the end.
func (r *Rig) Do(f func(rec *vk.Recorder) error) {
	if r.err != nil {
		return
	}
	rec, err := r.dev.NewRecorder()
	if err != nil {
		r.Fail(err)
		return
	}
	if err := f(rec); err != nil {
		rec.Close()
		r.Fail(err)
		return
	}
	cmd, err := rec.End()
	if err != nil {
		r.Fail(err)
		return
	}
	r.Fail(cmd.Run(r.ctx))
	r.Fail(cmd.Close())
}

// Results reads tensors back, by name, after checking that the guard bytes
// around every tensor of the rig are still as they were. A zero Tensor is left
// out.
func (r *Rig) Results(out map[string]tensor.Tensor) (Arrays, error) {
	got := Arrays{}
	for _, h := range r.held {
		if r.err != nil {
			return nil, r.err
		}
		img := make([]byte, h.whole.Len())
		if err := h.whole.Download(r.ctx, img); err != nil {
			r.Fail(err)
			break
		}
		n := int(h.inner.Bytes())
		r.checkFence(img[:fence], h, "before", -fence)
		r.checkFence(img[fence+n:], h, "after", n)
		for name, t := range out {
			if t.Buffer == h.inner.Buffer && t.Offset == h.inner.Offset {
				got[name] = Array{Type: stored(t.DType), Shape: t.Shape, Data: img[fence : fence+n]}
			}
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return got, nil
}

func (r *Rig) checkFence(guard []byte, h held, where string, base int) {
	for i, b := range guard {
		if b != h.poison {
			r.Fail(fmt.Errorf("verify: stray write: byte %d %s a tensor of shape %v was changed to 0x%02x", base+i, where, h.inner.Shape, b))
			return
		}
	}
}

// stored is the array type that has the bits of a tensor's element type.
func stored(dt tensor.DType) vectors.Type {
	switch dt {
	case tensor.I8:
		return vectors.I8
	case tensor.U16, tensor.BF16:
		return vectors.U16
	case tensor.F16:
		return vectors.F16
	case tensor.F32:
		return vectors.F32
	case tensor.I32:
		return vectors.I32
	case tensor.U32:
		return vectors.U32
	case tensor.I64:
		return vectors.I64
	}
	return vectors.U8
}
