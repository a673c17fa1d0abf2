package vk_test

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"testing"

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
	if s, err := plain.Sections(); s != nil || err != nil {
		t.Errorf("sections without timing: %v, %v", s, err)
	}
	if plain.Dispatches() != 5 {
		t.Errorf("%d launches, want 5", plain.Dispatches())
	}
	one := record(t, d, func(r *vk.Recorder) error { return errors.Join(r.TimeWhole(), launches(r)) })
	if err := one.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s, err := one.Sections(); err != nil || len(s) != 1 || s[0].Dispatches != 5 || s[0].Barriers != 4 || !(s[0].NS > 0) {
		t.Errorf("the whole: %v, %v", s, err)
	}
	c := record(t, d, func(r *vk.Recorder) error { return errors.Join(r.TimeSections(), launches(r)) })
	if _, err := c.Sections(); !errors.Is(err, vk.ErrBusy) {
		t.Errorf("sections before a run: %v, want ErrBusy", err)
	}
	if err := c.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	s, err := c.Sections()
	if err != nil {
		t.Fatal(err)
	}
	want := []vk.Section{{Name: "first", Dispatches: 2, Barriers: 1, Waits: []int{1}}, {Name: "second", Dispatches: 1, Barriers: 1, Waits: []int{0}},
		{Name: "", Dispatches: 1, Barriers: 1, Waits: []int{0}}, {Name: "third", Dispatches: 1, Barriers: 1, Waits: []int{0}}, {Name: "nothing"}}
	if len(s) != len(want) {
		t.Fatalf("sections %v, want %v", s, want)
	}
	for i := range s {
		if s[i].Dispatches > 0 && !(s[i].NS > 0) {
			t.Errorf("section %d takes %g ns", i, s[i].NS)
		}
		if s[i].NS = 0; !reflect.DeepEqual(s[i], want[i]) {
			t.Errorf("section %d: %v, want %v", i, s[i], want[i])
		}
	}
}

// Where a submission begins, commands wait for the one before without a barrier.
func TestSectionsOfParts(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	k := copyKernel(t, d)
	a, b := buffer(t, d, 1<<20, vk.DeviceLocal), buffer(t, d, 1<<20, vk.DeviceLocal)
	c := record(t, d, func(r *vk.Recorder) error {
		err := errors.Join(r.SplitEach(), r.TimeSections())
		for i := range uint32(3) {
			err = errors.Join(err, r.Dispatch(addStep(k, b.Whole(), a.Whole(), i)))
		}
		return err
	})
	if err := c.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Sections(); err != nil || len(s) != 1 || s[0].Barriers != 0 || !reflect.DeepEqual(s[0].Waits, []int{1, 2}) {
		t.Errorf("three submissions: %+v, %v", s, err)
	}
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
			err := errors.Join(r.SplitEach(), c.time(r))
			for i := range 8200 {
				if i%100 == 0 {
					r.Section(strconv.Itoa(i))
				}
				err = errors.Join(err, r.Fill(b.View(uint64(i%256)*4, 4), uint32(i)))
			}
			return err
		})
		if n := vk.TimedParts(cmd); n < c.parts {
			t.Errorf("%s: %d parts have a time, want at least %d", name, n, c.parts)
		}
	}
}
