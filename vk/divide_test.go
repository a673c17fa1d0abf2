package vk_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// A launch gives the same result in any number of pieces.
func TestDivide(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	s, err := shaders.Get("num_formats")
	require.NoError(t, err)
	k, err := d.Kernel(vk.KernelSpec{Name: s.Name, SPIRV: s.SPIRV, Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 16, Divisible: true})
	require.NoError(t, err)
	counting := copyKernel(t, d) // reads how many workgroups there are along x
	const groups, count = 101, 101*64 - 3
	in, out := buffer(t, d, groups*64*4, vk.Upload), buffer(t, d, groups*64*4, vk.Readback)
	a, b := buffer(t, d, groups*64*4, vk.DeviceLocal), buffer(t, d, groups*64*4, vk.DeviceLocal)
	copy(in.Mapped(), words(groups*64, func(i int) uint32 { return uint32(i + 1) }))
	type push struct {
		count, mode uint32
		_           [2]uint32 // of other modes
	}
	p := push{count: count, mode: 1} // bf16_decode: 16 bits to the left
	want := append(words(count, func(i int) uint32 { return (uint32(i+1) + 3) << 16 }), bytes.Repeat([]byte{7, 0, 0, 0}, 3)...)
	for _, c := range []struct {
		name   string
		split  func(r *vk.Recorder) error
		starts []int // operations with which parts begin
	}{
		{"not divided", func(r *vk.Recorder) error { return r.Split(vk.Split{Each: true}) }, []int{0, 1, 2, 3, 4}},
		{"by its work", func(r *vk.Recorder) error {
			return r.Split(vk.Split{Each: true, Count: func(w vk.Work) int { return int(w.Products) / 10 }})
		}, []int{0, 1, 2, 3, 3, 3, 4}},
		{"by numbers", func(r *vk.Recorder) error {
			return errors.Join(r.Split(vk.Split{Before: []int{2, 4}, Of: map[int]int{0: 3, 2: 9, 3: 4, 9: 2}}), r.TimeSections())
		}, []int{0, 2, 3, 3, 3, 4}},
		{"most", func(r *vk.Recorder) error {
			return r.Split(vk.Split{Before: []int{3, 4}, Of: map[int]int{3: 1 << 20}})
		}, append(append([]int{0}, slices.Repeat([]int{3}, vk.MaxPieces)...), 4)},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := record(t, d, func(r *vk.Recorder) error {
				return errors.Join(c.split(r), r.Fill(b.Whole(), 7), r.Copy(a.Whole(), in.Whole()),
					r.Dispatch(addStep(counting, a.Whole(), in.Whole(), 3)),
					r.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{groups, 1, 1}, Bind: []vk.View{a.Whole(), b.Whole()}, Push: vk.Bytes(&p), Products: 30}),
					r.Copy(out.Whole(), b.Whole()))
			})
			for range 2 {
				clear(out.Mapped())
				require.NoError(t, cmd.Run(ctx))
				require.True(t, bytes.Equal(out.Mapped(), want), "wrong result")
			}
			var starts []int
			products, moved := 0.0, uint64(0)
			for _, part := range cmd.Division() {
				starts = append(starts, part.First)
				products += part.Work.Products
				moved += part.Work.Bytes
				assert.Equal(t, part.First == 3 && len(c.starts) < vk.MaxPieces || part.Operations > 1, part.Divisible,
					"%+v", part)
			}
			assert.InDelta(t, 30, products, 1e-9)
			assert.InDelta(t, 4*groups*64*4, moved, vk.MaxPieces, "of two launches with two buffers each")
			assert.True(t, slices.Equal(starts, c.starts), "parts begin with operations %v, want %v", starts, c.starts)
			times, err := cmd.PartTimes()
			assert.NoError(t, err, "times %v", times)
			assert.Equal(t, len(starts), len(times), "times %v", times)
			require.Equal(t, 2, cmd.Dispatches())
			assert.Equal(t, 5, door.Operations(cmd))
		})
	}
	bad := record(t, d, func(r *vk.Recorder) error {
		for _, of := range []map[int]int{{-1: 1}, {1: 0}} {
			assert.ErrorIs(t, r.Split(vk.Split{Each: true, Of: of}), vk.ErrArgument, "%v", of)
		}
		return r.Fill(b.Whole(), 7)
	})
	assert.NoError(t, bad.Run(ctx))
}
