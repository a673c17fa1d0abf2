package vk_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vkmla/vkmla/vk"
)

func TestTransferRoundTrip(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	for _, size := range []int{4, 12, 1000, 8<<20 + 36} { // below, at and past the staging size
		want := make([]byte, size)
		rng := rand.NewChaCha8([32]byte{byte(size)})
		rng.Read(want)
		b := buffer(t, d, uint64(size)+8, vk.DeviceLocal)
		if err := d.Upload(ctx, b.View(4, uint64(size)), want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, size)
		if err := d.Download(ctx, got, b.View(4, uint64(size))); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes came back changed", size)
		}
	}
}

// Upload and Download come after everything submitted before them, in mapped memory too.
func TestTransfersWait(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	const size = 32 << 20
	last := func(b *vk.Buffer) vk.View { return b.View(size-4, 4) }
	ended, stop := context.WithCancel(ctx)
	stop()
	for name, m := range map[string]vk.Memory{"device": vk.DeviceLocal, "upload": vk.Upload, "readback": vk.Readback} {
		b, out := buffer(t, d, size, m), buffer(t, d, size, vk.DeviceLocal)
		c := record(t, d, func(r *vk.Recorder) error {
			return errors.Join(r.Fill(b.Whole(), 1), r.Fill(b.Whole(), 2), r.Fill(b.Whole(), 7), r.Copy(out.Whole(), b.Whole()))
		})
		for range 2 {
			if err := d.Upload(ctx, last(b), []byte{0, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Submit(); err != nil {
				t.Fatal(err)
			}
			var got [2][4]byte
			err := errors.Join(d.Download(ctx, got[0][:], last(b)), d.Upload(ctx, last(b), []byte{9, 9, 9, 9}), d.Download(ctx, got[1][:], last(b)))
			if want := [2][4]byte{{7}, {9, 9, 9, 9}}; err != nil || got != want {
				t.Errorf("%s memory, of which the device wrote 7: %v, %v", name, got, err)
			}
			p, err := c.Submit()
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(d.Upload(ctx, last(b), []byte{8, 8, 8, 8}), p.Wait(ctx), d.Download(ctx, got[0][:], last(out)))
			if want := [4]byte{7}; err != nil || got[0] != want {
				t.Errorf("%s memory, of which the device copied 7: %v, %v", name, got[0], err)
			}
		}
		for _, err := range []error{d.Upload(ended, last(b), make([]byte, 4)), d.Download(ended, make([]byte, 4), last(b))} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s memory, under an ended context: %v", name, err)
			}
		}
	}
}

// Goroutines that need the staging buffer at the same time make one.
func TestOneStagingBuffer(t *testing.T) {
	var made atomic.Int32
	d := open(t, vk.DeviceOptions{MemoryHook: func(size uint64) error {
		if size == 8<<20 {
			made.Add(1)
			time.Sleep(10 * time.Millisecond) // room for a second one; the test passes without it
		}
		return nil
	}})
	b := buffer(t, d, 64, vk.DeviceLocal)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := d.Upload(context.Background(), b.Whole(), make([]byte, 64)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("%d staging buffers", n)
	}
}
