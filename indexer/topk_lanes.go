package indexer

import (
	"math/bits"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// laneShape is what a build of idx_topk_lanes is specialised for.
type laneShape struct {
	threads, capacity, bits, subgroup int
}

// laneEntries are how many entries a workgroup of idx_topk_lanes takes at most: of the
// first build two share a compute unit of an H100, the second fills 48 KiB of shared
// memory.
var laneEntries = []int{4096, 9216}

// What slices are cut to where the rows are few enough: of up to laneSlice entries, but
// not so many that their lists have more than laneLists, which an invocation reads at
// once. On an H100, K 512, one row: of 16384 entries 10.8 us in 4 slices, 13.2 in 2; of
// 32768 11.6 in 8, 13.6 in 4, 14.1 in 16; of 65536 14.3 in 8, 14.9 in 16. Rows that fit
// one workgroup are not cut: of 8192 entries 8.5 us, 10.4 in 4.
const (
	laneSlice = 5120
	laneLists = 4096
)

// laneShapes are the shapes that a device can run, the one with fewer entries first.
func laneShapes(c *vk.Caps, t vk.DeviceType, k, threads int) (all []laneShape) {
	if c.Missing(shaders.Requires("idx_topk_lanes")) != nil {
		return nil
	}
	size := min(max(32, int(c.MinSubgroupSize)), int(c.MaxSubgroupSize))
	if threads == 0 {
		threads = 1024
		if t == vk.TypeCPU {
			threads = 128
		}
	}
	// Any device can have as many as 32 subgroups in a workgroup.
	threads = min(threads, int(c.MaxWorkgroupInvocations), 32*size)
	if threads%size != 0 {
		return nil
	}
	for _, n := range laneEntries {
		s := laneShape{threads, n, 11, size}
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
	return opkit.Words(s.threads, s.capacity, s.bits, s.places(k), slotPage, s.subgroup)
}

// idxTopkLanesPush is the push block of idx_topk_lanes.comp.
type idxTopkLanesPush struct {
	K, Width, Limit, Shift, Solo, Per, Requests, TableWidth uint32
}

func (o *TopK) buildLanes() error {
	for _, s := range laneShapes(o.dev.Caps(), o.dev.Adapter().Type, o.cfg.K, o.cfg.Threads) {
		k, err := pkg.Kernel(o.dev, opkit.Spec{Stem: "idx_topk_lanes", Variant: VariantBase, Subgroup: uint32(s.subgroup),
			Bindings: []vk.Access{vk.Read, vk.Read, vk.ReadWrite, vk.ReadWrite, vk.Write, vk.Read, vk.Read, vk.Write, vk.Write},
			PushSize: int(unsafe.Sizeof(idxTopkLanesPush{})), Constants: s.constants(o.cfg.K, o.cfg.slotPage)})
		if err != nil {
			return err
		}
		o.lanes = append(o.lanes, topkKernel{k, s.capacity})
	}
	return nil
}

// laneSlices is into how many slices t rows of n columns are cut, a power of two of at
// most so many, for workgroups that take up to so many entries; 1 as well where no number
// suits.
func laneSlices(workgroups, t, n, k, most, capacity int) int {
	if n <= capacity {
		return 1
	}
	s, stride := 1, listStride(k)
	for 2*s <= most && 2*s*t <= workgroups && 2*s*stride <= capacity && (n > s*capacity || n > s*laneSlice && 2*s*stride <= laneLists) {
		s *= 2
	}
	return s
}

// planLanes is how rows of n columns are cut into at most so many slices, and which
// kernel takes them; none if a slice is too long or a row cannot be loaded by fours.
func (o *TopK) planLanes(t, n, most int) (k *topkKernel, slices, per int) {
	if len(o.lanes) == 0 || n%4 != 0 {
		return nil, 1, n
	}
	last := o.lanes[len(o.lanes)-1]
	slices = laneSlices(o.workgroups, t, n, o.cfg.K, most, last.entries)
	per = opkit.RoundUp(opkit.CeilDiv(n, slices), 32)
	for i := range o.lanes {
		// A row that turns out to be short enough for one workgroup is not sliced.
		if l := &o.lanes[i]; per <= l.entries && (slices == 1 || l.entries == last.entries) {
			return l, slices, per
		}
	}
	return nil, 1, n
}

// laneMost is into how many slices rows can be cut with room for so many lists: one
// without counters of them.
func laneMost(arrived tensor.Tensor, lists int) int {
	if arrived.IsZero() {
		return 1
	}
	return min(max(lists, 1), maxSlices)
}

// recordLanes records in one launch a round that is the only one, and says so, if there
// is a kernel for it.
func (o *TopK) recordLanes(rec *vk.Recorder, op string, r topkRound) (done bool, err error) {
	t, n := r.logits.Shape[0], r.logits.Shape[1]
	if r.first > 0 || r.limit > n || r.logits.View().Offset%16 != 0 {
		return false, nil
	}
	most := laneMost(r.arrived, r.lists)
	kernel, slices, per := o.planLanes(t, n, most)
	if kernel == nil {
		return false, nil
	}
	push := idxTopkLanesPush{K: uint32(o.cfg.K), Width: uint32(n), Limit: uint32(r.limit),
		Shift: uint32(bits.TrailingZeros(uint(slices))), Solo: uint32(kernel.entries), Per: uint32(per)}
	scratch, arrived := r.out.View(), r.out.View() // what is bound and not used has to be this launch's own as well
	if slices > 1 {
		scratch, arrived = r.scratch, r.arrived.View()
		scratch.Size = listBytes(t, slices, o.cfg.K)
	}
	place, count, table, requests := o.bindSlots(r)
	push.Requests, push.TableWidth = r.table()
	return true, pkg.Dispatch(rec, op, VariantBase, vk.Dispatch{
		Kernel: kernel.kernel, Groups: [3]uint32{uint32(t), uint32(slices), 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{r.logits.View(), r.lens.View(), scratch, arrived, r.out.View(), table, requests, place, count},
	})
}

// bindSlots is what a kernel binds for slots of picks; without slots that is not used.
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
