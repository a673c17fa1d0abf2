package vk_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/vkmla/vkmla/vk"
)

// A finished submission stays finished: Wait returns at once, even while the commands run
// again and after they are closed.
func TestWaitForEarlierSubmission(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	b := buffer(t, d, 64<<20, vk.DeviceLocal)
	c := record(t, d, func(r *vk.Recorder) (err error) {
		for i := range uint32(8) { // long enough to be running when the first submission is waited for
			err = errors.Join(err, r.Fill(b.Whole(), i))
		}
		return err
	})
	first, err := c.Submit()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	second, err := c.Submit()
	if err != nil {
		t.Fatal(err)
	}
	ended, stop := context.WithCancel(ctx)
	stop()
	if err := first.Wait(ended); err != nil {
		t.Errorf("first submission, while the second runs: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for i, p := range []*vk.Pending{first, second} {
		if err := p.Wait(ended); err != nil {
			t.Errorf("submission %d of closed commands: %v", i, err)
		}
	}
}

// Several goroutines may wait for submissions while the commands are submitted again and
// closed.
func TestWaitBesideSubmitAndClose(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	b := buffer(t, d, 4<<20, vk.DeviceLocal)
	c := record(t, d, func(r *vk.Recorder) error { return r.Fill(b.Whole(), 1) })
	var waiting sync.WaitGroup
	defer waiting.Wait()
	for range 20 {
		p, err := c.Submit()
		for errors.Is(err, vk.ErrBusy) {
			p, err = c.Submit()
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			waiting.Go(func() {
				if err := p.Wait(ctx); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}
