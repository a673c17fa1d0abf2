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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/vk"
)

// TestShareFails lets each call fail once, in each place, of a life that shares memory and waits
// for semaphores: nothing is left behind, no file either, and the next life is a good one.
func TestShareFails(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	if missing := d.Caps().Missing([]string{"exportMemory", "importMemory", "importHostMemory"}); missing != nil {
		t.Skipf("%s has no %v", d.Adapter().Name, missing)
	}
	mine, err := syscall.Mmap(-1, 0, 2*int(d.HostAlignment()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	defer func() { assert.NoError(t, syscall.Munmap(mine)) }()
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	require.NoError(t, share(d, mine)) // makes what the device keeps
	open, live := files(), interposer.Live()
	for call, name := range faults.Calls {
		before := interposer.Seen(call)
		require.NoError(t, share(d, mine), name)
		for at := range min(interposer.Seen(call)-before, 8) {
			interposer.Fail(call, at, faults.OutOfHostMemory, false)
			err := share(d, mine)
			// A poll may come less often the next time, and one of a fence that fails says nothing.
			if _, hit := interposer.Hit(); hit && name != "vkWaitForFences" && name != "vkGetFenceStatus" {
				assert.ErrorIs(t, err, vk.ErrOutOfHostMemory, "%s, call %d", name, at)
			}
			interposer.Mend()
			require.NoError(t, share(d, mine), "after %s, call %d", name, at)
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

// share exports memory and imports it, takes some of the program's, and copies from one to the
// other once a semaphore has a value.
func share(d *vk.Device, mine []byte) (err error) {
	own, err := d.NewBuffer(vk.BufferSpec{Label: "own", Size: 100, Memory: vk.Upload, Export: true})
	if err != nil {
		return err
	}
	defer own.Close()
	copy(own.Mapped(), "shared")
	x, err := own.Export()
	if err != nil {
		return err
	}
	theirs, err := d.ImportBuffer("theirs", vk.Readback, x)
	if err != nil {
		return errors.Join(err, x.Handle.Close())
	}
	defer theirs.Close()
	host, err := d.ImportHost("host", mine, 100)
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
