package tensor_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func device(t *testing.T) *vk.Device {
	t.Helper()
	in, err := vk.NewInstance(vk.InstanceOptions{})
	require.NoError(t, err)
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	d, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, errors.Join(d.Close(), in.Close()))
	})
	return d
}

func TestCheck(t *testing.T) {
	d := device(t)
	x, err := tensor.New(d, "x", tensor.BF16, 3, 512)
	require.NoError(t, err)
	defer x.Close()
	long := x
	long.Shape = []int{4, 512}
	for name, c := range map[string]struct {
		t    tensor.Tensor
		dt   tensor.DType
		dims []int
		ok   bool
	}{
		"equal":          {x, tensor.BF16, []int{3, 512}, true},
		"any rows":       {x, tensor.BF16, []int{-1, 512}, true},
		"row":            {x.Rows(2, 3), tensor.BF16, []int{1, 512}, true},
		"type":           {x, tensor.F16, []int{3, 512}, false},
		"rank":           {x, tensor.BF16, []int{3, 512, 1}, false},
		"dimension":      {x, tensor.BF16, []int{3, 256}, false},
		"absent":         {tensor.Tensor{}, tensor.BF16, []int{3, 512}, false},
		"past the end":   {long, tensor.BF16, []int{4, 512}, false},
		"rows past that": {x.Rows(2, 4), tensor.BF16, []int{2, 512}, false},
	} {
		err := tensor.Check("op", "x", c.t, c.dt, c.dims...)
		assert.False(t, (err == nil) != c.ok || err != nil && !errors.Is(err, vk.ErrArgument), "%s: %v", name, err)
	}
	for _, shape := range [][]int{{-1}, {1 << 40, 1 << 40}} {
		_, err := tensor.New(d, "bad", tensor.F32, shape...)
		assert.ErrorIs(t, err, vk.ErrArgument, "shape %v", shape)
	}
}

func TestArena(t *testing.T) {
	d, ctx := device(t), context.Background()
	a, err := tensor.NewArena(d, vk.DeviceLocal, "arena", tensor.Need(tensor.U8, 3)+tensor.Need(tensor.F32, 65))
	require.NoError(t, err)
	defer a.Close()
	x, err := a.Alloc(tensor.U8, 3)
	require.NoError(t, err)
	y, err := a.Alloc(tensor.F32, 65)
	require.NoError(t, err, "second tensor at %d", y.Offset)
	require.Equal(t, uint64(0), y.Offset%tensor.Align, "second tensor at %d", y.Offset)
	require.NoError(t, errors.Join(x.Upload(ctx, []byte{1, 2, 3}), y.Upload(ctx, bytes.Repeat([]byte{9}, 260))))
	got := make([]byte, 3)
	assert.NoError(t, x.Download(ctx, got), "tensors of an arena overlap")
	assert.Equal(t, []byte{1, 2, 3}, got, "tensors of an arena overlap")
	_, err = a.Alloc(tensor.U8, 1)
	assert.ErrorIs(t, err, vk.ErrOutOfDeviceMemory, "full arena")
}

// The zero Tensor stands for an absent one: nothing can be copied to or from it.
func TestAbsent(t *testing.T) {
	var x tensor.Tensor
	ctx := context.Background()
	for name, err := range map[string]error{
		"upload": x.Upload(ctx, []byte{1}), "upload nothing": x.Upload(ctx, nil),
		"download": x.Download(ctx, make([]byte, 1)), "download nothing": x.Download(ctx, nil),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	r := x.Rows(0, 1)
	assert.True(t, r.IsZero(), "rows of an absent tensor: %v", r)
	_, errNew := tensor.New(nil, "x", tensor.U8, 1)
	_, errArena := tensor.NewArena(nil, vk.Upload, "x", 16)
	for _, err := range []error{errNew, errArena} {
		assert.ErrorIs(t, err, vk.ErrArgument, "without a device")
	}
	require.Nil(t, x.Mapped(), "absent tensor, %s", x)
	require.NoError(t, x.Close(), "absent tensor, %s", x)
	assert.Equal(t, "absent", x.String(), "absent tensor, %s", x)
}

// Rows that a tensor does not have are refused, though the buffer has something there.
func TestRowsOutOfRange(t *testing.T) {
	dev := device(t)
	b, err := tensor.NewIn(dev, vk.Readback, "t", tensor.F32, 10, 4)
	require.NoError(t, err)
	defer b.Close()
	x := tensor.Of(b.Buffer.View(0, 64), tensor.F32, 4, 4)
	assert.Len(t, x.Rows(1, 4).Mapped(), 48)
	assert.Empty(t, x.Rows(4, 4).Mapped())
	for _, r := range [][2]int{{3, 5}, {-1, 2}, {5, 6}, {3, 1}, {-3, -1}} {
		y := x.Rows(r[0], r[1])
		assert.ErrorIs(t, y.Upload(context.Background(), make([]byte, 16*max(1, r[1]-r[0]))), vk.ErrArgument, "%v", r)
		assert.Nil(t, y.Mapped(), "%v", r)
	}
}
