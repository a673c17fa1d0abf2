package tensor_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func device(t *testing.T) *vk.Device {
	t.Helper()
	in, err := vk.NewInstance(vk.InstanceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := a.Open(vk.DeviceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), in.Close()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestCheck(t *testing.T) {
	d := device(t)
	x, err := tensor.New(d, "x", tensor.BF16, 3, 512)
	if err != nil {
		t.Fatal(err)
	}
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
		if (err == nil) != c.ok || (err != nil && !errors.Is(err, vk.ErrArgument)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, shape := range [][]int{{-1}, {1 << 40, 1 << 40}} {
		if _, err := tensor.New(d, "bad", tensor.F32, shape...); !errors.Is(err, vk.ErrArgument) {
			t.Errorf("shape %v: %v", shape, err)
		}
	}
}

func TestArena(t *testing.T) {
	d, ctx := device(t), context.Background()
	a, err := tensor.NewArena(d, vk.DeviceLocal, "arena", tensor.Need(tensor.U8, 3)+tensor.Need(tensor.F32, 65))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	x, err := a.Alloc(tensor.U8, 3)
	if err != nil {
		t.Fatal(err)
	}
	y, err := a.Alloc(tensor.F32, 65)
	if err != nil || y.Offset%tensor.Align != 0 {
		t.Fatalf("second tensor at %d: %v", y.Offset, err)
	}
	if err := errors.Join(x.Upload(ctx, []byte{1, 2, 3}), y.Upload(ctx, bytes.Repeat([]byte{9}, 260))); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 3)
	if err := x.Download(ctx, got); err != nil || !bytes.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("tensors of an arena overlap: %v, %v", got, err)
	}
	if _, err := a.Alloc(tensor.U8, 1); !errors.Is(err, vk.ErrOutOfDeviceMemory) {
		t.Errorf("full arena: %v", err)
	}
}

// The zero Tensor stands for an absent one: nothing can be copied to or from it.
func TestAbsent(t *testing.T) {
	var x tensor.Tensor
	ctx := context.Background()
	for name, err := range map[string]error{
		"upload": x.Upload(ctx, []byte{1}), "upload nothing": x.Upload(ctx, nil),
		"download": x.Download(ctx, make([]byte, 1)), "download nothing": x.Download(ctx, nil),
	} {
		if !errors.Is(err, vk.ErrArgument) {
			t.Errorf("%s: %v, want an argument error", name, err)
		}
	}
	if r := x.Rows(0, 1); !r.IsZero() {
		t.Errorf("rows of an absent tensor: %v", r)
	}
	_, errNew := tensor.New(nil, "x", tensor.U8, 1)
	_, errArena := tensor.NewArena(nil, vk.Upload, "x", 16)
	for _, err := range []error{errNew, errArena} {
		if !errors.Is(err, vk.ErrArgument) {
			t.Errorf("without a device: %v, want an argument error", err)
		}
	}
	if x.Mapped() != nil || x.Close() != nil || x.String() != "absent" {
		t.Errorf("absent tensor: mapped %v, %s", x.Mapped(), x)
	}
}
