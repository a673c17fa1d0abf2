package indexer

import (
	"slices"

	"github.com/vkmla/vkmla/vk"
)

// topkShape is what a build of idx_topk is specialised for.
type topkShape struct {
	threads, items int // invocations, and entries of each at a time
	held           int // entries in shared memory; 0: rows have no more than threads * items
	bits           int // of a digit of the radix selection
}

// topkTuning is the choice of shapes, best first where there is a choice.
type topkTuning struct {
	short     []topkShape // for rows that fit registers, all that the device can run
	few, many []topkShape // for rows of any length; many rows do better with smaller workgroups, of which two share a compute unit
}

// defaultTuning is the choice for a kind of device. A CPU's invocations have few entries
// each: its compiler takes 15 s for 24 of them, 6 s for 8, and 5 s for 4.
func defaultTuning(t vk.DeviceType) topkTuning {
	rest := []topkShape{{512, 8, 4096, 10}, {256, 16, 3072, 9}, {128, 24, 3072, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8}}
	if t == vk.TypeCPU {
		cpu := []topkShape{{1024, 4, 3072, 8}, {128, 4, 512, 8}, {128, 16, 2048, 9}, {128, 16, 1536, 8}}
		return topkTuning{short: []topkShape{{128, 4, 0, 8}, {128, 16, 0, 8}}, few: cpu, many: cpu}
	}
	return topkTuning{
		short: []topkShape{{1024, 4, 0, 11}, {1024, 8, 0, 11}, {1024, 16, 0, 11}, {1024, 20, 0, 11}, {1024, 32, 0, 11}},
		few:   append([]topkShape{{1024, 8, 4096, 10}}, rest...),
		many:  append([]topkShape{{512, 8, 2048, 10}}, rest...),
	}
}

// entries is how many entries a workgroup loads at a time.
func (s topkShape) entries() int { return s.threads * s.items }

// shared is the shared memory of a workgroup in bytes; see idx_topk.comp.
func (s topkShape) shared() int {
	rows, bins := s.entries()/128, 1<<s.bits
	sums := max(bins/8, rows)
	return s.held*8 + max(bins*8, rows*144) + (sums+(sums+15)/16+rows)*4 + 32
}

func (s topkShape) constants() []uint32 {
	return []uint32{uint32(s.threads), uint32(s.items), uint32(s.held), uint32(s.bits)}
}

// with is the shape with another number of invocations, which load as many entries
// together where one can load that many.
func (s topkShape) with(threads int) topkShape {
	if threads > 0 {
		s.items = min(max(s.entries()/threads&^3, 4), 32)
		s.threads = threads
	}
	for 1<<s.bits > 32*s.threads {
		s.bits--
	}
	return s
}

// fits says whether the device can run the shape.
func (s topkShape) fits(dev *vk.Device) bool {
	c := dev.Caps()
	return s.shared() <= int(c.SharedMemory) && s.threads <= int(c.MaxWorkgroupInvocations)
}

// pickShape returns the best shape that the device can run for a K and rows of any
// length; threads other than 0 are taken as they are.
func pickShape(op string, dev *vk.Device, k, threads int, shapes []topkShape) (topkShape, error) {
	limit := 0
	for _, s := range shapes {
		s = s.with(threads)
		if !s.fits(dev) || s.held > s.entries() {
			continue
		}
		// Room for half as many entries again keeps selections rare.
		largest := s.held * 2 / 3
		if k <= largest {
			return s, nil
		}
		limit = max(limit, largest)
	}
	return topkShape{}, pkg.Wrong(op, "K", k, "1 to %d, for %d invocations with %d bytes of shared memory", min(limit, MaxK), max(threads, 64), dev.Caps().SharedMemory)
}

// shortShapes are the shapes for rows that fit registers which the device can run, one
// for each number of entries, ascending.
func shortShapes(dev *vk.Device, threads int, shapes []topkShape) (all []topkShape) {
	most := int(dev.Caps().MaxWorkgroupInvocations)
	for _, s := range shapes {
		if threads > 0 {
			s = s.with(threads)
		} else if s.threads > most {
			s = s.with(most)
		}
		if s.fits(dev) && !slices.ContainsFunc(all, func(x topkShape) bool { return x.entries() >= s.entries() }) {
			all = append(all, s)
		}
	}
	return all
}
