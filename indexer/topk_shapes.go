package indexer

import (
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// topkShape holds the sizes that a build of idx_topk is specialised for.
type topkShape tuning.TopKShape

// entries returns the number of entries that a workgroup loads at a time.
func (s topkShape) entries() int { return s.Threads * s.Items }

// shared is the shared memory of a workgroup in bytes; see idx_topk.comp.
func (s topkShape) shared() int {
	rows, bins := s.entries()/128, 1<<s.Bits
	sums := max(bins/8, rows)
	return s.Held*8 + max(bins*8, rows*144) + (sums+(sums+15)/16+rows)*4 + 32
}

func (s topkShape) constants() []uint32 {
	return []uint32{uint32(s.Threads), uint32(s.Items), uint32(s.Held), uint32(s.Bits)}
}

// with is the shape with another number of invocations, which together load as many entries if an
// invocation can load its share.
func (s topkShape) with(threads int) topkShape {
	if threads > 0 {
		s.Items = min(max(s.entries()/threads&^3, 4), 32)
		s.Threads = threads
	}
	for 1<<s.Bits > 32*s.Threads {
		s.Bits--
	}
	return s
}

// fits says whether the device can run the shape.
func (s topkShape) fits(c *vk.Caps) bool {
	return s.shared() <= int(c.SharedMemory) && s.Threads <= int(c.MaxWorkgroupInvocations)
}

// pickShape returns the best shape that the device can run for a K and rows of any length, with
// 1/spareShare of Held free; threads other than 0 are taken as they are. Where the device can run
// none that has room for K, it returns the last one that has, whose kernel the device refuses.
func pickShape(op string, c *vk.Caps, k, threads, spareShare int, shapes []tuning.TopKShape) (topkShape, error) {
	var last topkShape
	limit := 0
	for _, x := range shapes {
		s := topkShape(x).with(threads)
		largest := s.Held - opkit.CeilDiv(s.Held, spareShare)
		switch {
		case s.Held > s.entries():
		case k > largest:
			limit = max(limit, largest)
		case s.fits(c):
			return s, nil
		default:
			last = s
		}
	}
	if last.Held > 0 {
		return last, nil
	}
	return last, pkg.Wrong(op, "K", k, "1 to %d, for %d invocations", min(limit, MaxK), threads)
}

// shortShapes are the shapes for rows that fit registers which the device can run, one
// for each number of entries, ascending.
func shortShapes(c *vk.Caps, threads int, shapes []tuning.TopKShape) (all []topkShape) {
	most := int(c.MaxWorkgroupInvocations)
	for _, x := range shapes {
		s := topkShape(x)
		if threads > 0 {
			s = s.with(threads)
		} else if s.Threads > most {
			s = s.with(most)
		}
		if s.fits(c) && !slices.ContainsFunc(all, func(x topkShape) bool { return x.entries() >= s.entries() }) {
			all = append(all, s)
		}
	}
	return all
}
