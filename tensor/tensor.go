// Package tensor gives a shape and an element type to a range of device memory,
// so that operations can check what they are handed before any GPU work.
package tensor

import (
	"context"
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// DType is the type of a tensor's elements.
type DType uint8

// Element types. BF16 and F16 are bit patterns of 16-bit floats; E4M3, E2M1 and
// UE8M0 values are stored as U8.
const (
	U8 DType = iota + 1
	I8
	U16
	BF16
	F16
	F32
	I32
	U32
	I64
)

var dtypes = map[DType]struct {
	name string
	size int
}{
	U8: {"u8", 1}, I8: {"i8", 1}, U16: {"u16", 2}, BF16: {"bf16", 2}, F16: {"f16", 2},
	F32: {"f32", 4}, I32: {"i32", 4}, U32: {"u32", 4}, I64: {"i64", 8},
}

// Size returns the bytes of one element, 0 for an unknown type.
func (d DType) Size() int { return dtypes[d].size }

// String returns the type's short name, such as "bf16".
func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Tensor is a row-major, contiguous array in a buffer, last index fastest. The
// zero Tensor stands for an absent one.
type Tensor struct {
	Buffer *vk.Buffer
	Offset uint64 // bytes from the buffer's start
	DType  DType
	Shape  []int
}

// New allocates a tensor in device-local memory. Its content is undefined; the
// caller closes it. A shape with a zero dimension still gets a few bytes, so that
// it can be bound.
//
// Errors: vk.ErrArgument for an unknown type or a negative dimension; those of
// vk.Device.NewBuffer.
func New(dev *vk.Device, label string, dt DType, shape ...int) (Tensor, error) {
	return NewIn(dev, vk.DeviceLocal, label, dt, shape...)
}

// NewIn is New in the given kind of memory. Errors: those of New.
func NewIn(dev *vk.Device, mem vk.Memory, label string, dt DType, shape ...int) (Tensor, error) {
	t := Tensor{DType: dt, Shape: append([]int(nil), shape...)}
	n, ok := bytes(dt, shape)
	if !ok {
		return Tensor{}, &vk.ArgumentError{Op: "tensor: new " + label, Arg: "shape",
			Got: describe(dt, shape), Want: "a known type and non-negative dimensions of at most 2^62 bytes in all"}
	}
	b, err := dev.NewBuffer(vk.BufferSpec{Label: label, Size: max(n, 16), Memory: mem})
	if err != nil {
		return Tensor{}, fmt.Errorf("tensor: new %s %s: %w", label, describe(dt, shape), err)
	}
	t.Buffer = b
	return t, nil
}

// Of views a range of a buffer as a tensor, for memory that a caller owns. Nothing
// is checked here: the operation that gets the tensor does (see Check).
func Of(v vk.View, dt DType, shape ...int) Tensor {
	return Tensor{Buffer: v.Buffer, Offset: v.Offset, DType: dt, Shape: append([]int(nil), shape...)}
}

func bytes(dt DType, shape []int) (uint64, bool) {
	n := uint64(dt.Size())
	if n == 0 {
		return 0, false
	}
	for _, d := range shape {
		if d < 0 || (d > 0 && n > (1<<62)/uint64(d)) {
			return 0, false
		}
		n *= uint64(d)
	}
	return n, true
}

// IsZero reports whether the tensor is absent.
func (t Tensor) IsZero() bool { return t.Buffer == nil }

// Len returns the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes returns the size in bytes: elements times the size of one.
func (t Tensor) Bytes() uint64 { return uint64(t.Len()) * uint64(t.DType.Size()) }

// View returns the tensor's bytes; a tensor without elements gives a few bytes at
// its place, which no kernel reads.
func (t Tensor) View() vk.View {
	n := t.Bytes()
	if n == 0 {
		n = 4
	}
	return t.Buffer.View(t.Offset, n)
}

// Rows returns the tensor of rows a to b-1 along the first dimension; an absent tensor has absent
// rows. Rows that the tensor does not have are refused where they are used, with vk.ErrArgument,
// also where its buffer holds something else there. Where the rows are to be bound, their offset
// must suit the device's StorageAlignment.
func (t Tensor) Rows(a, b int) Tensor {
	if len(t.Shape) == 0 {
		return Tensor{}
	}
	r := t
	if a < 0 || b < a || b > t.Shape[0] {
		r.Shape, r.Offset = append([]int{max(0, b-a)}, t.Shape[1:]...), nowhere
		return r
	}
	r.Shape = append([]int{b - a}, t.Shape[1:]...)
	r.Offset += uint64(a) * (t.Bytes() / uint64(max(1, t.Shape[0])))
	return r
}

// nowhere is an offset that no buffer has.
const nowhere = 1 << 62

// String reads "[3, 512] bf16".
func (t Tensor) String() string {
	if t.IsZero() {
		return "absent"
	}
	return describe(t.DType, t.Shape)
}

// Mapped returns the tensor's bytes as the host sees them, nil in DeviceLocal memory, for an
// absent tensor and for one outside of its buffer. They must not be used after the buffer was
// closed.
func (t Tensor) Mapped() []byte {
	if t.IsZero() || t.Buffer.Mapped() == nil || t.Offset+t.Bytes() > t.Buffer.Size() {
		return nil
	}
	return t.Buffer.Mapped()[t.Offset : t.Offset+t.Bytes()]
}

// Close frees the tensor's buffer, and with it every other tensor in it: it is for
// tensors that New made. An absent tensor has nothing to close.
func (t Tensor) Close() error {
	if t.Buffer == nil {
		return nil
	}
	return t.Buffer.Close()
}

// Upload copies data, Bytes() of it with little-endian elements, to the tensor and
// waits. Errors: vk.ErrArgument for an absent tensor; those of vk.Device.Upload.
func (t Tensor) Upload(ctx context.Context, data []byte) error {
	if t.IsZero() {
		return absent("tensor: upload")
	}
	if t.Len() == 0 && len(data) == 0 {
		return nil
	}
	return t.Buffer.Device().Upload(ctx, t.View(), data)
}

// Download copies the tensor to data, Bytes() long, and waits. Errors:
// vk.ErrArgument for an absent tensor; those of vk.Device.Download.
func (t Tensor) Download(ctx context.Context, data []byte) error {
	if t.IsZero() {
		return absent("tensor: download")
	}
	if t.Len() == 0 && len(data) == 0 {
		return nil
	}
	return t.Buffer.Device().Download(ctx, data, t.View())
}

func absent(op string) error {
	return &vk.ArgumentError{Op: op, Arg: "t", Got: "absent", Want: "a tensor with a buffer"}
}

// Check returns a *vk.ArgumentError unless the tensor is present, has the type
// and the dimensions (-1 fits any), and lies inside its buffer. op, as
// "package: operation", and name, the argument's, stand in the error.
func Check(op, name string, t Tensor, dt DType, dims ...int) error {
	bad := func(got string) error {
		return &vk.ArgumentError{Op: op, Arg: name, Got: got, Want: describe(dt, dims)}
	}
	if t.IsZero() || t.DType != dt || len(t.Shape) != len(dims) {
		return bad(t.String())
	}
	for i, d := range dims {
		if t.Shape[i] < 0 || (d >= 0 && t.Shape[i] != d) {
			return bad(t.String())
		}
	}
	n, ok := bytes(dt, t.Shape)
	if size := t.Buffer.Size(); !ok || t.Offset > size || n > size-t.Offset {
		return bad(fmt.Sprintf("%s at byte %d of a buffer of %d", t, t.Offset, size))
	}
	return nil
}

func describe(dt DType, shape []int) string {
	var s []string
	for _, d := range shape {
		if d < 0 {
			s = append(s, "any")
		} else {
			s = append(s, fmt.Sprint(d))
		}
	}
	return "[" + strings.Join(s, ", ") + "] " + dt.String()
}
