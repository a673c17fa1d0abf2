package vk_test

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

func TestSections(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	k := copyKernel(t, d)
	a, b := buffer(t, d, 1<<20, vk.DeviceLocal), buffer(t, d, 1<<20, vk.DeviceLocal)
	launches := func(r *vk.Recorder) error {
		var err error
		for i, name := range []string{"first", "first", "second", "", "third"} {
			if name == "second" {
				r.Section("left out") // for there is nothing in it
			}
			r.Section(name)
			err = errors.Join(err, r.Dispatch(addStep(k, b.Whole(), a.Whole(), uint32(i))))
		}
		r.Section("nothing") // is recorded in it
		return err
	}
	plain := record(t, d, launches)
	s, err := plain.Sections()
	assert.Nil(t, s, "sections without timing")
	assert.NoError(t, err, "sections without timing")
	assert.Equal(t, 5, plain.Dispatches(), "launches")
	one := record(t, d, func(r *vk.Recorder) error { return errors.Join(r.TimeWhole(), launches(r)) })
	require.NoError(t, one.Run(context.Background()))
	s, err = one.Sections()
	require.NoError(t, err, "the whole: %v", s)
	assert.True(t, len(s) == 1 && s[0].Dispatches == 5 && s[0].Barriers == 4 && s[0].NS > 0, "the whole: %v", s)
	c := record(t, d, func(r *vk.Recorder) error { return errors.Join(r.TimeSections(), launches(r)) })
	_, err = c.Sections()
	assert.ErrorIs(t, err, vk.ErrBusy, "sections before a run")
	require.NoError(t, c.Run(context.Background()))
	s, err = c.Sections()
	require.NoError(t, err)
	want := []vk.Section{{Name: "first", Dispatches: 2, Barriers: 1, Waits: []int{1}}, {Name: "second", Dispatches: 1, Barriers: 1, Waits: []int{0}},
		{Name: "", Dispatches: 1, Barriers: 1, Waits: []int{0}}, {Name: "third", Dispatches: 1, Barriers: 1, Waits: []int{0}}, {Name: "nothing"}}
	require.Len(t, s, len(want), "sections, want %v", want)
	for i := range s {
		assert.False(t, s[i].Dispatches > 0 && !(s[i].NS > 0), "section %d takes %g ns", i, s[i].NS)
		s[i].NS = 0
		assert.Equal(t, want[i], s[i], "section %d", i)
	}
}

// Where a submission begins, commands wait for the one before without a barrier.
func TestSectionsOfParts(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	k := copyKernel(t, d)
	a, b := buffer(t, d, 1<<20, vk.DeviceLocal), buffer(t, d, 1<<20, vk.DeviceLocal)
	c := record(t, d, func(r *vk.Recorder) error {
		err := errors.Join(r.Split(vk.Split{Each: true}), r.TimeSections())
		for i := range uint32(3) {
			err = errors.Join(err, r.Dispatch(addStep(k, b.Whole(), a.Whole(), i)))
		}
		return err
	})
	require.NoError(t, c.Run(context.Background()))
	s, err := c.Sections()
	require.NoError(t, err, "three submissions: %+v", s)
	assert.True(t, len(s) == 1 && s[0].Barriers == 0 && reflect.DeepEqual(s[0].Waits, []int{1, 2}),
		"three submissions: %+v", s)
}

// Sections keep their timestamps when parts outnumber timestamps.
func TestSectionsOfManyParts(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	b := buffer(t, d, 1<<10, vk.DeviceLocal)
	for name, c := range map[string]struct {
		time  func(*vk.Recorder) error
		parts int // that have a time
	}{
		"whole":    {(*vk.Recorder).TimeWhole, 8192 - 3},
		"sections": {(*vk.Recorder).TimeSections, 4000},
	} {
		cmd := record(t, d, func(r *vk.Recorder) error {
			err := errors.Join(r.Split(vk.Split{Each: true}), c.time(r))
			for i := range 8200 {
				if i%100 == 0 {
					r.Section(strconv.Itoa(i))
				}
				err = errors.Join(err, r.Fill(b.View(uint64(i%256)*4, 4), uint32(i)))
			}
			return err
		})
		assert.GreaterOrEqual(t, vk.TimedParts(cmd), c.parts, "%s: parts have a time, want at least", name)
	}
}
