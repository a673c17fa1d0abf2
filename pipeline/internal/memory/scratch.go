package memory

import (
	"cmp"
	"slices"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Use says when memory is in use, a bit for each of the times that a user tells apart.
type Use uint8

// Always is memory that is never free.
const Always = ^Use(0)

// Scratch is memory of tensors that are not all in use at a time, in one buffer. Tensors of one
// name have one place. Names with a use in common have places that do not overlap; others may share
// bytes. The zero Scratch is empty.
//
// Tensors have shapes from the moment they are added, and memory once there is a buffer: see Place.
type Scratch struct {
	// Enter, unless nil, is called with what is about to be in use, 0 for nothing. Tests fill what
	// is idle then.
	Enter func(rec *vk.Recorder, now Use) error

	places []*place
	list   []placed
	bytes  uint64 // of all places; 0 while they are not arranged
}

// place is the memory of a name.
type place struct {
	name     string
	use      Use
	size, at uint64
}

type placed struct {
	want
	at *place
}

// Add wants a tensor. The place of its name is as large as the largest tensor of it.
func (s *Scratch) Add(name string, use Use, to *tensor.Tensor, dt tensor.DType, shape ...int) {
	i := slices.IndexFunc(s.places, func(p *place) bool { return p.name == name })
	if i < 0 {
		i = len(s.places)
		s.places = append(s.places, &place{name: name})
	}
	p := s.places[i]
	p.use, p.size, s.bytes = p.use|use, max(p.size, tensor.Need(dt, shape...)), 0
	*to = tensor.Tensor{DType: dt, Shape: slices.Clone(shape)}
	s.list = append(s.list, placed{want{to, dt, to.Shape}, p})
}

// arrange gives each name the lowest place that is free of those with a use in common, the largest
// first.
func (s *Scratch) arrange() {
	slices.SortStableFunc(s.places, func(p, q *place) int { return cmp.Compare(q.size, p.size) })
	for i, p := range s.places {
		var taken []*place
		for _, q := range s.places[:i] {
			if q.use&p.use != 0 {
				taken = append(taken, q)
			}
		}
		slices.SortFunc(taken, func(q, r *place) int { return cmp.Compare(q.at, r.at) })
		p.at = 0
		for _, q := range taken {
			if p.at+p.size <= q.at {
				break
			}
			p.at = max(p.at, q.at+q.size)
		}
		s.bytes = max(s.bytes, p.at+p.size)
	}
}

// Bytes returns the size of a buffer of all tensors.
func (s *Scratch) Bytes() uint64 {
	if s.bytes == 0 {
		s.arrange()
	}
	return s.bytes
}

// Keep keeps all places apart, for tests that look at what operations left.
func (s *Scratch) Keep() {
	for _, p := range s.places {
		p.use = Always
	}
	s.bytes = 0
}

// Place gives the tensors their memory: a buffer of Bytes or more. A later call moves them to
// another one; what was recorded with them is then to be recorded again.
func (s *Scratch) Place(b *vk.Buffer) {
	s.Bytes()
	for _, x := range s.list {
		*x.to = tensor.Of(b.View(x.at.at, x.at.size), x.dt, x.shape...)
	}
}

// Idle returns the ranges of bytes, from the first to before the second, without a tensor in use.
func (s *Scratch) Idle(now Use) (ranges [][2]uint64) {
	end := s.Bytes()
	places := slices.SortedFunc(slices.Values(s.places), func(p, q *place) int { return cmp.Compare(p.at, q.at) })
	free := uint64(0)
	for _, p := range append(places, &place{at: end, use: Always}) {
		if p.use&now == 0 && p.use != Always {
			continue
		}
		if p.at > free {
			ranges = append(ranges, [2]uint64{free, p.at})
		}
		free = max(free, p.at+p.size)
	}
	return ranges
}

// Fits is that of List.
func (s *Scratch) Fits(op string, c *vk.Caps) error {
	for _, x := range s.list {
		if err := x.fits(op, c); err != nil {
			return err
		}
	}
	return bufferFits(op, len(s.list), s.Bytes(), c)
}
