package indexer

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// pickSlices is the most slices of a row that picks in the launch of its scores.
const pickSlices = 16

// SelectCounters are the counters of a token in SelectArgs.Arrived: of its slices that are done,
// and of each slice's workgroups.
const SelectCounters = 1 + pickSlices

// scorePicks holds the sizes that idx_logits_lanes with PICKS is specialised for besides those of
// the scores.
type scorePicks struct {
	k, capacity, bits, slotPage int
}

// pool is the room for bins, which later is that for picks.
func (p *scorePicks) pool(threads int) int { return max(opkit.RoundUp(1<<p.bits, threads), p.k) }

func (p *scorePicks) constants(threads int) []uint32 {
	return opkit.Constants(p.capacity, p.bits, p.pool(threads), p.slotPage)
}

// sharedBytes is the shared memory of a workgroup. Keys lie where queries did, bins where codes
// did.
func (p *scorePicks) sharedBytes(t laneTiling) int {
	queries, codes := t.heads*(2*cache.IndexDim+16), t.heads*cache.IndexDim
	return t.sharedBytes() + max(4*p.capacity-queries, 0) + max(4*p.pool(t.threads())-codes, 0) + 4*t.subgroups + laneScalars
}

// idxLogitsPicksPush is the push block of idx_logits_lanes.comp with PICKS.
type idxLogitsPicksPush struct {
	idxLogitsPush
	PicksAddr, SlotsAddr, CountsAddr, SlotTableAddr, ListsAddr, ArrivedAddr uint64
	K, Group, Slices, SlotRequests, SlotWidth, Limit                        uint32
}

// buildPicks builds the scores that pick, for launches of few tokens whose queries are raw, if the
// device has room for them. From tuning.Layer.BesideTokens on a step of 32 tokens takes 2.9 %
// longer with them than with two launches: what stood beside the selection stands alone.
func (o *Select) buildPicks() (err error) {
	c, caps := o.cfg.Logits, o.dev.Caps()
	if !c.Raw || !c.Few || c.Blocks > 0 || o.cfg.Candidates > 0 || len(o.topk.lanes) == 0 {
		return nil
	}
	c.picks = &scorePicks{o.cfg.K, o.topk.lanes[len(o.topk.lanes)-1].entries, o.topk.tune.LaneBits, o.cfg.SlotPage}
	fits := c.picks.sharedBytes(o.logits.lanes) <= int(caps.SharedMemory) &&
		len(vk.Bytes(&idxLogitsPicksPush{})) <= int(caps.MaxPushConstants)
	if o.logits.shared || !fits || caps.Missing(shaders.Requires("idx_logits_lanes_picks_cm")) != nil {
		return nil
	}
	o.picking, err = NewLogits(o.dev, c)
	return err
}

// pickPlan divides rows among workgroups that pick.
type pickPlan struct {
	group  int // shares of a slice; 0: another launch picks
	slices int // of a row
}

// planPicks plans a round. It has to be a row's only one, not one of tiles, whose slices fit a
// workgroup, and so do the lists of all.
func (o *Select) planPicks(r topkRound) (p pickPlan) {
	if o.picking == nil || r.tiles != nil || r.arrived.IsZero() || r.logits.Shape[1] <= o.cfg.K {
		return p
	}
	kernel, slices, _ := o.topk.roundLanes(r)
	if kernel == nil {
		return p
	}
	of, l, n := o.picking.cfg.picks, o.picking.lanes, r.logits.Shape[1]
	shares := l.shares(o.picking.tune, o.picking.cfg.Workgroups, r.logits.Shape[0], n)
	p.group = opkit.CeilDiv(shares, slices)
	p.slices = opkit.CeilDiv(shares, p.group)
	slice := p.group * opkit.CeilDiv(opkit.CeilDiv(n, l.m), shares) * l.m
	if max(slice, p.slices*listStride(of.k)) > of.capacity || p.slices > min(max(r.lists, 1), pickSlices) {
		return pickPlan{}
	}
	return p
}

// recordPicks records scores that pick.
func (o *Select) recordPicks(rec *vk.Recorder, op string, r selectRound) error {
	l, k := o.picking, r.topk
	t, n := k.logits.Shape[0], k.logits.Shape[1]
	groups, chunk, err := l.grid(op, t, 0, n)
	if err != nil {
		return err
	}
	kernel, err := l.k.Kernel()
	if err != nil {
		return err
	}
	lists := k.scratch
	lists.Size = listBytes(t, r.picks.slices, o.cfg.K)
	place, count, table, _ := o.topk.bindSlots(k)
	push := idxLogitsPicksPush{idxLogitsPush: l.push(r.logits, chunk),
		PicksAddr: k.out.View().Address(), SlotsAddr: place.Address(), CountsAddr: count.Address(), SlotTableAddr: table.Address(),
		ListsAddr: lists.Address(), ArrivedAddr: k.arrived.View().Address(),
		K: uint32(o.cfg.K), Group: uint32(r.picks.group), Slices: uint32(r.picks.slices), Limit: uint32(k.limit)}
	push.SlotRequests, push.SlotWidth = k.table()
	return pkg.Dispatch(rec, op, l.variant, vk.Dispatch{Kernel: kernel, Groups: groups, Push: vk.Bytes(&push), Reach: []vk.Reach{
		{View: k.out.View(), Access: vk.Write}, {View: place, Access: vk.Write}, {View: count, Access: vk.Write},
		{View: table, Access: vk.Read}, {View: lists, Access: vk.ReadWrite}, {View: k.arrived.View(), Access: vk.ReadWrite},
	}}, l.targets(r.logits)...)
}
