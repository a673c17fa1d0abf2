package vk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

// both runs a test where the host maps the device's memory, if it can, and where it does not.
func both(t *testing.T, test func(t *testing.T, d *vk.Device)) {
	for name, o := range map[string]vk.DeviceOptions{"as it is": {}, "staging": {Staging: true}} {
		t.Run(name, func(t *testing.T) { test(t, open(t, o)) })
	}
}

func TestTransferRoundTrip(t *testing.T) { both(t, transferRoundTrip) }

func transferRoundTrip(t *testing.T, d *vk.Device) {
	ctx := context.Background()
	for _, size := range []int{4, 12, 1000, 8<<20 + 36} { // below, at and past the staging size
		want := make([]byte, size)
		rng := rand.NewChaCha8([32]byte{byte(size)})
		rng.Read(want)
		b := buffer(t, d, uint64(size)+8, vk.DeviceLocal)
		require.NoError(t, d.Upload(ctx, b.View(4, uint64(size)), want))
		got := make([]byte, size)
		require.NoError(t, d.Download(ctx, got, b.View(4, uint64(size))))
		assert.True(t, bytes.Equal(got, want), "%d bytes came back changed", size)
	}
}

// TestStream takes bytes in pieces of whole units, and has them in order whatever comes first.
func TestStream(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{Staging: true}), context.Background()
	const unit, size = 1000, 9<<20 + 123
	want := make([]byte, (size+3)/4*4)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(want)
	b := buffer(t, d, uint64(len(want)), vk.DeviceLocal)
	var ends atomic.Int32
	err := d.Stream(ctx, size, unit, bytes.NewReader(want[:size]), func(r *vk.Recorder, at uint64, from vk.View) error {
		assert.Zero(t, at%unit)
		if from.Size%unit != 0 {
			ends.Add(1)
			assert.EqualValues(t, size, at+from.Size)
		}
		return r.Copy(b.View(at, (from.Size+3)/4*4), from.Buffer.View(from.Offset, (from.Size+3)/4*4))
	})
	require.NoError(t, err)
	assert.EqualValues(t, 1, ends.Load())
	got := make([]byte, len(want))
	require.NoError(t, d.Download(ctx, got, b.Whole()))
	assert.True(t, bytes.Equal(want[:size], got[:size]))

	failed := errors.New("not today")
	record := func(*vk.Recorder, uint64, vk.View) error { return failed }
	src := bytes.NewReader(want)
	assert.ErrorIs(t, d.Stream(ctx, size, unit, src, record), failed)
	assert.ErrorIs(t, d.Stream(ctx, size+8, unit, src, func(*vk.Recorder, uint64, vk.View) error { return nil }), io.EOF)
	ended, stop := context.WithCancel(ctx)
	stop()
	assert.ErrorIs(t, d.Stream(ended, size, unit, src, record), context.Canceled)
	for _, err := range []error{
		d.Stream(ctx, size, 0, src, record), d.Stream(ctx, size, 1<<30, src, record), d.Stream(ctx, size, unit, nil, record),
		d.Stream(ctx, size, unit, src, nil),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument)
	}
}

// Upload and Download come after everything submitted before them, in mapped memory too.
func TestTransfersWait(t *testing.T) { both(t, transfersWait) }

func transfersWait(t *testing.T, d *vk.Device) {
	ctx := context.Background()
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
			require.NoError(t, d.Upload(ctx, last(b), []byte{0, 0, 0, 0}))
			_, err := c.Submit()
			require.NoError(t, err)
			var got [2][4]byte
			err = errors.Join(d.Download(ctx, got[0][:], last(b)), d.Upload(ctx, last(b), []byte{9, 9, 9, 9}), d.Download(ctx, got[1][:], last(b)))
			assert.NoError(t, err, "%s memory, of which the device wrote 7", name)
			assert.Equal(t, [2][4]byte{{7}, {9, 9, 9, 9}}, got, "%s memory, of which the device wrote 7", name)
			p, err := c.Submit()
			require.NoError(t, err)
			err = errors.Join(d.Upload(ctx, last(b), []byte{8, 8, 8, 8}), p.Wait(ctx), d.Download(ctx, got[0][:], last(out)))
			require.NoError(t, err, "%s memory, of which the device copied 7", name)
			assert.Equal(t, [4]byte{7}, got[0], "%s memory, of which the device copied 7", name)
		}
		for _, err := range []error{d.Upload(ended, last(b), make([]byte, 4)), d.Download(ended, make([]byte, 4), last(b))} {
			assert.ErrorIs(t, err, context.Canceled, "%s memory, under an ended context", name)
		}
	}
}

// Goroutines that need staging buffers at the same time make three, those after each other one.
func TestStagingBuffers(t *testing.T) {
	var made atomic.Int32
	d := open(t, vk.DeviceOptions{Staging: true, MemoryHook: func(size uint64) error {
		if size == 128<<20 {
			made.Add(1)
			time.Sleep(10 * time.Millisecond) // room for others; the test passes without it
		}
		return nil
	}})
	b := buffer(t, d, 64, vk.DeviceLocal)
	for range 3 {
		require.NoError(t, d.Upload(context.Background(), b.Whole(), make([]byte, 64)))
	}
	require.Equal(t, int32(1), made.Load(), "staging buffers, one after the other")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			assert.NoError(t, d.Upload(context.Background(), b.Whole(), make([]byte, 64)))
		})
	}
	all.Wait()
	assert.LessOrEqual(t, made.Load(), int32(3), "staging buffers")
}
