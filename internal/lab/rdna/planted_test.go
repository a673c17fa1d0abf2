package rdna_test

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/rdna"
	"github.com/vkmla/vkmla/vk"
)

// turned runs testdata/planted.comp on 320 of 384 numbers, in some pieces.
func turned(t *testing.T, dev *vk.Device, fault uint32, pieces int) []uint32 {
	t.Helper()
	const n, room = 320, 384
	module, err := os.ReadFile("testdata/planted.spv")
	require.NoError(t, err)
	k, err := dev.Kernel(vk.KernelSpec{Name: "planted", SPIRV: module, Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 4,
		Constants: []uint32{fault}, Divisible: true})
	require.NoError(t, err)
	buffer := func(words int) *vk.Buffer {
		b, err := dev.NewBuffer(vk.BufferSpec{Label: "planted", Size: uint64(4 * words)})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, b.Close()) })
		return b
	}
	in, out := buffer(n), buffer(room)
	bytes := make([]byte, 4*room)
	for i := range n {
		binary.LittleEndian.PutUint32(bytes[4*i:], uint32(1000+i))
	}
	require.NoError(t, dev.Upload(t.Context(), in.Whole(), bytes[:4*n]))
	rec, err := dev.NewRecorder()
	require.NoError(t, err)
	require.NoError(t, rec.Split(vk.Split{Each: true, Of: map[int]int{0: pieces}}))
	require.NoError(t, rec.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{3, 1, 1}, Bind: []vk.View{in.Whole(), out.Whole()},
		Push: binary.LittleEndian.AppendUint32(nil, n)}))
	cmd, err := rec.End()
	require.NoError(t, err)
	require.Equal(t, pieces, cmd.Parts())
	require.NoError(t, cmd.Run(t.Context()))
	require.NoError(t, cmd.Close())
	require.NoError(t, dev.Download(t.Context(), bytes, out.Whole()))
	words := make([]uint32, room)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(bytes[4*i:])
	}
	return words
}

// TestPlanted finds the faults of a kernel that was made with them, in any order of waves.
func TestPlanted(t *testing.T) {
	gpu, dev := emulated(t)
	defer func(o rdna.Order) { gpu.Order = o }(gpu.Order)
	for _, order := range []rdna.Order{rdna.Forward, rdna.Backward, rdna.Shuffled} {
		gpu.Order = order
		for _, pieces := range []int{1, 3} {
			got := turned(t, dev, 0, pieces)
			assert.Empty(t, gpu.Faults())
			assert.Equal(t, []uint32{1127, 1000, 1128 + 127}, []uint32{got[0], got[127], got[128]}, "%d pieces", pieces)
		}

		turned(t, dev, 1, 1)
		faults := gpu.Faults()
		require.NotEmpty(t, faults)
		f := faults[0]
		assert.Equal(t, "a race in shared memory", f.What)
		both := f.Text + " " + f.Other
		assert.Regexp(t, `ds_(store|write)_b32 .*`, both)
		assert.Regexp(t, `ds_(load|read)_b32 .*`, both)

		turned(t, dev, 2, 3)
		faults = gpu.Faults()
		require.Len(t, faults, 1)
		f = faults[0]
		assert.Equal(t, "a read of 4 bytes beyond a buffer of 1280", f.What)
		assert.Equal(t, uint64(1280), f.Address)
		assert.Regexp(t, `buffer_load_(b32|dword) `, f.Text)
		assert.Equal(t, [3]uint32{2, 0, 0}, f.Group)
		assert.Regexp(t, `: 0x500, by "buffer_load_.*" at byte 0x[0-9a-f]+ of program [0-9]+, planted\[2\], in dispatch [0-9]+, `+
			`workgroup \[2 0 0\], wave [1-3]$`, f.Error())

		got := turned(t, dev, 3, 1)
		assert.Empty(t, gpu.Faults())
		assert.Equal(t, []uint32{0xffffffff, 1000}, []uint32{got[0], got[127]}, "shared memory that was not written")
	}
}

// TestOrders sees which of two waves wrote a word last: the second in their own order, the first in
// the reverse, and either, as the seed says, where they are shuffled.
func TestOrders(t *testing.T) {
	gpu, dev := emulated(t)
	defer func(o rdna.Order, seed uint64) { gpu.Order, gpu.Seed = o, seed }(gpu.Order, gpu.Seed)
	last := func(order rdna.Order, seed uint64) uint32 {
		gpu.Order, gpu.Seed = order, seed
		got := turned(t, dev, 4, 1)
		faults := gpu.Faults()
		require.NotEmpty(t, faults)
		assert.Equal(t, "a race in shared memory", faults[0].What)
		return got[0]
	}
	assert.Equal(t, uint32(64), last(rdna.Forward, 0))
	assert.Equal(t, uint32(0), last(rdna.Backward, 0))
	seen := map[uint32]bool{}
	for seed := range uint64(16) {
		seen[last(rdna.Shuffled, seed)] = true
	}
	assert.Equal(t, map[uint32]bool{0: true, 64: true}, seen)
}
