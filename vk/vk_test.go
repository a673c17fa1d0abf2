package vk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/lab/validation"
	"github.com/vkmla/vkmla/vk"
)

// open opens the device that VKMLA_TEST_DEVICE names, with the validation that
// VKMLA_TEST_VALIDATION asks for, and fails the test on any message.
func open(t *testing.T, o vk.DeviceOptions) *vk.Device {
	t.Helper()
	v, err := validation.Choose(os.Getenv(validation.Env), door.HasValidation())
	require.NoError(t, err)
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vk test", Validation: v, OnMessage: func(m vk.Message) {
		assert.True(t, validation.Late(m), "validation: %s", m.Text)
	}})
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	d, err := a.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func buffer(t *testing.T, d *vk.Device, size uint64, m vk.Memory) *vk.Buffer {
	t.Helper()
	b, err := d.NewBuffer(vk.BufferSpec{Label: "test", Size: size, Memory: m})
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

type copyPush struct{ Count, Step uint32 }

// copyKernel is dst[i] = src[i] + step over 16-byte pieces.
func copyKernel(t *testing.T, d *vk.Device) *vk.Kernel {
	t.Helper()
	s, err := kernels.Get("bench_copy")
	require.NoError(t, err)
	k, err := d.Kernel(vk.KernelSpec{Name: s.Name, SPIRV: s.SPIRV, Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 8})
	require.NoError(t, err)
	return k
}

func addStep(k *vk.Kernel, dst, src vk.View, step uint32) vk.Dispatch {
	p := copyPush{uint32(dst.Size / 16), step}
	return vk.Dispatch{Kernel: k, Groups: [3]uint32{4, 1, 1}, Bind: []vk.View{src, dst}, Push: vk.Bytes(&p)}
}

func record(t *testing.T, d *vk.Device, f func(r *vk.Recorder) error) *vk.Commands {
	t.Helper()
	r, err := d.NewRecorder()
	require.NoError(t, err)
	if err := f(r); err != nil {
		r.Close()
		t.Fatal(err)
	}
	c, err := r.End()
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, c.Close())
	})
	return c
}

func words(n int, f func(i int) uint32) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], f(i))
	}
	return b
}

// Barriers are derived: a chain of dependent launches gives the right sum, and
// independent ones get no barrier between them.
func TestBarriersFollowUse(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	k := copyKernel(t, d)
	const size = 64 << 10
	a, b := buffer(t, d, size, vk.DeviceLocal), buffer(t, d, size, vk.DeviceLocal)
	const links = 40
	chain := record(t, d, func(r *vk.Recorder) error {
		if err := r.Fill(a.Whole(), 7); err != nil {
			return err
		}
		from, to := a, b
		for i := range links {
			if err := r.Dispatch(addStep(k, to.Whole(), from.Whole(), uint32(i))); err != nil {
				return err
			}
			from, to = to, from
		}
		return nil
	})
	assert.Equal(t, links, chain.Barriers(), "a chain of a fill and %d launches has %d barriers", links, chain.Barriers())
	for range 3 { // the same recording, again
		require.NoError(t, chain.Run(ctx))
		got := make([]byte, size)
		require.NoError(t, d.Download(ctx, got, a.Whole()))
		if want := words(size/4, func(int) uint32 { return 7 + links*(links-1)/2 }); !bytes.Equal(got, want) {
			t.Fatalf("chain gave %v, want %v", got[:8], want[:8])
		}
	}

	half := uint64(size / 2)
	free := record(t, d, func(r *vk.Recorder) error {
		if err := r.Dispatch(addStep(k, b.View(0, half), a.View(0, half), 1)); err != nil {
			return err
		}
		return r.Dispatch(addStep(k, b.View(half, half), a.View(half, half), 2)) // other bytes: free to overlap
	})
	assert.Equal(t, 0, free.Barriers(), "launches on disjoint ranges got %d barriers", free.Barriers())
	war := record(t, d, func(r *vk.Recorder) error {
		if err := r.Dispatch(addStep(k, b.View(0, half), a.View(0, half), 1)); err != nil {
			return err
		}
		return r.Fill(a.View(half-16, 32), 0) // overwrites what the launch reads
	})
	assert.Equal(t, 1, war.Barriers(), "write after read got %d barriers", war.Barriers())
}

// The recorder does not compare a command with all before it, so that the cost of one does
// not grow with their number.
func TestManyCommandsAreRecordedInTurn(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	a, b := buffer(t, d, 1<<20, vk.DeviceLocal), buffer(t, d, 1<<20, vk.DeviceLocal)
	r, err := d.NewRecorder()
	require.NoError(t, err)
	defer r.Close()
	for i := range uint64(2000) { // ranges that are all different
		require.NoError(t, r.Copy(a.View(512*i, 256), b.View(512*i, 256)))
		require.LessOrEqual(t, vk.Remembered(r), 600, "accesses are remembered after %d copies", i+1)
	}
	n := r.Barriers()
	assert.GreaterOrEqual(t, n, 4000/600)
	assert.LessOrEqual(t, n, 20)
}

func TestReachOrdersDeviceAddresses(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	k := copyKernel(t, d)
	a, b, c := buffer(t, d, 256, vk.DeviceLocal), buffer(t, d, 256, vk.DeviceLocal), buffer(t, d, 256, vk.DeviceLocal)
	cmds := record(t, d, func(r *vk.Recorder) error {
		if err := r.Fill(c.Whole(), 1); err != nil {
			return err
		}
		x := addStep(k, b.Whole(), a.Whole(), 1)
		x.Reach = []vk.Reach{{View: c.Whole(), Access: vk.Read}}
		return r.Dispatch(x)
	})
	assert.Equal(t, 1, cmds.Barriers(), "barriers before a launch that reads filled memory")
}

func TestHostMemory(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	k := copyKernel(t, d)
	in, out := buffer(t, d, 4096, vk.Upload), buffer(t, d, 4096, vk.Readback)
	c := record(t, d, func(r *vk.Recorder) error { return r.Dispatch(addStep(k, out.Whole(), in.Whole(), 1)) })
	for round := range uint32(5) { // what changes between runs lies in a buffer
		copy(in.Mapped(), words(1024, func(i int) uint32 { return uint32(i) * round }))
		require.NoError(t, c.Run(ctx))
		want := words(1024, func(i int) uint32 { return uint32(i)*round + 1 })
		require.True(t, bytes.Equal(out.Mapped(), want), "round %d: wrong result", round)
	}
}

func TestTimestampsGrow(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	k := copyKernel(t, d)
	a, b := buffer(t, d, 1<<20, vk.DeviceLocal), buffer(t, d, 1<<20, vk.DeviceLocal)
	c := record(t, d, func(r *vk.Recorder) error {
		for range 3 {
			if _, err := r.Timestamp(); err != nil {
				return err
			}
			if err := r.Dispatch(addStep(k, b.Whole(), a.Whole(), 1)); err != nil {
				return err
			}
		}
		_, err := r.Timestamp()
		return err
	})
	_, err := c.Timestamps()
	assert.ErrorIs(t, err, vk.ErrBusy, "timestamps before a run")
	require.NoError(t, c.Run(ctx))
	ns, err := c.Timestamps()
	require.NoError(t, err, "timestamps %v: want four that grow from 0", ns)
	assert.True(t, len(ns) == 4 && ns[0] == 0 && ns[1] > 0 && ns[2] > ns[1] && ns[3] > ns[2],
		"timestamps %v: want four that grow from 0", ns)
}

// endsAtSecondLook is a context that has ended when Err is called for the second time.
type endsAtSecondLook struct {
	context.Context
	looks int
}

func (c *endsAtSecondLook) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

func TestWaitStopsWithContext(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	k := copyKernel(t, d)
	a, b := buffer(t, d, 32<<20, vk.DeviceLocal), buffer(t, d, 32<<20, vk.DeviceLocal)
	c := record(t, d, func(r *vk.Recorder) error {
		for i := range 20 {
			if err := r.Dispatch(addStep(k, b.Whole(), a.Whole(), uint32(i))); err != nil {
				return err
			}
		}
		return nil
	})
	// On a busy machine the device may finish before the wait begins. Then try again.
	var err error
	for try := 0; try < 20 && err == nil; try++ {
		p, submitted := c.Submit()
		require.NoError(t, submitted)
		if err = p.Wait(&endsAtSecondLook{Context: context.Background()}); err != nil {
			if _, again := c.Submit(); again != nil {
				assert.ErrorIs(t, again, vk.ErrBusy)
			}
		}
	}
	assert.ErrorIs(t, err, context.Canceled)
	ended, stop := context.WithCancel(context.Background())
	stop()
	assert.ErrorIs(t, c.Run(ended), context.Canceled)
}

func TestArgumentErrors(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	k := copyKernel(t, d)
	a, b := buffer(t, d, 1024, vk.DeviceLocal), buffer(t, d, 1024, vk.DeviceLocal)
	closed, err := d.NewBuffer(vk.BufferSpec{Label: "closed", Size: 64})
	require.NoError(t, err)
	closed.Close()
	s, _ := kernels.Get("bench_copy")
	both := []vk.Access{vk.Read, vk.Write}
	big := [3]uint32{1, d.Caps().MaxWorkgroupCount[1] + 1, 1}
	ok := addStep(k, b.Whole(), a.Whole(), 1)
	with := func(f func(*vk.Dispatch)) vk.Dispatch { x := ok; f(&x); return x }
	r, err := d.NewRecorder()
	require.NoError(t, err)
	defer r.Close()
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"empty buffer": {func() error { _, err := d.NewBuffer(vk.BufferSpec{}); return err }(), vk.ErrArgument},
		"huge buffer":  {func() error { _, err := d.NewBuffer(vk.BufferSpec{Size: 1 << 60}); return err }(), vk.ErrOutOfDeviceMemory},
		"not SPIR-V":   {func() error { _, err := d.Kernel(vk.KernelSpec{SPIRV: make([]byte, 64)}); return err }(), vk.ErrArgument},
		"push size":    {func() error { _, err := d.Kernel(vk.KernelSpec{SPIRV: s.SPIRV, PushSize: 1 << 16}); return err }(), vk.ErrMissingFeature},
		"large push":   {func() error { _, err := d.Kernel(vk.KernelSpec{SPIRV: s.SPIRV, PushSize: 1 << 32}); return err }(), vk.ErrMissingFeature},
		"no push":      {func() error { _, err := d.Kernel(vk.KernelSpec{SPIRV: s.SPIRV, PushSize: -4}); return err }(), vk.ErrArgument},
		"feature": {func() error {
			_, err := d.Kernel(vk.KernelSpec{SPIRV: s.SPIRV, Requires: []string{"teleport"}, Bindings: both, PushSize: 8})
			return err
		}(), vk.ErrMissingFeature},
		"no kernel":        {r.Dispatch(vk.Dispatch{}), vk.ErrArgument},
		"no groups":        {r.Dispatch(with(func(x *vk.Dispatch) { x.Groups[2] = 0 })), vk.ErrArgument},
		"too many groups":  {r.Dispatch(with(func(x *vk.Dispatch) { x.Groups = big })), vk.ErrArgument},
		"missing binding":  {r.Dispatch(with(func(x *vk.Dispatch) { x.Bind = x.Bind[:1] })), vk.ErrArgument},
		"push constants":   {r.Dispatch(with(func(x *vk.Dispatch) { x.Push = x.Push[:4] })), vk.ErrArgument},
		"past the end":     {r.Dispatch(with(func(x *vk.Dispatch) { x.Bind = []vk.View{a.View(512, 1024), b.Whole()} })), vk.ErrArgument},
		"misaligned":       {r.Dispatch(with(func(x *vk.Dispatch) { x.Bind = []vk.View{a.View(1, 64), b.Whole()} })), vk.ErrArgument},
		"nil view":         {r.Dispatch(with(func(x *vk.Dispatch) { x.Bind = []vk.View{{}, b.Whole()} })), vk.ErrArgument},
		"closed buffer":    {r.Dispatch(with(func(x *vk.Dispatch) { x.Bind = []vk.View{closed.Whole(), b.Whole()} })), vk.ErrClosed},
		"overlapping copy": {r.Copy(a.View(0, 64), a.View(32, 64)), vk.ErrArgument},
		"odd fill":         {r.Fill(a.View(2, 4), 0), vk.ErrArgument},
		"upload size":      {d.Upload(ctx, a.Whole(), make([]byte, 3)), vk.ErrArgument},
	} {
		assert.ErrorIs(t, c.err, c.want, name)
	}
	assert.Equal(t, 0, r.Barriers(), "refused commands recorded %d barriers", r.Barriers())
}

func TestPickAndMissing(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	a := d.Adapter()
	in, err := vk.NewInstance(vk.InstanceOptions{})
	require.NoError(t, err)
	defer in.Close()
	for _, sel := range []string{"", "0", a.UUID, strings.ToUpper(a.Name[:4])} {
		got, err := in.Pick(sel)
		require.NoError(t, err, "pick %q: %v", sel, got)
		assert.False(t, sel == a.UUID && got.UUID != a.UUID, "pick %q: %v", sel, got)
	}
	n := len(in.Adapters())
	none := []string{"no such device", "-1"}
	for i := range 20 { // names have some of these digits
		none = append(none, strconv.Itoa(n+i))
	}
	for _, sel := range none {
		got, err := in.Pick(sel)
		assert.ErrorIs(t, err, vk.ErrNoDevice, "pick %q among %d devices: found one: %v", sel, n, got != nil)
	}
	_, err = vk.NewInstance(vk.InstanceOptions{Library: "libno-such-vulkan.so"})
	assert.ErrorIs(t, err, vk.ErrNoLoader, "missing loader")
}

// Each allocation is made to fail once. The caller must get the error, and nothing may stay
// allocated.
func TestEveryAllocationMayFail(t *testing.T) {
	no := errors.New("no")
	for n := 0; ; n++ {
		count := 0
		d, err := func() (*vk.Device, error) {
			in, err := vk.NewInstance(vk.InstanceOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { in.Close() })
			a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
			require.NoError(t, err)
			return a.Open(vk.DeviceOptions{Staging: true, MemoryHook: func(uint64) error {
				if count++; count == n+1 {
					return no
				}
				return nil
			}})
		}()
		if err == nil {
			var b *vk.Buffer
			if b, err = d.NewBuffer(vk.BufferSpec{Label: "b", Size: 64}); err == nil {
				err = d.Upload(context.Background(), b.Whole(), make([]byte, 64))
				b.Close()
			}
			assert.NoError(t, d.Close(), "allocation %d failing leaves memory behind", n)
		}
		if count <= n {
			require.NoError(t, err, "after %d allocations", count)
			require.GreaterOrEqual(t, n, 3, "after %d allocations", count)
			return
		}
		assert.ErrorIs(t, err, no, "allocation %d failing", n)
	}
}

func TestPipelineCacheSurvivesDamage(t *testing.T) {
	dir := t.TempDir()
	build := func() {
		in, err := vk.NewInstance(vk.InstanceOptions{})
		require.NoError(t, err)
		defer in.Close()
		a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
		require.NoError(t, err)
		d, err := a.Open(vk.DeviceOptions{PipelineCacheDir: dir})
		require.NoError(t, err)
		require.NoError(t, copyKernel(t, d).Ready())
		require.NoError(t, d.Close())
	}
	build()
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	require.Len(t, files, 1, "cache files")
	good, err := os.ReadFile(files[0])
	require.NoError(t, err)
	for name, bad := range map[string][]byte{
		"empty": {}, "short": good[:10], "flipped": append(append([]byte{}, good[:len(good)-1]...), ^good[len(good)-1]),
	} {
		require.NoError(t, os.WriteFile(files[0], bad, 0o644))
		build()
		now, _ := os.ReadFile(files[0])
		assert.GreaterOrEqual(t, len(now), 40, "%s cache was not replaced", name)
	}
}

func TestConcurrentUse(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	k := copyKernel(t, d)
	var wg sync.WaitGroup
	for g := range 4 {
		a, b := buffer(t, d, 4096, vk.DeviceLocal), buffer(t, d, 4096, vk.DeviceLocal)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for round := range 10 {
				if err := concurrentRound(d, k, a, b, uint32(g*100+round)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
}

func concurrentRound(d *vk.Device, k *vk.Kernel, a, b *vk.Buffer, seed uint32) error {
	ctx := context.Background()
	r, err := d.NewRecorder()
	if err != nil {
		return err
	}
	if err := errors.Join(r.Fill(a.Whole(), seed), r.Dispatch(addStep(k, b.Whole(), a.Whole(), 1))); err != nil {
		r.Close()
		return err
	}
	c, err := r.End()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Run(ctx); err != nil {
		return err
	}
	got := make([]byte, 4096)
	if err := d.Download(ctx, got, b.Whole()); err != nil {
		return err
	}
	if !bytes.Equal(got, words(1024, func(int) uint32 { return seed + 1 })) {
		return errors.New("another goroutine's data came back")
	}
	return nil
}

// garbage keeps what TestGCStress allocates on the heap, so that the collector has work.
var garbage []byte

// The binding frees argument arrays under the garbage collector; ours must not.
// scripts/test runs this under GOGC=1 with validation on.
func TestGCStress(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	k := copyKernel(t, d)
	at := max(64, uint64(d.Caps().StorageAlignment))
	bufs := []*vk.Buffer{buffer(t, d, at+64, vk.DeviceLocal), buffer(t, d, at+64, vk.DeviceLocal), buffer(t, d, at+64, vk.DeviceLocal)}
	rounds := 4000
	if testing.Short() {
		rounds = 50
	}
	for i := range rounds {
		c := func() *vk.Commands {
			r, err := d.NewRecorder()
			require.NoError(t, err)
			for j := range 4 {
				require.NoError(t, r.Dispatch(addStep(k, bufs[(i+j+1)%3].View(0, 64), bufs[(i+j)%3].View(at, 64), uint32(j))))
			}
			c, err := r.End()
			require.NoError(t, err)
			return c
		}()
		for range 3 {
			require.NoError(t, c.Run(ctx))
			garbage = make([]byte, 1024)
		}
		require.NoError(t, c.Close())
		if i%32 == 0 {
			runtime.GC()
		}
	}
}
