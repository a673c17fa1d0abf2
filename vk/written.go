package vk

import (
	"slices"
	"sync"
)

// written are the bytes of a tracked buffer that were overwritten.
type written struct {
	mu     sync.Mutex
	ranges ranges
}

// ranges are in ascending order and do not touch.
type ranges []byteRange

type byteRange struct{ first, end uint64 }

func (v View) bytes() byteRange { return byteRange{v.Offset, v.Offset + v.Size} }

// add joins a range with those that it touches.
func (l *ranges) add(r byteRange) {
	from, _ := slices.BinarySearchFunc(*l, r.first, func(x byteRange, first uint64) int {
		if x.end < first {
			return -1
		}
		return 1
	})
	to := from
	for ; to < len(*l) && (*l)[to].first <= r.end; to++ {
		r = byteRange{min(r.first, (*l)[to].first), max(r.end, (*l)[to].end)}
	}
	*l = slices.Replace(*l, from, to, r)
}

// cover reports whether all bytes of a range are in the list.
func (l ranges) cover(r byteRange) bool {
	return slices.ContainsFunc(l, func(x byteRange) bool { return x.first <= r.first && r.end <= x.end })
}

// track is door.Track.
func (b *Buffer) track() {
	b.tracked.CompareAndSwap(nil, &written{})
	w := b.tracked.Load()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ranges = w.ranges[:0]
}

// isOverwritten is door.Overwritten.
func (v View) isOverwritten() bool {
	w := v.Buffer.tracked.Load()
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ranges.cover(v.bytes())
}

// overwrite notes an access to a tracked buffer, one of some by the same command.
func (r *Recorder) overwrite(u use, all []use) {
	if u.access != Write || u.view.Buffer.tracked.Load() == nil {
		return
	}
	for _, x := range all {
		if x.access&Read != 0 && x.view.overlaps(u.view) {
			return
		}
	}
	if r.writes == nil {
		r.writes = map[*Buffer]ranges{}
	}
	l := r.writes[u.view.Buffer]
	l.add(u.view.bytes())
	r.writes[u.view.Buffer] = l
}

// overwrittenByHost notes that the host wrote the view's bytes.
func (b *Buffer) overwrittenByHost(v View) {
	if w := b.tracked.Load(); w != nil {
		w.mu.Lock()
		w.ranges.add(v.bytes())
		w.mu.Unlock()
	}
}

// overwritten notes that commands were submitted.
func (r *Recorder) overwritten() {
	for b, l := range r.writes {
		w := b.tracked.Load()
		w.mu.Lock()
		for _, x := range l {
			w.ranges.add(x)
		}
		w.mu.Unlock()
	}
}
