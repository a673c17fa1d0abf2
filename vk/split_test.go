package vk_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/vk"
)

// A recording gives the same results in any number of parts.
func TestSplit(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	k := copyKernel(t, d)
	const size = 1 << 16
	in, out := buffer(t, d, size, vk.Upload), buffer(t, d, size, vk.Readback)
	a, b := buffer(t, d, size, vk.DeviceLocal), buffer(t, d, size, vk.DeviceLocal)
	copy(in.Mapped(), words(size/4, func(i int) uint32 { return uint32(i) }))
	launches := func(r *vk.Recorder) error { // 9 operations, each needs the one before
		err := errors.Join(r.Fill(b.Whole(), 7), r.Copy(a.Whole(), in.Whole()))
		for i := range uint32(3) {
			r.Section("pair")
			err = errors.Join(err, r.Dispatch(addStep(k, b.Whole(), a.Whole(), i)), r.Dispatch(addStep(k, a.Whole(), b.Whole(), 10*i)))
		}
		return errors.Join(err, r.Copy(out.Whole(), a.Whole()))
	}
	want := words(size/4, func(i int) uint32 { return uint32(i) + 33 })
	for _, c := range []struct {
		name  string
		split func(r *vk.Recorder) error
		parts int
		timed bool
	}{
		{"whole", func(*vk.Recorder) error { return nil }, 1, false},
		{"one part", func(r *vk.Recorder) error { return r.Split(vk.Split{}) }, 1, true},
		{"parts", func(r *vk.Recorder) error { return r.Split(vk.Split{Before: []int{3, 4, 8, 99}}) }, 4, true},
		{"each", func(r *vk.Recorder) error { return r.Split(vk.Split{Each: true}) }, 9, true},
		{"each, with sections", func(r *vk.Recorder) error { return errors.Join(r.Split(vk.Split{Each: true}), r.TimeSections()) }, 9, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := record(t, d, func(r *vk.Recorder) error { return errors.Join(c.split(r), launches(r)) })
			for range 2 {
				clear(out.Mapped())
				require.NoError(t, cmd.Run(ctx))
				require.True(t, bytes.Equal(out.Mapped(), want), "wrong result")
			}
			assert.Equal(t, c.parts, cmd.Parts(), "parts")
			times, err := cmd.PartTimes()
			require.NoError(t, err, "times %v", times)
			assert.False(t, c.timed != (len(times) == c.parts) || !c.timed && times != nil, "times %v", times)
			for _, ns := range times {
				if ns < 0 {
					t.Errorf("a part takes %g ns", ns)
				}
			}
			assert.Equal(t, 6, cmd.Dispatches(), "launches")
			s, err := cmd.Sections()
			require.NoError(t, err, "sections %v", s)
			assert.False(t, len(s) > 0 && s[len(s)-1].Name != "pair", "sections %v", s)
		})
	}
	late := record(t, d, func(r *vk.Recorder) error {
		if err := launches(r); err != nil {
			return err
		}
		assert.ErrorIs(t, r.Split(vk.Split{Each: true}), vk.ErrArgument, "split after the first command")
		return nil
	})
	assert.NoError(t, late.Run(ctx))
}

// Parts beyond the last timestamp have no time.
func TestSplitWithoutTimestamps(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	b := buffer(t, d, 1<<10, vk.DeviceLocal)
	const n = 8200
	cmd := record(t, d, func(r *vk.Recorder) error {
		err := r.Split(vk.Split{Each: true})
		for i := range n {
			if err == nil {
				err = r.Fill(b.View(uint64(i%256)*4, 4), uint32(i))
			}
		}
		return err
	})
	require.NoError(t, cmd.Run(ctx))
	times, err := cmd.PartTimes()
	require.NoError(t, err)
	require.Equal(t, n, len(times))
	for i, ns := range times {
		if none := i >= 8191; none != (ns < 0) {
			t.Fatalf("operation %d took %g ns", i, ns)
		}
	}
}

// Independent launches wait for each other only when the recorder is told to separate them.
func TestSeparate(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	k := copyKernel(t, d)
	a, b := buffer(t, d, 1<<12, vk.DeviceLocal), buffer(t, d, 1<<12, vk.DeviceLocal)
	in := buffer(t, d, 1<<12, vk.DeviceLocal)
	for _, separate := range []bool{false, true} {
		c := record(t, d, func(r *vk.Recorder) error {
			var err error
			if separate { // nothing to wait for yet
				err = door.Separate(r)
			}
			err = errors.Join(err, r.Dispatch(addStep(k, a.Whole(), in.Whole(), 1)))
			if separate {
				err = errors.Join(err, door.Separate(r), door.Separate(r))
			}
			return errors.Join(err, r.Dispatch(addStep(k, b.Whole(), in.Whole(), 1)))
		})
		assert.Equal(t, map[bool]int{true: 1}[separate], c.Barriers(), "barriers")
	}
}
