//go:build linux

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

// TestShareFails lets each call fail once, in each place, of a life that shares memory and waits
// for semaphores: nothing is left, no file either, and the next life is a good one.
func TestShareFails(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	if missing := d.Caps().Missing([]string{"exportMemory", "importMemory", "importHostMemory"}); missing != nil {
		t.Skipf("%s has no %v", d.Adapter().Name, missing)
	}
	mine, err := syscall.Mmap(-1, 0, 2*int(share.HostAlignment(d)),
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	defer func() { assert.NoError(t, syscall.Munmap(mine)) }()
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	require.NoError(t, shared(d, mine)) // makes what the device keeps
	open, live := files(), interposer.Live()
	polls := []string{"vkWaitForFences", "vkGetFenceStatus", "vkGetSemaphoreCounterValue"}
	for call, name := range faults.Calls {
		before := interposer.Seen(call)
		require.NoError(t, shared(d, mine), name)
		for at := range min(interposer.Seen(call)-before, 8) {
			interposer.Fail(call, at, faults.OutOfHostMemory, false)
			err := shared(d, mine)
			// A poll that fails for want of memory says nothing, and may come less often next time.
			if _, hit := interposer.Hit(); err != nil || hit && !slices.Contains(polls, name) {
				assert.ErrorIs(t, err, vk.ErrOutOfHostMemory, "%s, call %d", name, at)
			}
			interposer.Mend()
			require.NoError(t, shared(d, mine), "after %s, call %d", name, at)
			assert.Equal(t, open, files(), "%s, call %d: files", name, at)
			got := interposer.Live()
			delete(got, "fence") // kept by the device
			want := map[string]int{}
			for k, n := range live {
				if k != "fence" {
					want[k] = n
				}
			}
			assert.Equal(t, want, got, "%s, call %d: objects", name, at)
		}
	}
}

// shared exports memory and imports it, takes some of the program's, and copies from one to the
// other once a semaphore has a value.
func shared(d *vk.Device, mine []byte) (err error) {
	own, err := d.NewBuffer(vk.BufferSpec{Label: "own", Size: 100, Memory: vk.Upload, Export: true})
	if err != nil {
		return err
	}
	defer own.Close()
	copy(own.Mapped(), "shared")
	x, err := share.Export(own)
	if err != nil {
		return err
	}
	theirs, err := share.Import(d, "theirs", vk.Readback, x)
	if err != nil {
		return errors.Join(err, x.Close())
	}
	defer theirs.Close()
	host, err := share.ImportHost(d, "host", mine, 100)
	if err != nil {
		return err
	}
	defer host.Close()
	s, err := d.NewSemaphore(false)
	if err != nil {
		return err
	}
	defer s.Close()
	r, err := d.NewRecorder()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Copy(host.Whole(), theirs.Whole()); err != nil {
		return err
	}
	c, err := r.End()
	if err != nil {
		return err
	}
	defer c.Close()
	clear(mine)
	p, err := c.Submit(vk.Sync{Wait: []vk.At{{Semaphore: s, Value: 1}}, Signal: []vk.At{{Semaphore: s, Value: 2}}})
	if err != nil {
		return err
	}
	if err := s.Signal(1); err != nil {
		c.Cancel()
		return err
	}
	if err := p.Wait(context.Background()); err != nil {
		return err
	}
	if err := s.Wait(context.Background(), 2); err != nil {
		return err
	}
	if !slices.Equal(mine[:6], []byte("shared")) {
		return fmt.Errorf("got %q", mine[:6])
	}
	return nil
}

// TestStepUnsignalled has a step wait for a signal that never comes: it ends with an error that
// says so, the device and the session are as before, and the session goes on with the same bits.
func TestStepUnsignalled(t *testing.T) { each(t, stepUnsignalled) }

func stepUnsignalled(t *testing.T, fake *fake) {
	d, ctx := open(t, vk.DeviceOptions{HangAfter: 5 * time.Second}), context.Background() // a step takes less
	l := begun(t, fake, d)
	for _, never := range []bool{false, true} {
		s := l.open()
		l.append(s, 3, 0)
		if never {
			from, err := d.NewSemaphore(false)
			require.NoError(t, err)
			to, err := d.NewSemaphore(false)
			require.NoError(t, err)
			st := l.begin(ctx, s, 2, 1)
			require.NoError(t, st.Submit(vk.Sync{Wait: []vk.At{{Semaphore: from, Value: 1}}, Signal: []vk.At{{Semaphore: to, Value: 1}}}))
			err = st.Wait(ctx)
			assert.ErrorIs(t, err, vk.ErrUnsignalled)
			assert.NotErrorIs(t, err, vk.ErrDeviceLost)
			assert.ErrorIs(t, st.Commit(), vk.ErrClosed)
			value, err := to.Value()
			require.NoError(t, errors.Join(err, d.Err(), from.Close(), to.Close()))
			assert.Zero(t, value)
			assert.Equal(t, 3, s.Len())
		}
		l.append(s, 4, 0)
		require.NoError(t, s.Close())
	}
	n := len(l.out) / 2
	want := l.out[:n]
	l.out = l.out[n:]
	l.same(want)
	l.end()
}
