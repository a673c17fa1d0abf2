package indexer

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// tileTopK selects using per-tile maxima ("tops") that idx_logits_lanes writes.
type tileTopK struct {
	kernel *opkit.Later
	tile   int // entries
	most   int // tops of a row
}

// idxTopkTilesPush is the push block of idx_topk_tiles.comp.
type idxTopkTilesPush struct {
	LogitsAddr, TopsAddr, LensAddr, DstAddr               uint64
	BlockTableAddr, TokenToReqAddr, SlotsAddr, CountsAddr uint64
	K, Width, TopsWidth, Limit, Requests, TableWidth      uint32
}

// topEntries is the number of entries per top in scratch: it holds one top per 16 entries. Smaller
// tiles therefore limit row length.
const topEntries = 16

// topsWidth is the room for tops of a row of n entries.
func topsWidth(n int) int { return opkit.RoundUp(opkit.CeilDiv(n, topEntries), 4) }

// tileShape returns the shape that idx_topk_tiles is built for and the fours of numbers of an
// invocation: 0 if the device cannot run it.
func tileShape(c *vk.Caps, tune *tuning.TopK, k, threads, tile int) (s laneShape, quads int) {
	shapes := laneShapes(c, tune, k, threads)
	if len(shapes) == 0 || tile%4 != 0 || c.Missing(shaders.Requires("idx_topk_tiles_da")) != nil {
		return s, 0
	}
	s = shapes[0]
	quads = max(opkit.CeilDiv(k*tile, 4*s.threads), tuning.TileQuads)
	if quads > tuning.MaxQuads || (2*s.places(k)+s.threads/s.subgroup)*4+12 > int(c.SharedMemory) {
		return s, 0
	}
	return s, quads
}

// buildTiles builds the selection from tiles of `tile` entries, if the device can run it.
func (o *TopK) buildTiles(tile int) (*tileTopK, error) {
	s, quads := tileShape(o.dev.Caps(), o.tune, o.cfg.K, o.cfg.Threads, tile)
	if quads == 0 {
		return nil, nil
	}
	k := pkg.Later(o.dev, opkit.Spec{Stem: "idx_topk_tiles", Variant: opkit.DA, Subgroup: uint32(s.subgroup),
		Push:      idxTopkTilesPush{},
		Constants: opkit.Constants(s.threads, s.bits, s.places(o.cfg.K), o.cfg.slotPage, s.subgroup, tile, quads)})
	if !o.cfg.onDemand {
		if err := opkit.Ask(k); err != nil {
			return nil, err
		}
	}
	return &tileTopK{k, tile, 4 * quads * s.threads}, nil
}

// suits tells whether t rows of n entries are selected from by tiles: there are more tiles than K,
// their tops fit into width and a workgroup, and the row is long or nothing else takes it in one
// launch.
func (o *tileTopK) suits(k *TopK, t, n, width, lists int, arrived tensor.Tensor) bool {
	tiles := opkit.RoundUp(opkit.CeilDiv(n, o.tile), 4)
	if n%4 != 0 || n <= o.tile*k.cfg.K || tiles > width || tiles > o.most {
		return false
	}
	lanes, _, _ := k.planLanes(t, n, k.laneMost(arrived, lists))
	return lanes == nil || n >= k.tune.TileRows*k.cfg.K && n > lanes.entries
}

func (o *TopK) recordTiles(rec *vk.Recorder, op string, r topkRound) error {
	kernel, err := r.tiles.kernel.Kernel()
	if err != nil {
		return err
	}
	place, count, table, requests := o.bindSlots(r)
	push := idxTopkTilesPush{
		LogitsAddr: r.logits.View().Address(), TopsAddr: r.tops.View().Address(),
		LensAddr: r.lens.View().Address(), DstAddr: r.out.View().Address(),
		BlockTableAddr: table.Address(), TokenToReqAddr: requests.Address(), SlotsAddr: place.Address(), CountsAddr: count.Address(),
		K: uint32(o.cfg.K), Width: uint32(r.logits.Shape[1]), TopsWidth: uint32(r.tops.Shape[1]),
		Limit: uint32(min(r.limit, r.logits.Shape[1])),
	}
	push.Requests, push.TableWidth = r.table()
	d := vk.Dispatch{Kernel: kernel, Groups: [3]uint32{uint32(r.logits.Shape[0]), 1, 1}, Push: vk.Bytes(&push)}
	for _, v := range []struct {
		view   vk.View
		access vk.Access
	}{{r.logits.View(), vk.Read}, {r.tops.View(), vk.Read}, {r.lens.View(), vk.Read}, {r.out.View(), vk.Write},
		{table, vk.Read}, {requests, vk.Read}, {place, vk.Write}, {count, vk.Write}} {
		d.Reach = append(d.Reach, vk.Reach{View: v.view, Access: v.access})
	}
	return pkg.Dispatch(rec, op, opkit.DA, d)
}

// topsAt is the tensor of tops at a place of scratch.
func topsAt(v vk.View, t, n int) tensor.Tensor {
	w := topsWidth(n)
	return tensor.Of(v.Buffer.View(v.Offset, uint64(t)*uint64(w)*4), tensor.I32, t, w)
}
