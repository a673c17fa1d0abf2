package vk_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/vkmla/vkmla/vk"
)

// Calls on a nil or zero device or recorder, as after an unchecked error, return ErrArgument.
// Closing one succeeds.
func TestWithoutDevice(t *testing.T) {
	ctx := context.Background()
	for _, d := range []*vk.Device{nil, {}} {
		_, errBuffer := d.NewBuffer(vk.BufferSpec{Size: 4})
		_, errKernel := d.Kernel(vk.KernelSpec{})
		_, errRecorder := d.NewRecorder()
		_, errStatistics := d.Statistics(nil)
		_, errVariant := vk.ChooseVariant("op", d.Adapter(), []vk.Variant{{Name: "base"}}, "")
		for i, err := range []error{errBuffer, errKernel, errRecorder, errStatistics, errVariant,
			d.Upload(ctx, vk.View{}, nil), d.Download(ctx, nil, vk.View{})} {
			if !errors.Is(err, vk.ErrArgument) {
				t.Errorf("call %d without a device: %v, want ErrArgument", i, err)
			}
		}
		if err := d.Close(); err != nil || d.Caps().MaxPushConstants != 0 {
			t.Errorf("no device: %v, %v", err, d.Caps())
		}
	}
	for _, r := range []*vk.Recorder{nil, {}} {
		r.Section("none")
		_, errMark := r.Timestamp()
		_, errEnd := r.End()
		for i, err := range []error{errMark, errEnd, r.Fill(vk.View{}, 0), r.Copy(vk.View{}, vk.View{}),
			r.Dispatch(vk.Dispatch{Kernel: &vk.Kernel{}}), r.Separate()} {
			if !errors.Is(err, vk.ErrArgument) {
				t.Errorf("call %d without a recorder: %v, want ErrArgument", i, err)
			}
		}
		r.Close()
	}
	var c *vk.Commands
	var b *vk.Buffer
	var in *vk.Instance
	if err := errors.Join(c.Close(), b.Close(), in.Close(), (&vk.Instance{}).Close()); err != nil || !b.Whole().IsZero() {
		t.Error(err, b.Whole())
	}
}

// Objects left open when their device closes can still be closed, but no longer used.
func TestClosedAfterTheDevice(t *testing.T) {
	in, err := vk.NewInstance(vk.InstanceOptions{}) // the validation layer would name what was left open
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
	b, err := d.NewBuffer(vk.BufferSpec{Label: "left", Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	k, r := copyKernel(t, d), [2]*vk.Recorder{}
	for i := range r {
		if r[i], err = d.NewRecorder(); err == nil {
			err = r[i].Dispatch(addStep(k, b.View(0, 1<<10), b.View(1<<19, 1<<10), 1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := r[0].End()
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Submit()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err == nil {
		t.Error("Close does not report the buffer that was left open")
	}
	if err := p.Wait(context.Background()); err != nil {
		t.Errorf("wait: %v", err) // the device was idle when it was closed
	}
	_, submit := c.Submit()
	_, times := c.Timestamps()
	_, end := r[1].End()
	for i, err := range []error{submit, times, end, d.Upload(context.Background(), b.View(0, 4), make([]byte, 4))} {
		if !errors.Is(err, vk.ErrClosed) {
			t.Errorf("call %d: %v, want ErrClosed", i, err)
		}
	}
	r[1].Close()
	if err := errors.Join(c.Close(), b.Close(), in.Close(), in.Close()); err != nil || len(d.MemoryInUse()) != 0 {
		t.Errorf("%v, %v in use", err, d.MemoryInUse())
	}
	if _, err := a.Open(vk.DeviceOptions{}); !errors.Is(err, vk.ErrClosed) {
		t.Errorf("open an adapter of a closed instance: %v, want ErrClosed", err)
	}
}
