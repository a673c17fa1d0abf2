package indexer

import (
	"math/bits"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// laneShape holds the sizes that a build of idx_topk_lanes is specialised for.
type laneShape struct {
	threads, capacity, bits, subgroup int
}

// laneShapes are the shapes that a device can run, the one with fewer entries first.
func laneShapes(c *vk.Caps, tune *tuning.TopK, k, threads int) (all []laneShape) {
	if c.Missing(shaders.Requires("idx_topk_lanes")) != nil {
		return nil
	}
	size := min(max(tune.LaneSubgroup, int(c.MinSubgroupSize)), int(c.MaxSubgroupSize))
	if threads == 0 {
		threads = tune.LaneThreads
	}
	// Any device can have as many as 32 subgroups in a workgroup.
	threads = min(threads, int(c.MaxWorkgroupInvocations), 32*size)
	if threads%size != 0 {
		return nil
	}
	for _, n := range tune.LaneEntries {
		s := laneShape{threads, n, tune.LaneBits, size}
		for 1<<s.bits > 8*threads {
			s.bits--
		}
		if s.shared(k) <= int(c.SharedMemory) {
			all = append(all, s)
		}
	}
	return all
}

// shared is the shared memory of a workgroup in bytes; see idx_topk_lanes.comp.
func (s laneShape) shared(k int) int {
	return (s.capacity+s.places(k)+s.threads/s.subgroup)*4 + laneScalars
}

// laneScalars is the size of what is shared besides arrays.
const laneScalars = 12 + 4

func (s laneShape) places(k int) int { return max(1<<s.bits, k) }

func (s laneShape) constants(k, slotPage int) []uint32 {
	return opkit.Constants(s.threads, s.capacity, s.bits, s.places(k), slotPage, s.subgroup)
}

// idxTopkLanesPush is the push block of idx_topk_lanes.comp.
type idxTopkLanesPush struct {
	K, Width, Limit, Shift, Solo, Per, Requests, TableWidth uint32
}

func (o *TopK) buildLanes() {
	for _, s := range laneShapes(o.dev.Caps(), o.tune, o.cfg.K, o.cfg.Threads) {
		k := pkg.Later(o.dev, opkit.Spec{Stem: "idx_topk_lanes", Variant: opkit.Base, Subgroup: uint32(s.subgroup),
			Bindings: []vk.Access{vk.Read, vk.Read, vk.ReadWrite, vk.ReadWrite, vk.Write, vk.Read, vk.Read, vk.Write, vk.Write},
			Push:     idxTopkLanesPush{}, Constants: s.constants(o.cfg.K, o.cfg.slotPage)})
		o.lanes = append(o.lanes, topkKernel{k, s.capacity})
	}
}

// laneSlices returns the number of slices of a row: a power of two, at most `most`. There are t
// rows of n columns; a workgroup takes up to `capacity` entries. A row that fits a workgroup has
// one slice, because more are not faster.
func laneSlices(tune *tuning.TopK, workgroups, t, n, k, most, capacity int) int {
	if n <= capacity {
		return 1
	}
	s, stride := 1, listStride(k)
	for 2*s <= most && 2*s*t <= workgroups && 2*s*stride <= capacity {
		must, worth := n > s*capacity, n > s*tune.LaneSlice && 2*s*stride <= tune.LaneSlice
		if !must && !worth {
			break
		}
		s *= 2
	}
	return s
}

// planLanes returns the kernel for t rows of n columns, the number of slices of a row, at most
// `most`, and the columns of a slice. The kernel is nil if a slice is too long or a row cannot be
// loaded by fours.
func (o *TopK) planLanes(t, n, most int) (k *topkKernel, slices, per int) {
	if len(o.lanes) == 0 || n%4 != 0 {
		return nil, 1, n
	}
	last := o.lanes[len(o.lanes)-1]
	slices = laneSlices(o.tune, o.workgroups, t, n, o.cfg.K, most, last.entries)
	per = slicePer(n, slices)
	for i := range o.lanes {
		// A row that turns out to be short enough for one workgroup is not sliced.
		if l := &o.lanes[i]; per <= l.entries && (slices == 1 || l.entries == last.entries) {
			return l, slices, per
		}
	}
	return nil, 1, n
}

// laneMost returns the most slices that scratch with room for `lists` lists allows; 1 without
// counters.
func (o *TopK) laneMost(arrived tensor.Tensor, lists int) int {
	if arrived.IsZero() {
		return 1
	}
	return min(max(lists, 1), o.tune.MaxSlices)
}

// roundLanes is planLanes for a selection of one round. The kernel is nil for other rounds, too.
func (o *TopK) roundLanes(r topkRound) (k *topkKernel, slices, per int) {
	t, n := r.logits.Shape[0], r.logits.Shape[1]
	if r.first > 0 || r.limit > n || r.logits.View().Offset%16 != 0 {
		return nil, 1, n
	}
	return o.planLanes(t, n, o.laneMost(r.arrived, r.lists))
}

// recordLanes records a selection of one round in one launch. done is false if no kernel fits.
func (o *TopK) recordLanes(rec *vk.Recorder, op string, r topkRound) (done bool, err error) {
	t, n := r.logits.Shape[0], r.logits.Shape[1]
	lanes, slices, per := o.roundLanes(r)
	if lanes == nil {
		return false, nil
	}
	kernel, err := lanes.kernel.Kernel()
	if err != nil {
		return false, err
	}
	push := idxTopkLanesPush{K: uint32(o.cfg.K), Width: uint32(n), Limit: uint32(r.limit),
		Shift: uint32(bits.TrailingZeros(uint(slices))), Solo: uint32(lanes.entries), Per: uint32(per)}
	scratch, arrived := r.out.View(), r.out.View() // an unused binding, too, has to be memory of this launch
	if slices > 1 {
		scratch, arrived = r.scratch, r.arrived.View()
		scratch.Size = listBytes(t, slices, o.cfg.K)
	}
	place, count, table, requests := o.bindSlots(r)
	push.Requests, push.TableWidth = r.table()
	return true, pkg.Dispatch(rec, op, opkit.Base, vk.Dispatch{
		Kernel: kernel, Groups: [3]uint32{uint32(t), uint32(slices), 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{r.logits.View(), r.lens.View(), scratch, arrived, r.out.View(), table, requests, place, count},
	})
}

// bindSlots returns the views that a kernel binds for slots of picks; without slots nothing uses
// it.
func (o *TopK) bindSlots(r topkRound) (place, count, table, requests vk.View) {
	if o.cfg.slotPage == 0 {
		return r.out.View(), r.out.View(), o.dev.Dummy(), o.dev.Dummy()
	}
	return r.slots.Slots.View(), r.slots.Lens.View(), r.slots.BlockTable.View(), r.requests.View()
}

// table is the size of the block table of slots, 0 without one.
func (r topkRound) table() (requests, width uint32) {
	if t := r.slots.BlockTable; !t.IsZero() {
		requests, width = uint32(t.Shape[0]), uint32(t.Shape[1])
	}
	return requests, width
}
