package attention

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// MaxSplits is the largest number of parts that one row can be split into.
const MaxSplits = 128

// minSplitRows is the fewest rows of cache that are worth a part of their own:
// below it a part's fixed cost (loading q, storing and merging 2 KiB of partial
// output per head) exceeds its work.
const minSplitRows = 32

// DefaultWorkgroups estimates how many workgroups fill a device, from its type
// alone, because Vulkan does not tell the number of compute units: 128 for a
// discrete or virtual GPU (an H100 has 132 multiprocessors, and one workgroup too
// many costs a whole wave), 32 for an integrated GPU or an unknown device, 8 for a
// CPU.
func DefaultWorkgroups(t vk.DeviceType) int {
	switch t {
	case vk.TypeDiscrete, vk.TypeVirtual:
		return 128
	case vk.TypeCPU:
		return 8
	}
	return 32
}

// splitCount says into how many parts the rows of every token are split, so that
// few tokens still fill the device: as many as fit into the wanted number of
// workgroups, given groups workgroups without splitting, but each with at least
// minTiles tiles, and none without any when all tiles are in use.
//
// It depends on sizes that are fixed when commands are recorded, never on lengths
// in device memory, so a recording gives the same bits every time.
func splitCount(groups, tiles, workgroups, minTiles int) int {
	n := min(workgroups/max(groups, 1), tiles/max(minTiles, 1), MaxSplits)
	if n <= 1 {
		return 1
	}
	return opkit.CeilDiv(tiles, opkit.CeilDiv(tiles, n))
}

// splitter is what decode and prefill need to divide their work into workgroups.
type splitter struct {
	heads      int
	tilings    []tiling // of the builds at hand, the one with the most heads per workgroup first
	fixed      int      // parts of a row; 0: by rule
	workgroups int
}

// plan is how a launch is divided.
type plan struct {
	build  int // index of the tiling
	splits int // parts of each row
}

// Costs of the rule below, in tiles of a workgroup of its device's largest kind. They were chosen to agree with
// the tables of docs/design/decode.md, of one H100.
const (
	planOverhead = 4 // what a workgroup does besides its tiles: find rows, load q, write its output
	planMerge    = 3 // another launch that waits for this one, and the parts' way through memory
)

// plan picks a build and a number of parts for t tokens with rows of at most width entries. Few tokens leave compute
// units idle; then rows are split, and workgroups are given fewer heads, which shortens their tiles, though never
// in proportion, because each of them dequantises the rows anew. The estimate for a build of h heads per workgroup:
//
//	waves of workgroups * (tiles of a part + planOverhead) * (1 + h/hmax) + planMerge*2 if rows are split
//
// The smallest wins, builds with more heads and fewer parts first. A number of parts that was given stays. It depends on sizes that are fixed when commands
// are recorded, never on lengths in device memory, so a recording gives the same bits every time.
func (s splitter) plan(t, width int) plan {
	best, least := plan{splits: 1}, math.Inf(1)
	for i, x := range s.tilings {
		groups, tiles := t*opkit.CeilDiv(s.heads, x.HeadsPerGroup), opkit.CeilDiv(width, x.Tile)
		room := s.workgroups * max(x.PerUnit, 1)
		weight := 1 + float64(x.HeadsPerGroup)/float64(s.tilings[0].HeadsPerGroup)
		parts := []int{1, splitCount(groups, tiles, room, opkit.CeilDiv(minSplitRows, x.Tile))}
		if s.fixed > 0 {
			parts = []int{s.fixed}
		}
		for _, n := range parts {
			cost := float64(opkit.CeilDiv(groups*n, room)*(opkit.CeilDiv(tiles, n)+planOverhead)) * weight
			if n > 1 {
				cost += 2 * planMerge
			}
			if cost < least {
				best, least = plan{i, n}, cost
			}
		}
	}
	return best
}

// splits is the number of parts for t tokens with rows of at most width entries.
func (s splitter) splits(t, width int) int { return s.plan(t, width).splits }

// scratchBytes is what the partial rows of up to maxT tokens need, 0 if nothing is
// split.
func (s splitter) scratchBytes(maxT, width int) uint64 {
	if s.fixed > 1 {
		return partialBytes(maxT, s.fixed, s.heads)
	}
	var most uint64
	// From so many tokens on every build has a workgroup for each place, and rows stay whole.
	for t := 1; t <= min(maxT, s.workgroups*2); t++ {
		if n := s.splits(t, width); n > 1 {
			most = max(most, partialBytes(t, n, s.heads))
		}
	}
	return most
}

// partialBytes is the size of part_ml and part_out: for each token, part and head
// 16 bytes, rounded up so that the second array is aligned, and 512 f32.
func partialBytes(t, splits, heads int) uint64 {
	n := uint64(t) * uint64(splits) * uint64(heads)
	return align(n*16) + n*D*4
}

// align rounds up to 256 bytes, the coarsest storage-buffer alignment that Vulkan
// permits.
func align(n uint64) uint64 { return (n + 255) &^ 255 }

// partials divides scratch memory into part_ml and part_out; without splits both
// are the dummy.
func partials(dev *vk.Device, op string, scratch vk.View, t, splits, heads int) (ml, out vk.View, err error) {
	if splits == 1 {
		return dev.Dummy(), dev.Dummy(), nil
	}
	need := partialBytes(t, splits, heads)
	if scratch.IsZero() || scratch.Size < need || scratch.Offset%256 != 0 {
		return ml, out, pkg.Wrong(op, "Scratch", scratch, "%d bytes at a multiple of 256", need)
	}
	n := uint64(t) * uint64(splits) * uint64(heads)
	ml = scratch.Buffer.View(scratch.Offset, n*16)
	out = scratch.Buffer.View(scratch.Offset+align(n*16), n*D*4)
	return ml, out, nil
}
