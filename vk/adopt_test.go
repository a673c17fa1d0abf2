package vk_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	vulkan "github.com/goki/vulkan"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

// countedLock counts how often it was held, and finds two holders.
type countedLock struct {
	mu   sync.Mutex
	held atomic.Int32
	n    int
	t    *testing.T
}

func (l *countedLock) Lock() {
	l.mu.Lock()
	l.n++
	assert.EqualValues(l.t, 1, l.held.Add(1))
}

func (l *countedLock) Unlock() {
	l.held.Add(-1)
	l.mu.Unlock()
}

// An adopted device computes beside the program that made it, under its lock, leaves its handles
// alone, and can be adopted again.
func TestAdopt(t *testing.T) {
	program, ctx := open(t, vk.DeviceOptions{}), context.Background()
	h := share.HandlesOf(program)
	lock := &countedLock{t: t}
	h.Lock = lock
	for range 2 {
		d, err := share.Adopt(h, vk.DeviceOptions{})
		require.NoError(t, err)
		assert.Equal(t, program.Adapter().UUID, d.Adapter().UUID)
		assert.Equal(t, program.Caps().Features, d.Caps().Features)
		a, b := buffer(t, d, 1<<10, vk.DeviceLocal), buffer(t, d, 1<<10, vk.DeviceLocal)
		c := record(t, d, func(r *vk.Recorder) error {
			return errors.Join(r.Fill(a.Whole(), 5), r.Dispatch(addStep(copyKernel(t, d), b.Whole(), a.Whole(), 2)))
		})
		before := lock.n
		require.NoError(t, c.Run(ctx))
		assert.Equal(t, before+1, lock.n)
		got := make([]byte, 1<<10)
		require.NoError(t, d.Download(ctx, got, b.Whole()))
		assert.Equal(t, words(1<<8, func(int) uint32 { return 7 }), got)
		require.NoError(t, errors.Join(c.Close(), a.Close(), b.Close(), d.Close()))
	}
	b := buffer(t, program, 64, vk.Readback)
	require.NoError(t, fills(t, program, b, 3, 1).Run(ctx), "the program's device works as before")
	assert.EqualValues(t, 3, b.Mapped()[0])
}

// Program and library submit to one queue at once.
func TestAdoptTogether(t *testing.T) {
	program, ctx := open(t, vk.DeviceOptions{}), context.Background()
	d, err := share.Adopt(share.HandlesOf(program), vk.DeviceOptions{})
	require.NoError(t, err)
	defer d.Close()
	var all sync.WaitGroup
	for _, x := range []*vk.Device{program, d, d} {
		b := buffer(t, x, 64, vk.Readback)
		c := fills(t, x, b, 1, 2)
		all.Go(func() {
			for range 50 {
				assert.NoError(t, c.Run(ctx))
			}
			assert.NoError(t, errors.Join(c.Close(), b.Close()))
		})
	}
	all.Wait()
}

// A device of the binding's own calls, with few features, becomes one that says what it lacks.
func TestAdoptForeign(t *testing.T) {
	program := open(t, vk.DeviceOptions{}) // loads the binding's functions
	offers(t, program, "shaderInt64")
	h := share.HandlesOf(program)
	made := foreignDevice(t, h)
	h.Device, h.Queue, h.Lock = made.device, made.queue, nil
	h.Extensions, h.Features, h.APIVersion = nil, []string{"shaderInt64", "timelineSemaphore"}, 1<<22|2<<12
	d, err := share.Adopt(h, vk.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	assert.True(t, d.Caps().Features["shaderInt64"])
	for _, f := range []string{"bufferDeviceAddress", "storageBuffer8BitAccess", "exportMemory", "importHostMemory", "cooperativeMatrix"} {
		assert.False(t, d.Caps().Features[f], f)
	}
	_, err = d.NewBuffer(vk.BufferSpec{Label: "b", Size: 64, Export: true})
	var e *vk.MissingError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, []string{"exportMemory"}, e.Missing)
	b := buffer(t, d, 64, vk.Readback)
	s := semaphore(t, d)
	p, err := fills(t, d, b, 8, 1).Submit(vk.Sync{Signal: []vk.At{{s, 1}}})
	require.NoError(t, err)
	require.NoError(t, errors.Join(p.Wait(context.Background()), s.Wait(context.Background(), 1)))
	assert.EqualValues(t, 8, b.Mapped()[0])
}

type foreign struct{ device, queue unsafe.Pointer }

// foreignDevice makes a device as another program would, with two features.
func foreignDevice(t *testing.T, h share.Handles) (f foreign) {
	t.Helper()
	priority := []float32{1}
	timeline := &struct { // VkPhysicalDeviceTimelineSemaphoreFeatures
		kind    uint32
		next    uintptr
		feature uint32
	}{kind: 1000207000, feature: 1}
	var pin runtime.Pinner
	pin.Pin(timeline)
	pin.Pin(&priority[0])
	defer pin.Unpin()
	features := vulkan.PhysicalDeviceFeatures{ShaderInt64: vulkan.True}
	ci := vulkan.DeviceCreateInfo{SType: vulkan.StructureTypeDeviceCreateInfo, PNext: unsafe.Pointer(timeline), QueueCreateInfoCount: 1,
		PQueueCreateInfos: []vulkan.DeviceQueueCreateInfo{{SType: vulkan.StructureTypeDeviceQueueCreateInfo,
			QueueFamilyIndex: h.QueueFamily, QueueCount: 1, PQueuePriorities: priority}},
		PEnabledFeatures: []vulkan.PhysicalDeviceFeatures{features}}
	var d vulkan.Device
	require.Equal(t, vulkan.Success, vulkan.CreateDevice(vulkan.PhysicalDevice(h.PhysicalDevice), &ci, nil, &d))
	var q vulkan.Queue
	vulkan.GetDeviceQueue(d, h.QueueFamily, 0, &q)
	t.Cleanup(func() { vulkan.DestroyDevice(d, nil) })
	return foreign{unsafe.Pointer(d), unsafe.Pointer(q)}
}

func TestAdoptRefuses(t *testing.T) {
	program := open(t, vk.DeviceOptions{})
	for name, change := range map[string]func(*share.Handles){
		"Instance":       func(h *share.Handles) { h.Instance = nil },
		"PhysicalDevice": func(h *share.Handles) { h.PhysicalDevice = nil },
		"Device":         func(h *share.Handles) { h.Device = nil },
		"Queue":          func(h *share.Handles) { h.Queue = nil },
		"QueueFamily":    func(h *share.Handles) { h.QueueFamily = 99 },
	} {
		h := share.HandlesOf(program)
		change(&h)
		d, err := share.Adopt(h, vk.DeviceOptions{})
		assert.Nil(t, d)
		argument(t, err, name, "", "")
	}
	h := share.HandlesOf(program)
	h.APIVersion = 1<<22 | 1<<12
	_, err := share.Adopt(h, vk.DeviceOptions{})
	var e *vk.MissingError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, []string{"Vulkan 1.2"}, e.Missing)
	assert.True(t, slices.IsSorted(h.Extensions))
}
