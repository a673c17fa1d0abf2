package attention

import (
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// MaxSplits is the largest number of parts that one row can be split into.
const MaxSplits = 128

// splitter divides the work of decode and prefill into workgroups.
type splitter struct {
	tune       *tuning.Attention
	heads      int
	tilings    []tiling // of the builds at hand, the one with the most heads per workgroup first
	fixed      int      // parts of a row; 0: by rule
	invariant  bool     // the number of tokens decides nothing: see piece
	workgroups int      // that fill the device, one on each unit
}

// plan describes the division of a launch.
type plan struct {
	build  int // index of the tiling
	splits int // parts of each row
}

// plan picks a build and a number of parts for t tokens with rows of at most width entries.
//
// Few tokens leave compute units idle. Then rows are split, or workgroups are given fewer heads,
// which shortens their tiles, though never in proportion: each of them decodes the rows anew.
// The smallest estimate wins, builds with more heads and fewer parts first. For h heads of at
// most hmax it is
//
//	waves of workgroups * (StartTime + HeadsTime*h/hmax + tiles of a part * cost of a tile)
//	  + TrafficTime*traffic + cost of its code
//	  + JoinTime + SpillTime*(traffic - 1, if more than 0)       where rows are split
//
// with traffic the heads of all workgroups / heads that fill the device.
//
// A part has MinPartRows rows at least, and parts fill the device at most Waves times. A number
// of parts that was given stays. The plan depends on sizes that are fixed when commands are
// recorded, never on lengths in device memory, so a recording gives the same bits every time. With
// DecoderConfig.Invariant it is that for InvariantTokens tokens.
func (s splitter) plan(t, width int) plan {
	if s.invariant {
		t = s.tune.InvariantTokens
	}
	best, least := plan{splits: 1}, math.Inf(1)
	for i, x := range s.tilings {
		consider := func(parts int) {
			if time := s.estimate(x, t, width, parts); time < least {
				best, least = plan{i, parts}, time
			}
		}
		if s.fixed > 0 {
			consider(s.fixed)
			continue
		}
		groups, tiles := t*opkit.CeilDiv(s.heads, x.heads), opkit.CeilDiv(width, x.tile)
		limit := min(MaxSplits, s.tune.Waves*s.room(x)/max(groups, 1), tiles/opkit.CeilDiv(s.tune.MinPartRows, x.tile))
		for parts := 1; ; {
			consider(parts)
			// The next number of parts of fewer tiles, none of them empty.
			each := opkit.CeilDiv(tiles, parts) - 1
			if each < 1 {
				break
			}
			if parts = opkit.CeilDiv(tiles, each); parts > limit {
				break
			}
		}
	}
	return best
}

// estimate returns the time of a launch of rows in `parts` parts, in the unit of tuning.Attention.
func (s splitter) estimate(x tiling, t, width, parts int) float64 {
	workgroups := t * opkit.CeilDiv(s.heads, x.heads) * parts
	waves := float64(opkit.CeilDiv(workgroups, s.room(x)))
	share := float64(x.heads) / float64(s.tilings[0].heads)
	traffic := share * float64(workgroups) / float64(s.room(x))
	tiles := opkit.CeilDiv(opkit.CeilDiv(width, x.tile), parts)
	time := x.code + waves*(tuning.StartTime+tuning.HeadsTime*share+float64(tiles)*x.cost) + s.tune.TrafficTime*traffic
	if parts > 1 {
		time += tuning.JoinTime + tuning.SpillTime*max(0, traffic-1)
	}
	return time
}

// room returns the number of workgroups that fill the device.
func (s splitter) room(x tiling) int { return s.workgroups * max(x.perUnit, 1) }

// splits is the number of parts for t tokens with rows of at most width entries.
func (s splitter) splits(t, width int) int { return s.plan(t, width).splits }

// scratchBytes returns the bytes that the partial rows of up to maxT tokens need, 0 if nothing is
// split.
func (s splitter) scratchBytes(maxT, width int) uint64 {
	switch {
	case s.invariant:
		p := s.plan(maxT, width)
		if p.splits == 1 {
			return 0
		}
		return partialBytes(min(maxT, s.piece(p)), p.splits, s.heads)
	case s.fixed > 1:
		return partialBytes(maxT, s.fixed, s.heads)
	}
	var most uint64
	// With more tokens even two parts exceed Waves, so nothing is split.
	for t := 1; t <= min(maxT, s.tune.Waves*s.mostRoom()/2); t++ {
		if n := s.splits(t, width); n > 1 {
			most = max(most, partialBytes(t, n, s.heads))
		}
	}
	return most
}

// mostRoom returns the number of workgroups that fill the device, for the build with the smallest.
func (s splitter) mostRoom() (most int) {
	for _, x := range s.tilings {
		most = max(most, s.room(x))
	}
	return most
}

// partialBytes is the size of part_ml and part_out: for each token, part and head 16 bytes,
// rounded up so that the second array is aligned, and 512 f32.
func partialBytes(t, splits, heads int) uint64 {
	n := uint64(t) * uint64(splits) * uint64(heads)
	return align(n*16) + n*cache.D*4
}

// align rounds up to 256 bytes, the coarsest storage-buffer alignment that Vulkan permits.
func align(n uint64) uint64 { return (n + 255) &^ 255 }

// partials divides scratch memory into part_ml and part_out. Without splits dst stands in for both.
func partials(op string, scratch, dst vk.View, t, splits, heads int) (ml, out vk.View, err error) {
	if splits == 1 {
		return dst, dst, nil
	}
	need := partialBytes(t, splits, heads)
	if scratch.IsZero() || scratch.Size < need || scratch.Offset%256 != 0 {
		return ml, out, pkg.Wrong(op, "Scratch", scratch, "%d bytes at a multiple of 256", need)
	}
	n := uint64(t) * uint64(splits) * uint64(heads)
	ml = scratch.Buffer.View(scratch.Offset, n*16)
	out = scratch.Buffer.View(scratch.Offset+align(n*16), n*cache.D*4)
	return ml, out, nil
}

// products counts the multiply-adds of attention of t tokens to `rows` rows: each row and head has
// D for its score and D for its share of the output.
func products(t, heads, rows int) float64 {
	return 2 * cache.D * float64(t) * float64(heads) * float64(rows)
}
