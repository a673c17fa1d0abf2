package vk_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	require.NoError(t, err)
	require.NoError(t, first.Wait(ctx))
	second, err := c.Submit()
	require.NoError(t, err)
	ended, stop := context.WithCancel(ctx)
	stop()
	assert.NoError(t, first.Wait(ended), "first submission, while the second runs")
	require.NoError(t, c.Close())
	for i, p := range []*vk.Pending{first, second} {
		assert.NoError(t, p.Wait(ended), "submission %d of closed commands", i)
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
		require.NoError(t, err)
		for range 3 {
			waiting.Go(func() {
				assert.NoError(t, p.Wait(ctx))
			})
		}
	}
	require.NoError(t, c.Close())
}

// A submission that ends without a part of it having been handed over ends after those before it.
func TestCancelledBehindOthers(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	defer d.Close()
	b := buffer(t, d, 32<<20, vk.DeviceLocal)
	defer b.Close()
	record := func(fills int, parts bool) *vk.Commands {
		r, err := d.NewRecorder()
		require.NoError(t, err)
		if parts {
			require.NoError(t, r.Split(vk.Split{Each: true}))
		}
		for i := range fills {
			require.NoError(t, r.Fill(b.Whole(), uint32(i)))
		}
		c, err := r.End()
		require.NoError(t, err)
		return c
	}
	long, parts := record(60, false), record(3, true)
	_, err := long.Submit()
	require.NoError(t, err)
	p, err := vk.SubmitCancelled(parts)
	require.NoError(t, err)
	assert.ErrorIs(t, p.Wait(t.Context()), vk.ErrCancelled)
	again, err := long.Submit()
	require.NoError(t, err, "the commands before it have not finished")
	require.NoError(t, again.Wait(t.Context()))
	require.NoError(t, long.Close())
	require.NoError(t, parts.Close())
}
