package tensor

import (
	"fmt"

	"github.com/vkmla/vkmla/vk"
)

// Align is the alignment in bytes of every tensor of an Arena: the largest that
// Vulkan lets a device demand of a storage buffer's offset.
const Align = 256

// Arena hands out tensors from one buffer, one after the other. It suits the many
// small arrays of a step: a device allows only a few thousand allocations. It is
// for one goroutine at a time. NewArena makes one; the zero Arena is of no use.
type Arena struct {
	buf  *vk.Buffer
	used uint64
}

// NewArena allocates an arena of size bytes; the caller closes it, and with it all
// tensors that it hands out.
//
// Errors: those of vk.Device.NewBuffer.
func NewArena(dev *vk.Device, mem vk.Memory, label string, size uint64) (*Arena, error) {
	b, err := dev.NewBuffer(vk.BufferSpec{Label: label, Size: size, Memory: mem})
	if err != nil {
		return nil, fmt.Errorf("tensor: new arena: %w", err)
	}
	return &Arena{buf: b}, nil
}

// Need returns the bytes of an arena that a tensor takes: its own, at least 16,
// rounded up to a multiple of Align. A shape that Alloc refuses counts as empty.
func Need(dt DType, shape ...int) uint64 {
	n, _ := bytes(dt, shape)
	return (max(n, 16) + Align - 1) &^ (Align - 1)
}

// Alloc takes a tensor from the arena. Its content is undefined.
//
// Errors: vk.ErrArgument for a bad shape; vk.ErrOutOfDeviceMemory when the arena is
// full.
func (a *Arena) Alloc(dt DType, shape ...int) (Tensor, error) {
	if _, ok := bytes(dt, shape); !ok {
		return Tensor{}, &vk.ArgumentError{Op: "tensor: arena", Arg: "shape",
			Got: describe(dt, shape), Want: "a known type and non-negative dimensions"}
	}
	n := Need(dt, shape...)
	if n > a.buf.Size()-a.used {
		return Tensor{}, fmt.Errorf("tensor: arena %q: %w: %s needs %d bytes, %d of %d are free",
			a.buf.Label(), vk.ErrOutOfDeviceMemory, describe(dt, shape), n, a.buf.Size()-a.used, a.buf.Size())
	}
	t := Of(a.buf.View(a.used, n), dt, shape...)
	a.used += n
	return t, nil
}

// Whole is the arena's buffer with all tensors of it.
func (a *Arena) Whole() vk.View { return a.buf.Whole() }

// Close frees the arena and with it the tensors that it handed out.
func (a *Arena) Close() error {
	if a == nil {
		return nil
	}
	return a.buf.Close()
}
