//go:build linux

package faults_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/vk"
)

// madeUp are devices by their memory, as drivers list it.
type madeUp struct {
	faults.Memories
	access  vk.HostAccess
	unified bool
	copies  bool // of a Download, to memory of the device's
}

// memories are kinds of devices with megabytes instead of gigabytes.
func memories() map[string]madeUp {
	const own, seen, cached = faults.Local, faults.Visible, faults.Cached
	const mb = 1 << 10
	return map[string]madeUp{
		"discrete with a small window": {faults.Memories{Kind: vk.TypeDiscrete,
			Heaps: []faults.MadeHeap{{64 * mb, true}, {64 * mb, false}, {2 * mb, true}},
			Types: []faults.MadeType{{0, 1}, {own, 0}, {seen, 1}, {seen | cached, 1}, {own | seen, 2}}}, vk.ByCopies, false, true},
		"discrete with resizable BAR": {faults.Memories{Kind: vk.TypeDiscrete,
			Heaps: []faults.MadeHeap{{64 * mb, true}, {64 * mb, false}},
			Types: []faults.MadeType{{own, 0}, {seen, 1}, {own | seen, 0}, {seen | cached, 1}}}, vk.ByCopies, false, true},
		"integrated, two thirds": {faults.Memories{Kind: vk.TypeIntegrated,
			Heaps: []faults.MadeHeap{{32 * mb, false}, {64 * mb, true}},
			Types: []faults.MadeType{{own, 1}, {seen, 0}, {own | seen, 1}, {seen | cached, 0}}}, vk.MappedWrites, true, true},
		"integrated, one cached memory": {faults.Memories{Kind: vk.TypeIntegrated,
			Heaps: []faults.MadeHeap{{96 * mb, true}}, Types: []faults.MadeType{{own | seen | cached, 0}}}, vk.MappedFully, true, false},
		"integrated, cached and not": {faults.Memories{Kind: vk.TypeIntegrated,
			Heaps: []faults.MadeHeap{{96 * mb, true}},
			Types: []faults.MadeType{{own, 0}, {own | seen, 0}, {own | seen | cached, 0}}}, vk.MappedWrites, true, true},
		"integrated, a window": {faults.Memories{Kind: vk.TypeIntegrated,
			Heaps: []faults.MadeHeap{{64 * mb, true}, {64 * mb, false}, {2 * mb, true}},
			Types: []faults.MadeType{{own, 0}, {own | seen, 2}, {seen | cached, 1}}}, vk.ByCopies, false, true},
		"small allocations": {faults.Memories{Kind: vk.TypeDiscrete, Most: 8 * mb,
			Heaps: []faults.MadeHeap{{64 * mb, true}, {64 * mb, false}},
			Types: []faults.MadeType{{own, 0}, {seen, 1}, {seen | cached, 1}}}, vk.ByCopies, false, true},
	}
}

// The host writes and reads memory where it is if the driver lets it, and by copies else; what it
// writes and reads is the same.
func TestMemories(t *testing.T) {
	defer interposer.Honest()
	for name, m := range memories() {
		t.Run(name, func(t *testing.T) {
			interposer.Memory(&m.Memories)
			d := open(t, vk.DeviceOptions{})
			assert.Equal(t, m.access, d.HostAccess())
			assert.Equal(t, m.unified, d.Unified())
			const size = 3<<20 + 20
			b, err := d.NewBuffer(vk.BufferSpec{Label: "b", Size: size})
			require.NoError(t, err)
			assert.Nil(t, b.Mapped(), "memory that is slow to read was given away")
			want, got, ctx := make([]byte, size), make([]byte, size), context.Background()
			for i := range want {
				want[i] = byte(rand.Uint32())
			}
			require.NoError(t, d.UploadFrom(ctx, b.Whole(), bytes.NewReader(want)))
			assert.Equal(t, m.access == vk.ByCopies, d.MemoryInUse()["staging"] > 0, "staging memory to write")
			require.NoError(t, d.Upload(ctx, b.View(8, 4), want[8:12]))
			require.NoError(t, d.Download(ctx, got, b.Whole()))
			assert.True(t, bytes.Equal(want, got))
			assert.Equal(t, m.copies, d.MemoryInUse()["staging"] > 0, "staging memory to read")
			assert.Error(t, d.UploadFrom(ctx, b.Whole(), bytes.NewReader(want[1:])), "one byte too few")
			require.NoError(t, b.Close())
			staged, err := d.Adapter().Open(vk.DeviceOptions{Staging: true})
			require.NoError(t, err)
			assert.Equal(t, vk.ByCopies, staged.HostAccess())
			require.NoError(t, staged.Close())
		})
	}
}

// A device that shares the host's memory has all of it, also what its driver does not call its
// own. On others a full memory is full.
func TestFullMemories(t *testing.T) {
	defer interposer.Honest()
	for name, most := range map[string]int{"integrated, two thirds": 90, "discrete with resizable BAR": 60,
		"discrete with a small window": 60, "integrated, a window": 120, "small allocations": 56} {
		t.Run(name, func(t *testing.T) {
			m := memories()[name]
			interposer.Memory(&m.Memories)
			d := open(t, vk.DeviceOptions{})
			var all []*vk.Buffer
			require.NoError(t, d.Download(t.Context(), make([]byte, 256), d.Dummy())) // makes the staging memory
			var err error
			for err == nil {
				var b *vk.Buffer
				if b, err = d.NewBuffer(vk.BufferSpec{Label: "b", Size: 6 << 20}); err == nil {
					all = append(all, b)
					require.NoError(t, d.Upload(t.Context(), b.View(0, 4), []byte{byte(len(all)), 2, 3, 4}))
				}
			}
			require.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
			assert.InDelta(t, most, 6*len(all), 10, "MiB in buffers")
			for i, b := range all {
				var got [4]byte
				require.NoError(t, d.Download(t.Context(), got[:], b.View(0, 4)))
				assert.Equal(t, [4]byte{byte(i + 1), 2, 3, 4}, got)
				require.NoError(t, b.Close())
			}
			if m.Most > 0 {
				_, err = d.NewBuffer(vk.BufferSpec{Label: "b", Size: uint64(m.Most)<<10 + 1})
				assert.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
				assert.ErrorContains(t, err, "a buffer has at most 8388608")
			}
		})
	}
}

// Lives on such devices have the same outputs and snapshots: one that copies, one whose memory is
// too small and that the host writes but does not read, with VKMLA_TEST_FAULTS=all the others.
func TestLivesOfMemories(t *testing.T) { each(t, livesOfMemories) }

func livesOfMemories(t *testing.T, fake *fake) {
	defer interposer.Honest()
	var want *life
	made := memories()
	short := made["integrated, two thirds"]
	short.Heaps = []faults.MadeHeap{{32 << 10, false}, {3 << 10, true}} // most goes to the first
	made["integrated, two thirds"] = short
	for _, name := range []string{"small allocations", "integrated, two thirds", "integrated, one cached memory",
		"discrete with resizable BAR", "discrete with a small window", "integrated, cached and not", "integrated, a window"} {
		if want != nil && !all() && name != "integrated, two thirds" {
			continue
		}
		m := made[name]
		interposer.Memory(&m.Memories)
		l := life{t: t, model: fake, dev: open(t, vk.DeviceOptions{Profile: "cpu"})}
		require.NoError(t, l.run(), name)
		assert.Equal(t, name == "integrated, two thirds", interposer.Refused() > 0, "%s: allocations that were refused", name)
		if want == nil {
			want = &l
		}
		l.same(want.out)
		assert.True(t, bytes.Equal(want.saved, l.saved), "%s: another snapshot", name)
		l.close()
	}
}
