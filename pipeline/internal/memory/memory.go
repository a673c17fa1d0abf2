// Package memory allocates lists of tensors, each list from one buffer.
package memory

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// List says which tensors to make and where they go. Its zero value is an empty list.
type List []want

type want struct {
	to    *tensor.Tensor
	dt    tensor.DType
	shape []int
}

// Add puts a tensor on the list.
func (l *List) Add(to *tensor.Tensor, dt tensor.DType, shape ...int) {
	*l = append(*l, want{to, dt, shape})
}

// Bytes returns the size of one buffer with the tensors.
func (l List) Bytes() (n uint64) {
	for _, x := range l {
		n += tensor.Need(x.dt, x.shape...)
	}
	return n
}

// Allocate makes an arena that just holds the tensors, and then the tensors. A nil arena
// stands for an empty list. After an error there may be an arena to close.
func (l List) Allocate(dev *vk.Device, mem vk.Memory, label string) (*tensor.Arena, error) {
	if len(l) == 0 {
		return nil, nil
	}
	arena, err := tensor.NewArena(dev, mem, label, l.Bytes())
	if err != nil {
		return nil, err
	}
	for _, x := range l {
		if *x.to, err = arena.Alloc(x.dt, x.shape...); err != nil {
			break
		}
	}
	return arena, err
}

// Fits reports whether a descriptor of a device holds each tensor, and a buffer all of them.
//
// Errors: vk.ErrArgument, which names the first tensor that is larger, or all.
func (l List) Fits(op string, c *vk.Caps) error {
	for _, x := range l {
		if err := x.fits(op, c); err != nil {
			return err
		}
	}
	return bufferFits(op, len(l), l.Bytes(), c)
}

func (x *want) fits(op string, c *vk.Caps) error {
	n := tensor.Need(x.dt, x.shape...)
	if n <= c.MaxStorageBufferRange {
		return nil
	}
	return larger(op, fmt.Sprintf("a tensor %v", x.shape), n, c.MaxStorageBufferRange)
}

func bufferFits(op string, tensors int, n uint64, c *vk.Caps) error {
	if c.MaxBuffer == 0 || n <= c.MaxBuffer {
		return nil
	}
	return larger(op, fmt.Sprintf("a buffer of %d tensors", tensors), n, c.MaxBuffer)
}

func larger(op, arg string, n, limit uint64) error {
	return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprintf("%d bytes", n), Want: fmt.Sprintf("at most %d", limit)}
}

// Bound returns the most bytes that kernels reach in memory bound as one tensor.
func Bound(dev *vk.Device) uint64 {
	return min(dev.Caps().MaxStorageBufferRange, OrMost(dev.Caps().MaxBuffer))
}

// OrMost reads a limit, where 0 means none.
func OrMost(limit uint64) uint64 {
	if limit == 0 {
		return math.MaxUint64
	}
	return limit
}
