package vk_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

func semaphore(t *testing.T, d *vk.Device) *vk.Semaphore {
	t.Helper()
	s, err := d.NewSemaphore(false)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func value(t *testing.T, s *vk.Semaphore) uint64 {
	t.Helper()
	v, err := s.Value()
	require.NoError(t, err)
	return v
}

// fills are commands that write a word each to a buffer, in as many parts.
func fills(t *testing.T, d *vk.Device, b *vk.Buffer, first uint32, n int) *vk.Commands {
	return record(t, d, func(r *vk.Recorder) error {
		if n > 1 {
			if err := r.Split(vk.Split{Each: true}); err != nil {
				return err
			}
		}
		for i := range n {
			if err := r.Fill(b.Whole(), first+uint32(i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Commands begin when a semaphore has its value, and give others theirs when they are done, in one
// part or several; what is submitted after them runs after them.
func TestSemaphoreOrder(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	for _, parts := range []int{1, 5} {
		b := buffer(t, d, 64, vk.Readback)
		clear(b.Mapped())
		from, to := semaphore(t, d), semaphore(t, d)
		first, behind := fills(t, d, b, 10, parts), fills(t, d, b, 100, 1)
		p, err := first.Submit(vk.Sync{Wait: []vk.At{{from, 3}}, Signal: []vk.At{{to, 7}}})
		require.NoError(t, err)
		last, err := behind.Submit(vk.Sync{Signal: []vk.At{{to, 8}, {from, 9}}})
		require.NoError(t, err)
		require.NoError(t, from.Signal(2))
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		assert.ErrorIs(t, p.Wait(short), context.DeadlineExceeded)
		assert.ErrorIs(t, to.Wait(short, 1), context.DeadlineExceeded)
		cancel()
		assert.Zero(t, value(t, to))
		assert.Zero(t, b.Mapped()[0], "written before the value came")
		require.NoError(t, from.Signal(5), "more than was waited for")
		require.NoError(t, to.Wait(ctx, 7))
		require.NoError(t, errors.Join(p.Wait(ctx), last.Wait(ctx)))
		assert.EqualValues(t, 100, b.Mapped()[0])
		require.NoError(t, errors.Join(to.Wait(ctx, 8), from.Wait(ctx, 9)))
	}
}

// TestHangsAfter holds that a processor, which may have other work, has more time than a GPU.
func TestHangsAfter(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	want := 2 * time.Minute
	if d.Adapter().Type == vk.TypeCPU {
		want = 20 * time.Minute
	}
	assert.Equal(t, want, vk.HangsAfter(d))
	assert.Equal(t, time.Second, vk.HangsAfter(open(t, vk.DeviceOptions{HangAfter: time.Second})))
	assert.Greater(t, vk.HangsAfter(open(t, vk.DeviceOptions{HangAfter: -1})), 1000*time.Hour)
}

// A value that never comes ends in an error, by time, by Cancel, or because the device is closed:
// nothing was executed or signalled, and the same commands run again.
func TestSemaphoreNever(t *testing.T) {
	const limit = 400 * time.Millisecond
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	b := buffer(t, d, 64, vk.Readback)
	for _, parts := range []int{1, 3} {
		const nothing = 0xEE // was written
		b.Mapped()[0] = nothing
		never, done := semaphore(t, d), semaphore(t, d)
		c := fills(t, d, b, 10, parts)
		on := vk.Sync{Wait: []vk.At{{never, 1}}, Signal: []vk.At{{done, 1}}}
		vk.HangAfter(d, limit)
		p, err := c.Submit(on)
		require.NoError(t, err)
		err = p.Wait(ctx)
		vk.HangAfter(d, 0) // what follows takes as long as it does
		assert.ErrorIs(t, err, vk.ErrUnsignalled)
		assert.ErrorContains(t, err, "it has 0 after 400ms, want 1")
		assert.NotErrorIs(t, err, vk.ErrDeviceLost)
		p, err = c.Submit(on)
		require.NoError(t, err)
		assert.True(t, c.Cancel())
		assert.ErrorIs(t, p.Wait(ctx), vk.ErrCancelled)
		assert.Zero(t, value(t, done))
		assert.EqualValues(t, nothing, b.Mapped()[0])
		require.NoError(t, never.Signal(1))
		p, err = c.Submit(on)
		require.NoError(t, err, "the value of Signal is free again")
		require.NoError(t, p.Wait(ctx))
		require.NoError(t, done.Wait(ctx, 1), "drivers may be late with the value")
		assert.Equal(t, byte(9+parts), b.Mapped()[0])
	}
	require.NoError(t, d.Err())
}

// Nothing is executed after what the device did not get whole, in the queue or after it has ended,
// by way of others, in one part or several; what does not wait for it is.
func TestBehind(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	other := open(t, vk.DeviceOptions{})
	b, free, never := buffer(t, d, 64, vk.Readback), buffer(t, d, 64, vk.Readback), semaphore(t, d)
	clear(b.Mapped())
	for _, parts := range []int{1, 3} {
		first, next, last, beside := fills(t, d, b, 1, parts), fills(t, d, b, 1, parts), fills(t, d, b, 1, parts), fills(t, d, free, 1, 1)
		clear(free.Mapped())
		p, err := first.Submit(vk.Sync{Wait: []vk.At{{never, 1}}})
		require.NoError(t, err)
		q, err := next.Submit(vk.Sync{Behind: []*vk.Pending{p}})
		require.NoError(t, err)
		r, err := last.Submit(vk.Sync{Behind: []*vk.Pending{q}})
		require.NoError(t, err)
		s, err := beside.Submit()
		require.NoError(t, err)
		require.True(t, first.Cancel())
		for _, x := range []*vk.Pending{p, q, r} {
			assert.ErrorIs(t, x.Wait(ctx), vk.ErrCancelled)
		}
		require.NoError(t, s.Wait(ctx))
		assert.EqualValues(t, 1, free.Mapped()[0])
		r, err = last.Submit(vk.Sync{Behind: []*vk.Pending{q}})
		require.NoError(t, err)
		assert.ErrorIs(t, r.Wait(ctx), vk.ErrCancelled)
		assert.Zero(t, b.Mapped()[0], "executed")
		p, err = last.Submit()
		require.NoError(t, err)
		q, err = next.Submit(vk.Sync{Behind: []*vk.Pending{p}})
		require.NoError(t, err)
		require.NoError(t, errors.Join(q.Wait(ctx), p.Wait(ctx)))
		assert.EqualValues(t, parts, b.Mapped()[0])
		clear(b.Mapped())
		_, err = next.Submit(vk.Sync{Behind: []*vk.Pending{nil}})
		argument(t, err, "Behind", "nil", "one to "+d.Adapter().Name)
		_, err = fills(t, other, buffer(t, other, 64, vk.DeviceLocal), 1, 1).Submit(vk.Sync{Behind: []*vk.Pending{p}})
		argument(t, err, "Behind", "another device", "one to "+d.Adapter().Name)
	}
}

// Device.Close does not wait for values that do not come.
func TestSemaphoreClose(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	b, err := d.NewBuffer(vk.BufferSpec{Label: "b", Size: 64})
	require.NoError(t, err)
	s, err := d.NewSemaphore(false)
	require.NoError(t, err)
	c := fills(t, d, b, 1, 1)
	p, err := c.Submit(vk.Sync{Wait: []vk.At{{s, 1}}})
	require.NoError(t, err)
	require.NoError(t, errors.Join(s.Close(), s.Close()), "while it is waited for")
	_, err = s.Value()
	assert.ErrorIs(t, err, vk.ErrClosed)
	require.NoError(t, errors.Join(c.Release(), b.Close()))
	require.NoError(t, d.Close())
	assert.ErrorIs(t, p.Wait(context.Background()), vk.ErrClosed)
}

// Device.Close ends waits of the host.
func TestSemaphoreWaitClose(t *testing.T) {
	for range 20 {
		d := open(t, vk.DeviceOptions{})
		s, err := d.NewSemaphore(false)
		require.NoError(t, err)
		waited := make(chan error)
		for range 3 {
			go func() { waited <- s.Wait(context.Background(), 1) }()
		}
		time.Sleep(time.Millisecond)
		_ = s.Close() // while it is waited for
		_ = d.Close()
		for range 3 {
			assert.ErrorIs(t, <-waited, vk.ErrClosed)
		}
	}
}

// What submissions were to signal that were all given up, the host can signal; what one is still to
// signal it cannot, nor anything beyond.
func TestSemaphoreGivenUp(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	b, never, done := buffer(t, d, 64, vk.DeviceLocal), semaphore(t, d), semaphore(t, d)
	var list []*vk.Commands
	for value := uint64(5); value <= 6; value++ {
		c := fills(t, d, b, 1, 1)
		_, err := c.Submit(vk.Sync{Wait: []vk.At{{never, 1}}, Signal: []vk.At{{done, value}}})
		require.NoError(t, err)
		list = append(list, c)
	}
	argument(t, done.Signal(5), "value", "5", "less than 5")
	require.NoError(t, done.Signal(4))
	for _, c := range list {
		require.True(t, c.Cancel())
	}
	require.NoError(t, errors.Join(list[0].Close(), list[1].Close()))
	require.NoError(t, errors.Join(done.Signal(5), done.Wait(ctx, 5)))
	c := fills(t, d, b, 1, 1)
	p, err := c.Submit(vk.Sync{Signal: []vk.At{{done, 6}}})
	require.NoError(t, err)
	require.NoError(t, errors.Join(p.Wait(ctx), done.Wait(ctx, 6), c.Close()))
}

func TestSemaphoreRefuses(t *testing.T) {
	d, other := open(t, vk.DeviceOptions{}), open(t, vk.DeviceOptions{})
	s, theirs := semaphore(t, d), semaphore(t, other)
	b := buffer(t, d, 64, vk.DeviceLocal)
	c := fills(t, d, b, 1, 1)
	require.NoError(t, s.Signal(4))
	argument(t, s.Signal(4), "value", "4", "5 to")
	argument(t, s.Signal(1<<40), "value", fmt.Sprint(1<<40), "5 to")
	for _, x := range []struct {
		on             vk.Sync
		arg, got, want string
	}{
		{vk.Sync{Signal: []vk.At{{s, 4}}}, "Signal", "4", "5 to"},
		{vk.Sync{Signal: []vk.At{{s, 5}, {s, 6}}}, "Signal", "twice", "once"},
		{vk.Sync{Wait: []vk.At{{s, 5}, {s, 6}}}, "Wait", "twice", "once"},
		{vk.Sync{Wait: []vk.At{{theirs, 1}}}, "Wait", "another device", d.Adapter().Name},
		{vk.Sync{Signal: []vk.At{{nil, 1}}}, "semaphore", "nil", "NewSemaphore"},
		{vk.Sync{Signal: make([]vk.At, 17)}, "Signal", "17", "16"},
	} {
		_, err := c.Submit(x.on)
		argument(t, err, x.arg, x.got, x.want)
	}
	wait, release := semaphore(t, d), semaphore(t, d)
	p, err := c.Submit(vk.Sync{Wait: []vk.At{{wait, 1}}, Signal: []vk.At{{s, 10}, {release, 1}}})
	require.NoError(t, err)
	argument(t, s.Signal(10), "value", "10", "less than 10")
	require.NoError(t, errors.Join(s.Signal(9), wait.Signal(1), p.Wait(context.Background())))
	require.NoError(t, s.Wait(context.Background(), 10))

	_, err = share.ExportSemaphore(s)
	argument(t, err, "semaphore", "stays", "NewSemaphore(true)")
	if missing := d.Caps().Missing([]string{"exportTimeline"}); missing != nil {
		_, err := d.NewSemaphore(true)
		var e *vk.MissingError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, missing, e.Missing)
		_, err = share.ImportSemaphore(d, share.Exported{})
		assert.ErrorAs(t, err, &e)
	}
}

// Two devices have one semaphore, where the driver has handles of them: lavapipe has none.
func TestSharedSemaphore(t *testing.T) {
	d, other := open(t, vk.DeviceOptions{}), open(t, vk.DeviceOptions{})
	offers(t, d, "exportTimeline", "importTimeline")
	ctx := context.Background()
	s, err := d.NewSemaphore(true)
	require.NoError(t, err)
	x, err := share.ExportSemaphore(s)
	require.NoError(t, err)
	wrong := x
	wrong.Driver = "00"
	_, err = share.ImportSemaphore(other, wrong)
	argument(t, err, "Driver", "00", x.Driver)
	theirs, err := share.ImportSemaphore(other, x)
	require.NoError(t, err)
	require.NoError(t, s.Signal(3))
	assert.EqualValues(t, 3, value(t, theirs))
	a, b := buffer(t, d, 64, vk.Readback), buffer(t, other, 64, vk.Readback)
	p, err := fills(t, other, b, 5, 1).Submit(vk.Sync{Wait: []vk.At{{theirs, 4}}, Signal: []vk.At{{theirs, 5}}})
	require.NoError(t, err)
	q, err := fills(t, d, a, 6, 1).Submit(vk.Sync{Signal: []vk.At{{s, 4}}})
	require.NoError(t, err)
	require.NoError(t, errors.Join(s.Wait(ctx, 5), q.Wait(ctx), p.Wait(ctx), s.Close(), theirs.Wait(ctx, 5), theirs.Close()))
}
