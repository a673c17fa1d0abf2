package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

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

// Rig holds the device memory of an operation's operands. Its methods remember
// the first error and do nothing after it, so a Place function can use them in a
// row. Close frees everything.
//
// A rig of NewRig checks: each tensor lies between guard bytes. A rig of NewFarRig checks with
// pages far from where their pools begin. A rig of NewSets times: operands are there several times
// over.
type Rig struct {
	ctx  context.Context
	dev  *vk.Device
	err  error
	held []held
	far  uint64 // bytes of a pool, half of whose pages lie before them; 0: pools begin with their pages
	sets *sets  // nil: the rig checks
}

type held struct {
	whole  tensor.Tensor // the guard bytes and what is between them, or a pool whose pages are far
	inner  tensor.Tensor
	poison byte
	far    bool
}

// NewRig returns a rig for one run on dev.
func NewRig(ctx context.Context, dev *vk.Device) *Rig { return &Rig{ctx: ctx, dev: dev} }

// NewFarRig is NewRig whose pools have pages on both sides of a number of bytes.
func NewFarRig(ctx context.Context, dev *vk.Device, bytes uint64) *Rig {
	return &Rig{ctx: ctx, dev: dev, far: bytes}
}

// Far reports whether a pool of the rig has pages far from its beginning.
func (r *Rig) Far() bool { return slices.ContainsFunc(r.held, func(h held) bool { return h.far }) }

// Err returns the first error, nil if there was none.
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
	r.sets.close(r)
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
	if r.sets != nil {
		return r.sets.in(r, a, dt)
	}
	return r.place(a.Data, poisonOther, dt, a.Shape)
}

// Shared is In for an operand that all sets have in common, as a table of angles.
func (r *Rig) Shared(a Array, dt tensor.DType) tensor.Tensor {
	if r.sets != nil && r.err == nil && !a.IsZero() {
		return r.sets.once(func() tensor.Tensor { return r.sets.upload(r, a, dt) })
	}
	return r.In(a, dt)
}

// Pool is In for the bytes of pages [pages, stride] that Index's arrays refer to. With sets
// there are several copies of all pages, as use says.
func (r *Rig) Pool(a Array, use Pages) *Pool {
	p := &Pool{Pages: use, pages: a.Dim(0)}
	if r.sets != nil {
		return r.sets.pool(r, p, a)
	}
	if r.far == 0 {
		p.Tensor = r.In(a, tensor.U8)
	} else if r.err == nil && !a.IsZero() {
		p.before = int(r.far/uint64(a.Dim(1))) - p.pages/2
		r.placeFar(p, a)
	}
	return p
}

// placeFar makes a pool with its pages after others that nothing refers to.
func (r *Rig) placeFar(p *Pool, a Array) {
	var err error
	if p.Tensor, err = tensor.New(r.dev, "verify", tensor.U8, p.before+p.pages, a.Dim(1)); err != nil {
		r.Fail(err)
		return
	}
	pages := p.Rows(p.before, p.before+p.pages)
	r.held = append(r.held, held{whole: p.Tensor, inner: pages, far: true})
	r.Fail(pages.Upload(r.ctx, a.Data))
}

// Index is In for numbers of pages of a pool, or of its slots. With sets, each number becomes
// that of the same page of another copy: results stay the same. Numbers of no page stay, too.
func (r *Rig) Index(p *Pool, a Array, dt tensor.DType, slots bool) tensor.Tensor {
	if r.sets != nil && !a.IsZero() {
		a = r.sets.spread(p, a, slots)
		return r.sets.upload(r, a, dt)
	}
	if p.before > 0 {
		per := int64(1)
		if slots {
			per = int64(p.Page)
		}
		a = renumbered(a, func(v int64) int64 { // those of no page, too
			if v >= 0 {
				v = min(v+per*int64(p.before), math.MaxInt32)
			}
			return v
		})
	}
	return r.In(a, dt)
}

// SharedOut is Out for a result that all sets have in common.
func (r *Rig) SharedOut(dt tensor.DType, shape ...int) tensor.Tensor {
	if r.sets != nil {
		return r.sets.once(func() tensor.Tensor { return r.Out(dt, shape...) })
	}
	return r.Out(dt, shape...)
}

// Scratch makes memory for what passes between kernels; none for 0 bytes. It is poisoned: a
// NaN wherever something is read that was not written.
func (r *Rig) Scratch(bytes uint64) vk.View {
	if bytes == 0 || r.err != nil {
		return vk.View{}
	}
	if r.sets == nil && bytes > 1<<31 { // the guard bytes' image of it lies in host memory
		r.Fail(vk.ErrOutOfDeviceMemory)
		return vk.View{}
	}
	t := r.SharedOut(tensor.F32, int(bytes+3)/4)
	if r.err != nil {
		return vk.View{}
	}
	return t.View()
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
	if r.sets != nil {
		return r.sets.out(r, poison, dt, shape)
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
	r.held = append(r.held, held{whole: whole, inner: inner, poison: poison})
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
	r.Fail(do(r.ctx, r.dev, f))
}

func do(ctx context.Context, dev *vk.Device, f func(rec *vk.Recorder) error) error {
	rec, err := dev.NewRecorder()
	if err != nil {
		return err
	}
	if err := f(rec); err != nil {
		rec.Close()
		return err
	}
	cmd, err := rec.End()
	if err != nil {
		return err
	}
	return errors.Join(cmd.Run(ctx), cmd.Close())
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
		if h.far {
			data := make([]byte, h.inner.Len())
			r.Fail(h.inner.Download(r.ctx, data))
			for name, t := range out {
				if t.Buffer == h.whole.Buffer && t.Offset == h.whole.Offset {
					got[name] = Array{Type: vectors.U8, Shape: h.inner.Shape, Data: data}
				}
			}
			continue
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
				got[name] = Array{Type: stored[t.DType], Shape: t.Shape, Data: img[fence : fence+n]}
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

// stored has the array type with the bits of a tensor's element type.
var stored = map[tensor.DType]vectors.Type{tensor.U8: vectors.U8, tensor.I8: vectors.I8, tensor.U16: vectors.U16,
	tensor.BF16: vectors.U16, tensor.F16: vectors.F16, tensor.F32: vectors.F32, tensor.I32: vectors.I32, tensor.U32: vectors.U32,
	tensor.I64: vectors.I64}
