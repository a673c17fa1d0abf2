package vk

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
)

// starving holds what a device knows of workgroups that wait for others of their launch.
type starving struct {
	making sync.Mutex
	word   atomic.Pointer[Buffer] // nil before it is asked for
}

// starvedWord is door.StarvedWord.
func (d *Device) starvedWord() (View, error) {
	d.starving.making.Lock()
	defer d.starving.making.Unlock()
	if b := d.starving.word.Load(); b != nil {
		return b.Whole(), nil
	}
	b, err := d.NewBuffer(BufferSpec{Label: "starved", Size: 4, Memory: Readback})
	if err != nil {
		return View{}, err
	}
	clear(b.mapped)
	d.starving.word.Store(b)
	return b.Whole(), nil
}

// Starved reports whether workgroups gave up. Operations whose workgroups would wait for each other
// then record several launches instead. What was recorded before has to be recorded again: it ends
// with ErrStarved, because its results may be wrong.
func (d *Device) Starved() bool { return d != nil && d.starved() != 0 }

// starved is the number of a workgroup that gave up, and 1; 0: none has.
func (d *Device) starved() uint32 {
	b := d.starving.word.Load()
	if b == nil || d.gone.Load() {
		return 0
	}
	return binary.LittleEndian.Uint32(b.mapped)
}

// starvedError says which workgroup gave up.
func (d *Device) starvedError(op string) error {
	return fmt.Errorf("vk: %s: %w: workgroup %d of a launch gave up waiting for others, want all that have begun to go on",
		op, ErrStarved, d.starved()-1)
}

// starves is door.MayStarve.
func (r *Recorder) starves() error {
	if err := r.usable("may starve"); err != nil {
		return err
	}
	r.mayStarve, r.hostRead = true, true
	return nil
}
