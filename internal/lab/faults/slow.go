//go:build linux

package faults

import (
	"sync/atomic"
	"time"
)

// slow is the interposer's struct slow.
type slow struct {
	group, held, count, pieces atomic.Uint32
	longest                    atomic.Uint64
}

// Slow lets each workgroup of a kernel that can be divided, recorded from now on, take so long, one
// after the other, and those of other kernels a 64th, by the device's timestamps; 0: as long as
// they do. Held fences are signalled no sooner either: without them no caller has to wait as long
// as for a slow device.
func (x *Interposer) Slow(workgroup time.Duration, held bool) {
	s := &x.ctl.slow
	s.held.Store(0)
	if held {
		s.held.Store(1)
	}
	s.group.Store(uint32(workgroup))
	x.Took()
}

// Took returns how long the longest submission took since Slow, or the last time that it was asked,
// how many there were, and how many pieces of launches they had after the first of each launch that
// was recorded meanwhile.
func (x *Interposer) Took() (longest time.Duration, submissions, pieces int) {
	s := &x.ctl.slow
	return time.Duration(s.longest.Swap(0)), int(s.count.Swap(0)), int(s.pieces.Swap(0))
}
