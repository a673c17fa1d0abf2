//go:build linux

package faults_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// Workgroups wait for each other with the drivers that are known to let them go on, and with no
// other, whatever its number.
func TestDriversThatMayWait(t *testing.T) {
	defer interposer.Honest()
	may := map[vk.DriverID]string{1: "AMD", 2: "AMDVLK", 3: "RADV", 4: "NVIDIA", 5: "Intel, Windows", 6: "Intel, Mesa"}
	never := map[vk.DriverID]string{8: "Qualcomm", 9: "ARM", 13: "llvmpipe", 14: "MoltenVK",
		18: "Turnip", 20: "PanVK", 24: "NVK", 26: "Honeykrisp", 28: "KosmicKrisp"}
	for id := range vk.DriverID(64) {
		assert.Equal(t, may[id] != "", tuning.MayWait(&vk.Adapter{Driver: id}), "driver %d %s%s", id, may[id], never[id])
	}
	for _, id := range []vk.DriverID{3, 14} { // as devices tell it
		interposer.Driver(id)
		in, err := vk.NewInstance(vk.InstanceOptions{Library: interposer.Library})
		require.NoError(t, err)
		a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
		require.NoError(t, err)
		assert.Equal(t, id, a.Driver)
		assert.Equal(t, may[id] != "", tuning.MayWait(a))
		require.NoError(t, in.Close())
	}
}

// A step whose workgroups starve ends with a typed error and leaves its session as it was. From
// then on steps have more launches that do not wait, and the bits that they would have had.
func TestStarvedEngine(t *testing.T) {
	eachOf(t, fakemodel.Config(4), fakemodel.TinyV41(), starvedEngine)
}

func starvedEngine(t *testing.T, cfg model.Config, records model.Records) {
	defer interposer.Honest()
	cfg.Hidden, cfg.Heads, cfg.ORank = 1024, 4, 512 // so that wo_a and wo_b are one launch
	m := fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8, Seed: 6})
	path := t.TempDir()
	require.NoError(t, m.Write(path, 1))
	// lives takes sessions through a prompt and steps of one token, as the device of a driver.
	lives := func(driver vk.DriverID) (out [][]float32, starved int) {
		interposer.Driver(driver)
		d := open(t, vk.DeviceOptions{Profile: "hopper", WholeModules: true}) // the interposer changes constants of one
		l := begun(t, &fake{path: path, records: records}, d)
		a := l.open()
		l.append(a, 12, 0)
		b, err := a.Fork()
		require.NoError(t, err)
		for i := range 3 {
			at := a.Len()
			start := time.Now()
			got, err := a.Append(context.Background(), l.hidden(at, 1, 0))
			if errors.Is(err, vk.ErrStarved) {
				starved++
				assert.ErrorContains(t, err, "gave up waiting for others")
				assert.Less(t, time.Since(start), 15*time.Minute)
				assert.Equal(t, at, a.Len(), "the session has grown")
				assert.Empty(t, got[0].Out)
				assert.NoError(t, d.Err(), "the device is as good as before")
				assert.True(t, d.Starved())
				l.append(a, 1, 0)
				continue
			}
			require.NoError(t, err, "step %d", i)
			for _, x := range got {
				l.out = append(l.out, x.Out)
			}
		}
		l.append(b, 1, 7)
		// An engine that is made later does not wait either.
		later, err := pipeline.NewEngine(context.Background(), d, l.cfg, l.layers, pipeline.EngineOptions{MaxTokens: 64, Records: records})
		require.NoError(t, err)
		s, err := later.Open()
		require.NoError(t, err)
		l.append(s, 1, 0)
		require.NoError(t, later.Close())
		l.close()
		return l.out, starved
	}
	interposer.Range(1<<20 - 1)                // without matrices only layers by address are chains
	const moltenVK, polls, silent = 14, 15, 16 // constants of proj_linear_chain.comp
	chain, err := shaders.Get("proj_linear_chain_da")
	require.NoError(t, err)
	interposer.Constants(chain.SPIRV, map[int]uint32{polls: 3000, silent: 0})
	want, starved := lives(moltenVK)
	require.Positive(t, interposer.Changed(), "no chain")
	require.Zero(t, starved, "MoltenVK waits")
	got, starved := lives(tuning.DriverNVIDIA)
	assert.Equal(t, 1, starved, "steps that starved")
	assert.Equal(t, want, got)
}

// What a lost device tells of its loss is in every error from then on, bounded and readable.
func TestLossExplained(t *testing.T) {
	defer interposer.Honest()
	for name, c := range map[string]struct {
		by       faults.Fault
		each     int
		has, not []string
	}{
		"nothing to ask": {faults.NoFault, 2, nil, []string{"(VkResult -4) ("}},
		"EXT, little": {faults.FaultEXT, 1, []string{
			"(page fault 0?; invalid read at 0x1000, to 256 bytes; vendor: ring 0? (code 0xc0de, data 0xda7a))"},
			[]string{"and more"}},
		"EXT, much":   {faults.FaultEXT, 5000, []string{"page fault", "invalid write at 0x2000", "ring 7?", "and more"}, []string{"ring 8?"}},
		"EXT, empty":  {faults.FaultEXT, 0, []string{"(page fault 0?)"}, []string{"vendor"}},
		"KHR, little": {faults.FaultKHR, 2, []string{"watchdog 1?", "instruction pointer at 0x4000", "ring 1?"}, []string{"ring 0?", "and more"}},
		"KHR, much":   {faults.FaultKHR, 4000, []string{"watchdog 7?", "and more"}, []string{"watchdog 8?"}},
		"KHR, empty":  {faults.FaultKHR, 0, nil, []string{"(VkResult -4) ("}},
	} {
		t.Run(name, func(t *testing.T) {
			interposer.Explain(c.by, c.each)
			d := open(t, vk.DeviceOptions{})
			by, asked := interposer.Explained()
			assert.Equal(t, c.by, by, "the extension that was enabled")
			assert.Equal(t, c.by != faults.NoFault, d.Caps().Features["deviceFault"])
			assert.Zero(t, asked, "a healthy device was asked")
			cmd := commands(t, d, buffer(t, d), 1, false, false)
			interposer.Fail(slices.Index(faults.Calls, "vkQueueSubmit"), 0, faults.DeviceLost, true)
			_, err := cmd.Submit()
			require.ErrorIs(t, err, vk.ErrDeviceLost)
			for _, err := range []error{err, d.Err()} {
				for _, text := range c.has {
					assert.ErrorContains(t, err, text)
				}
				for _, text := range c.not {
					assert.NotContains(t, err.Error(), text)
				}
				assert.Less(t, len(err.Error()), 8000)
				assert.False(t, strings.ContainsRune(err.Error(), '\a'))
			}
			_, again := interposer.Explained()
			assert.LessOrEqual(t, again, 2, "asked again and again")
			_ = cmd.Close()
		})
	}
}

// A device whose fence is signalled over work that it did not do is asked only by the extension
// that may be asked then.
func TestDroppedExplained(t *testing.T) {
	defer interposer.Honest()
	for by, has := range map[faults.Fault]bool{faults.FaultEXT: false, faults.FaultKHR: true} {
		interposer.Explain(by, 2)
		d := open(t, vk.DeviceOptions{})
		cmd := commands(t, d, buffer(t, d), 1, false, true)
		interposer.Drop()
		err := cmd.Run(context.Background())
		assert.ErrorIs(t, err, vk.ErrDeviceLost)
		assert.Equal(t, has, strings.Contains(err.Error(), "watchdog"), "%v", err)
		_ = cmd.Close()
	}
}

// A driver that knows says how much memory is left, and errors for want of it name it.
func TestMemoryBudget(t *testing.T) {
	defer interposer.Honest()
	full := func(d *vk.Device) string {
		interposer.Fail(slices.Index(faults.Calls, "vkAllocateMemory"), 0, faults.OutOfDeviceMemory, false)
		_, err := d.NewBuffer(vk.BufferSpec{Label: "b", Size: 1 << 20})
		require.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
		_, large := d.NewBuffer(vk.BufferSpec{Label: "b", Size: 1 << 60})
		require.ErrorIs(t, large, vk.ErrOutOfDeviceMemory)
		for _, err := range []error{err, large} {
			assert.ErrorContains(t, err, "(memory 0, of the device: ")
		}
		return err.Error() + large.Error()
	}
	interposer.Budget(700, 900)
	d := open(t, vk.DeviceOptions{})
	list := d.MemoryBudget()
	require.Len(t, list, len(d.Caps().Heaps))
	assert.Equal(t, vk.HeapBudget{Heap: d.Caps().Heaps[0], Budget: 700 << 20, Usage: 900 << 20}, list[0])
	assert.Zero(t, list[0].Free(), "more is in use than there is")
	interposer.Budget(1000, 300)
	assert.Equal(t, uint64(700<<20), d.MemoryBudget()[0].Free())
	assert.Equal(t, 2, strings.Count(full(d), ", budget 1048576000, in use 314572800)"))
	require.NoError(t, d.Close())
	assert.Nil(t, d.MemoryBudget())

	interposer.Budget(-1, 0)
	d = open(t, vk.DeviceOptions{})
	assert.Nil(t, d.MemoryBudget())
	assert.Equal(t, 2, strings.Count(full(d), "; the driver does not tell what is free)"))
}

// Without timestamps the host takes the time of each part.
func TestWallTimes(t *testing.T) {
	a := *open(t, vk.DeviceOptions{}).Adapter()
	a.Caps.TimestampPeriod = 0
	d, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	b := buffer(t, d)
	const parts, held = 5, 60 * time.Millisecond
	cmd := commands(t, d, b, parts, true, true)
	_, err = cmd.PartTimes()
	assert.ErrorIs(t, err, vk.ErrBusy, "before they ran")
	require.NoError(t, cmd.Run(context.Background()))
	quick, err := cmd.PartTimes()
	require.NoError(t, err)
	require.Len(t, quick, parts)

	interposer.Hang()
	start, asked := time.Now(), asks()
	p, err := cmd.Submit()
	require.NoError(t, err)
	_, err = cmd.PartTimes()
	assert.ErrorIs(t, err, vk.ErrBusy, "before they ended")
	for asks() == asked { // until the device has the first part
		time.Sleep(time.Millisecond)
	}
	time.Sleep(held)
	interposer.Mend()
	require.NoError(t, p.Wait(context.Background()))
	all := float64(time.Since(start))
	slow, err := cmd.PartTimes()
	require.NoError(t, err)
	require.Len(t, slow, parts)
	sum := 0.0
	for _, ns := range slow {
		assert.GreaterOrEqual(t, ns, 0.0)
		sum += ns
	}
	assert.Greater(t, slow[0], 0.9*float64(held), "the part that the device had")
	assert.LessOrEqual(t, sum, all, "together")
	require.NoError(t, cmd.Close())
	_, err = cmd.PartTimes()
	assert.ErrorIs(t, err, vk.ErrClosed)
	one := commands(t, d, b, 1, true, false)
	require.NoError(t, one.Run(context.Background()))
	times, err := one.PartTimes()
	require.NoError(t, err)
	assert.Len(t, times, 1)
	require.NoError(t, one.Close())
	require.NoError(t, b.Close())
	require.NoError(t, d.Close())
}
