package vk_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/vkmla/vkmla/vk"
)

// What was left open can be closed after its device, and used no more.
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
		t.Error("a buffer was left open, and Close says nothing")
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
