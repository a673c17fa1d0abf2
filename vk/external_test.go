package vk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

// offers skips a test of what the device does not offer.
func offers(t *testing.T, d *vk.Device, features ...string) {
	t.Helper()
	if missing := d.Caps().Missing(features); missing != nil {
		t.Skipf("%s (%s) has no %v", d.Adapter().Name, d.Adapter().DriverInfo, missing)
	}
}

func argument(t *testing.T, err error, arg, got, want string) {
	t.Helper()
	var e *vk.ArgumentError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, arg, e.Arg)
	assert.Contains(t, e.Got, got)
	assert.Contains(t, e.Want, want)
}

// export is a handle that the test closes unless something took it.
func export(t *testing.T, b *vk.Buffer) share.Exported {
	t.Helper()
	x, err := share.Export(b)
	require.NoError(t, err)
	return x
}

// Two devices have one memory: each sees what kernels of the other wrote. It outlives the one that
// it came from.
func TestSharedMemory(t *testing.T) {
	ctx := context.Background()
	for _, m := range []vk.Memory{vk.DeviceLocal, vk.Upload, vk.Readback} {
		for _, size := range []uint64{16, 4<<10 + 48, 1<<20 + 7} {
			d, other := open(t, vk.DeviceOptions{}), open(t, vk.DeviceOptions{Staging: true})
			offers(t, d, "exportMemory", "importMemory")
			own, err := d.NewBuffer(vk.BufferSpec{Label: "own", Size: size, Memory: m, Export: true})
			require.NoError(t, err)
			x := export(t, own)
			assert.Equal(t, size, x.Size)
			assert.GreaterOrEqual(t, x.Allocated, size)
			theirs, err := share.Import(other, "theirs", m, x)
			require.NoError(t, err)
			assert.Equal(t, map[string]uint64{"dummy": 256, "theirs": size}, other.MemoryInUse())
			assert.Equal(t, m != vk.DeviceLocal, theirs.Mapped() != nil)

			n := size &^ 15 // what the kernel takes
			in := buffer(t, d, n, vk.Upload)
			copy(in.Mapped(), words(int(n/4), func(i int) uint32 { return uint32(i) * 2654435761 }))
			require.NoError(t, record(t, d, func(r *vk.Recorder) error {
				return r.Dispatch(addStep(copyKernel(t, d), own.View(0, n), in.Whole(), 3))
			}).Run(ctx))
			got := make([]byte, n)
			require.NoError(t, other.Download(ctx, got, theirs.View(0, n)))
			want := words(int(n/4), func(i int) uint32 { return uint32(i)*2654435761 + 3 })
			assert.Equal(t, want, got)

			require.NoError(t, own.Close())
			back := buffer(t, other, n, vk.DeviceLocal)
			require.NoError(t, record(t, other, func(r *vk.Recorder) error {
				return r.Dispatch(addStep(copyKernel(t, other), back.Whole(), theirs.View(0, n), 1))
			}).Run(ctx))
			require.NoError(t, other.Download(ctx, got, back.Whole()))
			assert.Equal(t, words(int(n/4), func(i int) uint32 { return uint32(i)*2654435761 + 4 }), got)
			require.NoError(t, theirs.Close())
		}
	}
}

// What does not fit is refused with what was got and wanted, and the handle stays the caller's.
func TestImportRefuses(t *testing.T) {
	d, other := open(t, vk.DeviceOptions{}), open(t, vk.DeviceOptions{})
	offers(t, d, "exportMemory", "importMemory")
	plain := buffer(t, d, 64, vk.DeviceLocal)
	_, err := share.Export(plain)
	argument(t, err, "BufferSpec.Export", "false", "true")
	own, err := d.NewBuffer(vk.BufferSpec{Label: "own", Size: 5 << 10, Export: true})
	require.NoError(t, err)
	x := export(t, own)
	wrong := strings.Repeat("0f", 16)
	for _, c := range []struct {
		change         func(*share.Exported)
		arg, got, want string
	}{
		{func(x *share.Exported) { x.Device = wrong }, "Device", wrong, d.Adapter().UUID},
		{func(x *share.Exported) { x.Driver = wrong }, "Driver", wrong, x.Driver},
		{func(x *share.Exported) { x.Size = 0 }, "Size", "0", "at least 1"},
		{func(x *share.Exported) { x.Allocated = x.Size - 1 }, "Allocated", fmt.Sprint(5<<10 - 1), fmt.Sprint(5 << 10)},
		{func(x *share.Exported) { x.MemoryType = 32 }, "MemoryType", "32", "0 to "},
		{func(x *share.Exported) { x.Handle = ^uintptr(0) }, "Handle", "-1", "open file descriptor"},
	} {
		y := x
		c.change(&y)
		b, err := share.Import(other, "theirs", vk.DeviceLocal, y)
		assert.Nil(t, b)
		argument(t, err, c.arg, c.got, c.want)
	}
	_, err = share.Import(other, "theirs", vk.Memory(7), x)
	argument(t, err, "memory", "7", "DeviceLocal")
	if d.Adapter().Type == vk.TypeCPU { // lavapipe's handles are files
		y := x
		y.Allocated = x.Allocated + 1<<20
		_, err = share.Import(other, "theirs", vk.DeviceLocal, y)
		argument(t, err, "Handle", "bytes", fmt.Sprint(y.Allocated))
	}
	assert.Equal(t, map[string]uint64{"dummy": 256}, other.MemoryInUse())
	assert.NoError(t, x.Close(), "it was still the caller's")
	require.NoError(t, own.Close())
	_, err = share.Export(own)
	assert.ErrorIs(t, err, vk.ErrClosed)
}

// A handle of something else is refused by the driver, which tells the validation layer, too. Files
// stay as many as they were: Mesa closes what it refuses, which must not be the caller's.
func TestImportNoMemory(t *testing.T) {
	in, err := vk.NewInstance(vk.InstanceOptions{})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	d, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	defer d.Close()
	offers(t, d, "exportMemory", "importMemory")
	own, err := d.NewBuffer(vk.BufferSpec{Label: "own", Size: 64, Export: true})
	require.NoError(t, err)
	defer own.Close()
	x := export(t, own)
	require.NoError(t, x.Close())
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	x.Handle = uintptr(null.Fd())
	before := files(t)
	for range 3 {
		_, err = share.Import(d, "theirs", vk.DeviceLocal, x)
		require.Error(t, err)
		if a.DriverName == "llvmpipe" { // NVIDIA's driver says that it is out of memory, SwiftShader's less
			argument(t, err, "handle or memory", "refuses", a.Name)
		}
	}
	assert.Equal(t, before, files(t))
	assert.NoError(t, null.Close(), "it was still the caller's")
	assert.Equal(t, map[string]uint64{"dummy": 256, "own": 64}, d.MemoryInUse())
}

// files is the number of open files, 0 where that is unknown.
func files(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Logf("files are not counted: %v", err)
	}
	return len(list)
}

// pages is memory of Go's that begins with a page.
func pages(n, align int) []byte {
	all := make([]byte, n+align)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(all)))) & (align - 1)
	return all[skip : skip+n : skip+n]
}

// Kernels read and write memory that the program has, where it is.
func TestProgramMemory(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	offers(t, d, "importHostMemory")
	align := int(share.HostAlignment(d))
	for _, size := range []int{16, align - 16, align, 3*align + 80, 1<<20 + 7} {
		n := size &^ 15
		room := (size + align - 1) / align * align
		from, to := pages(room, align), pages(room, align)
		copy(from, words(n/4, func(i int) uint32 { return uint32(i) * 40503 }))
		for i := range to {
			to[i] = 0xA5
		}
		in, err := share.ImportHost(d, "in", from, uint64(size))
		require.NoError(t, err)
		out, err := share.ImportHost(d, "out", to, uint64(size))
		require.NoError(t, err)
		assert.Len(t, in.Mapped(), size)
		c := record(t, d, func(r *vk.Recorder) error {
			return r.Dispatch(addStep(copyKernel(t, d), out.View(0, uint64(n)), in.View(0, uint64(n)), 9))
		})
		require.NoError(t, c.Run(ctx))
		assert.Equal(t, words(n/4, func(i int) uint32 { return uint32(i)*40503 + 9 }), to[:n])
		for i, b := range to[n:] {
			require.Equal(t, byte(0xA5), b, "byte %d", n+i)
		}
		got := make([]byte, n)
		require.NoError(t, d.Upload(ctx, in.View(0, uint64(n)), to[:n]))
		require.NoError(t, d.Download(ctx, got, in.View(0, uint64(n))))
		assert.Equal(t, to[:n], from[:n])
		assert.Equal(t, to[:n], got)
		require.NoError(t, errors.Join(c.Close(), in.Close(), out.Close()))
	}
	assert.Equal(t, map[string]uint64{"dummy": 256}, d.MemoryInUse())
}

func TestProgramMemoryRefuses(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	offers(t, d, "importHostMemory")
	align := int(share.HostAlignment(d))
	memory, multiple := pages(2*align, align), fmt.Sprintf("multiple of %d", align)
	for _, c := range []struct {
		memory         []byte
		size           uint64
		arg, got, want string
	}{
		{memory[16 : align+16], 16, "memory", "address", multiple},
		{memory[:align+16], 16, "memory", fmt.Sprint(align + 16), multiple},
		{nil, 16, "memory", "0 bytes", multiple},
		{memory, 0, "size", "0", "1 to"},
		{memory, uint64(len(memory)) + 1, "size", fmt.Sprint(len(memory) + 1), fmt.Sprint(len(memory))},
	} {
		b, err := share.ImportHost(d, "mine", c.memory, c.size)
		assert.Nil(t, b)
		argument(t, err, c.arg, c.got, c.want)
	}
}
