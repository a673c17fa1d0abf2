package memory

import (
	"slices"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Count is memory that is counted instead of allocated. A nil Count allocates.
type Count struct{ Bytes uint64 }

// Tensor is tensor.New, or counts it: the tensor then has a shape and no memory.
func (c *Count) Tensor(dev *vk.Device, label string, dt tensor.DType, shape ...int) (tensor.Tensor, error) {
	if c == nil {
		return tensor.New(dev, label, dt, shape...)
	}
	t := tensor.Tensor{DType: dt, Shape: slices.Clone(shape)}
	c.Bytes += t.Bytes()
	return t, nil
}

// Arena is List.Allocate, or counts the list: its tensors then have shapes and no memory, as the
// arena.
func (c *Count) Arena(dev *vk.Device, mem vk.Memory, label string, l List) (*tensor.Arena, error) {
	if c == nil {
		return l.Allocate(dev, mem, label)
	}
	for _, x := range l {
		*x.to = tensor.Tensor{DType: x.dt, Shape: slices.Clone(x.shape)}
	}
	c.Bytes += l.Bytes()
	return &tensor.Arena{}, nil
}
