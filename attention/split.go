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

// Costs of the rule below, in tiles of the build with the most heads per workgroup. They were fitted to the table of
// docs/design/decode.md ("How work is divided"), of one H100; tiling.Code to whole steps.
const (
	planStart   = 3.0  // of a workgroup: it is launched, finds its rows, and ends
	planHeads   = 4.0  // of one with the most heads: it loads its queries and gives up its output
	planTraffic = 5.0  // queries and output of as many heads as fill the device, once more where they are parts
	planJoin    = 3.0  // the launch that joins parts
	planSpill   = 12.0 // parts of as many heads as fill the device, beyond the first so many: they leave the cache before they are joined
)

// planWaves is how often parts may fill the device. One and a third times as many workgroups as find room, whole rows
// each, take twice as long as one; cut in three they take four thirds, and a little. With more waves there is less to
// gain than what workgroups do besides their tiles costs, and parts take more scratch memory.
const planWaves = 4

// plan picks a build and a number of parts for t tokens with rows of at most width entries. Few tokens leave compute
// units idle; then rows are split, and workgroups are given fewer heads, which shortens their tiles, though never in
// proportion, because each of them dequantises the rows anew. The estimate for a build of h heads per workgroup:
//
//	waves of workgroups * (planStart + planHeads*h/hmax + tiles of a part * tiling.cost)
//	  + planTraffic * traffic + (planJoin + planSpill * (traffic - 1, if more than 0), if rows are split) + tiling.Code
//
// with traffic the heads of all workgroups / heads that fill the device.
//
// The smallest wins, builds with more heads and fewer parts first. Parts have minSplitRows rows at least, and no more
// workgroups than fill the device planWaves times. A number of parts that was given stays. It depends on sizes that are fixed when
// commands are recorded, never on lengths in device memory, so a recording gives the same bits every time.
func (s splitter) plan(t, width int) plan {
	best, least := plan{splits: 1}, math.Inf(1)
	most := s.tilings[0]
	for i, x := range s.tilings {
		groups, tiles := t*opkit.CeilDiv(s.heads, x.HeadsPerGroup), opkit.CeilDiv(width, x.Tile)
		room := s.workgroups * max(x.PerUnit, 1)
		share := float64(x.HeadsPerGroup) / float64(most.HeadsPerGroup)
		tile := x.cost(most)
		estimate := func(n int) {
			waves := float64(opkit.CeilDiv(groups*n, room))
			traffic := share * float64(groups*n) / float64(room)
			cost := x.Code + waves*(planStart+planHeads*share+float64(opkit.CeilDiv(tiles, n))*tile) + planTraffic*traffic
			if n > 1 {
				cost += planJoin + planSpill*max(0, traffic-1)
			}
			if cost < least {
				best, least = plan{i, n}, cost
			}
		}
		if s.fixed > 0 {
			estimate(s.fixed)
			continue
		}
		limit := min(MaxSplits, planWaves*room/max(groups, 1), tiles/opkit.CeilDiv(minSplitRows, x.Tile))
		for n := 1; ; {
			estimate(n)
			// The next number of parts of fewer tiles, none of them empty.
			each := opkit.CeilDiv(tiles, n) - 1
			if each < 1 {
				break
			}
			if n = opkit.CeilDiv(tiles, each); n > limit {
				break
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
	// From so many tokens on two parts of each are more workgroups than planWaves, of any build.
	for t := 1; t <= min(maxT, planWaves*s.workgroups*s.perUnit()/2); t++ {
		if n := s.splits(t, width); n > 1 {
			most = max(most, partialBytes(t, n, s.heads))
		}
	}
	return most
}

// perUnit is how many workgroups a compute unit has room for, of the build with the smallest ones.
func (s splitter) perUnit() int {
	most := 1
	for _, x := range s.tilings {
		most = max(most, x.PerUnit)
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
