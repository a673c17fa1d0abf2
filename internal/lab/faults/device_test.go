//go:build linux

package faults_test

import (
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/vk"
)

// interposer is the one of this process, and folder where files of all tests go.
var (
	interposer *faults.Interposer
	folder     string
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if folder, err = os.MkdirTemp("", "faults"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(folder)
		if interposer, err = faults.New(os.Getenv("VKMLA_TEST_INTERPOSER"), folder); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// open opens a device through the interposer. Without faults it has to give everything back.
func open(t *testing.T, o vk.DeviceOptions) *vk.Device {
	interposer.Mend()
	in, err := vk.NewInstance(vk.InstanceOptions{Library: interposer.Library})
	require.NoError(t, err)
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	d, err := a.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		interposer.Mend()
		_ = d.Close()
		assert.NoError(t, in.Close())
	})
	return d
}

// commands records `fills` fills of a buffer, each in a part of its own if parts are wanted.
func commands(t *testing.T, d *vk.Device, b *vk.Buffer, fills int, parts, prove bool) *vk.Commands {
	r, err := d.NewRecorder()
	require.NoError(t, err)
	if prove {
		require.NoError(t, door.Prove(r))
	}
	if parts {
		require.NoError(t, r.Split(vk.Split{Each: true}))
	}
	for i := range fills {
		require.NoError(t, r.Fill(b.Whole(), uint32(i+1)))
	}
	c, err := r.End()
	require.NoError(t, err)
	return c
}

func buffer(t *testing.T, d *vk.Device) *vk.Buffer {
	b, err := d.NewBuffer(vk.BufferSpec{Label: "b", Size: 1 << 10, Memory: vk.Readback})
	require.NoError(t, err)
	clear(b.Mapped())
	return b
}

func word(b *vk.Buffer) int { return int(binary.LittleEndian.Uint32(b.Mapped())) }

// A device whose work does not end is found out by whoever waits, after HangAfter. Then calls fail
// at once, and closing leaves what the driver may still use.
func TestHang(t *testing.T) {
	const limit = 2 * time.Second // much longer than what the device does here may take
	for _, parts := range []bool{false, true} {
		d := open(t, vk.DeviceOptions{HangAfter: limit})
		b := buffer(t, d)
		c := commands(t, d, b, 5, parts, false)
		require.NoError(t, c.Run(context.Background()))
		require.NoError(t, d.Err())
		interposer.Hang()
		p, err := c.Submit()
		require.NoError(t, err)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		assert.ErrorIs(t, p.Wait(ended), context.Canceled)
		require.NoError(t, d.Err(), "before HangAfter")
		assert.ErrorIs(t, p.Wait(context.Background()), vk.ErrDeviceHung)
		assert.ErrorIs(t, d.Err(), vk.ErrDeviceHung)
		assert.ErrorIs(t, d.Err(), vk.ErrDeviceLost)
		_, err = d.NewBuffer(vk.BufferSpec{Label: "c", Size: 4})
		assert.ErrorIs(t, err, vk.ErrDeviceHung)
		assert.ErrorIs(t, d.Upload(context.Background(), b.View(0, 4), make([]byte, 4)), vk.ErrDeviceHung)
		assert.ErrorIs(t, c.Close(), vk.ErrDeviceHung)
		assert.NoError(t, b.Close())
		assert.ErrorIs(t, d.Close(), vk.ErrDeviceHung)
		assert.Zero(t, interposer.Orphans())
	}
}

// Only Close waits for a device that hangs.
func TestHangAtClose(t *testing.T) {
	d := open(t, vk.DeviceOptions{HangAfter: 200 * time.Millisecond})
	c := commands(t, d, buffer(t, d), 1, false, false)
	interposer.Hang()
	_, err := c.Submit()
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- d.Close() }()
	assert.ErrorIs(t, inTime(t, done), vk.ErrDeviceHung)
}

// inTime waits for a call to return, and not for ever.
func inTime(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(15 * time.Minute):
		t.Fatal("does not return")
		return nil
	}
}

// A context bounds waits that transfers make, and what they used is freed when the device is done.
func TestTransferContext(t *testing.T) {
	d := open(t, vk.DeviceOptions{Staging: true}) // which submits to transfer
	b, err := d.NewBuffer(vk.BufferSpec{Label: "b", Size: 1 << 10})
	require.NoError(t, err)
	require.NoError(t, d.Upload(context.Background(), b.Whole(), make([]byte, 1<<10)))
	interposer.Hang()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, d.Upload(ctx, b.Whole(), make([]byte, 1<<10)), context.DeadlineExceeded)
	interposer.Mend()
	data := make([]byte, 1<<10)
	require.NoError(t, d.Download(context.Background(), data, b.Whole()))
	require.NoError(t, b.Close())
	require.NoError(t, d.Close())
	assert.Empty(t, d.MemoryInUse())
	assert.Zero(t, interposer.Orphans())
}

// Mapped memory is not touched before the device has finished, or the context ends.
func TestMappedTransferContext(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	if d.HostAccess() != vk.MappedFully {
		t.Skip("the device's memory is reached by copies")
	}
	b, err := d.NewBuffer(vk.BufferSpec{Label: "b", Size: 1 << 10})
	require.NoError(t, err)
	for _, parts := range []bool{false, true} {
		c := commands(t, d, b, 3, parts, false)
		interposer.Hang()
		_, err = c.Submit()
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		assert.ErrorIs(t, d.Upload(ctx, b.Whole(), make([]byte, 1<<10)), context.DeadlineExceeded)
		assert.ErrorIs(t, d.Download(ctx, make([]byte, 1<<10), b.Whole()), context.DeadlineExceeded)
		cancel()
		interposer.Mend()
		var got [4]byte
		require.NoError(t, d.Download(context.Background(), got[:], b.View(0, 4)))
		assert.Equal(t, byte(3), got[0], "before the commands ended")
		require.NoError(t, d.Upload(context.Background(), b.Whole(), make([]byte, 1<<10)))
		require.NoError(t, c.Close())
	}
	require.NoError(t, b.Close())
	assert.Empty(t, d.MemoryInUse()["staging"])
}

// Work whose fence is signalled though the device did not do it is a lost device.
func TestProof(t *testing.T) {
	for _, parts := range []bool{false, true} {
		for _, prove := range []bool{true, false} {
			d := open(t, vk.DeviceOptions{})
			b := buffer(t, d)
			c := commands(t, d, b, 3, parts, prove)
			for range 3 {
				clear(b.Mapped())
				require.NoError(t, c.Run(context.Background()))
				require.Equal(t, 3, word(b))
			}
			clear(b.Mapped())
			interposer.Drop()
			err := c.Run(context.Background())
			assert.Zero(t, word(b), "the work was done: nothing was tested")
			if !prove {
				assert.NoError(t, err, "unproved")
				require.NoError(t, c.Close())
				continue
			}
			assert.ErrorIs(t, err, vk.ErrDeviceLost)
			assert.ErrorIs(t, d.Err(), vk.ErrDeviceLost)
			assert.NotErrorIs(t, d.Err(), vk.ErrDeviceHung)
			_ = c.Close()
		}
	}
}

// Cancelling withholds what the device does not have; the commands can be submitted again.
func TestCancel(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	b := buffer(t, d)
	const fills = 50
	c := commands(t, d, b, fills, true, true)
	assert.False(t, c.Cancel(), "nothing was submitted")
	interposer.Hang()
	p, err := c.Submit()
	require.NoError(t, err)
	next := commands(t, d, b, 1, false, false)
	behind, err := next.Submit()
	require.NoError(t, err)
	_, err = c.Submit()
	assert.ErrorIs(t, err, vk.ErrBusy)
	assert.True(t, c.Cancel())
	interposer.Mend()
	assert.ErrorIs(t, p.Wait(context.Background()), vk.ErrCancelled)
	assert.LessOrEqual(t, word(b), 2, "the device had two parts at most")
	require.NoError(t, behind.Wait(context.Background()), "what was submitted behind it")
	assert.Equal(t, 1, word(b))
	require.NoError(t, c.Run(context.Background()))
	assert.Equal(t, fills, word(b))
	assert.False(t, c.Cancel(), "all parts are done")
	require.NoError(t, c.Close())
	require.NoError(t, next.Close())
	assert.Zero(t, interposer.Orphans())
}
