package indexer

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// CandidateEntriesConfig configures a CandidateEntries.
type CandidateEntriesConfig struct {
	Block    int // entries of a block, a power of two up to MaxBlock
	SlotPage int // as in SelectConfig

	onDemand bool // see SelectConfig.OnDemand
}

// CandidateEntriesArgs are the tensors of one CandidateEntries.
type CandidateEntriesArgs struct {
	Picks  tensor.Tensor // [T, K] i32 columns of a token's blocks, -1 for none; written: their entries
	Blocks tensor.Tensor // [T, W] i32 candidate blocks

	// With SlotPage only.
	TokenToReq tensor.Tensor // [T] i32 row of Slots.BlockTable
	Lens       tensor.Tensor // [T] i32 columns of a token; min(Lens[t], Block*W, K) were picked
	Slots      PickSlots
}

// CandidateEntries turns picks among the entries of candidate blocks to entries of the request, and
// to slots of a paged cache. CandidateEntriesRef defines it, attention.GlobalTopKRef the slots.
type CandidateEntries struct {
	dev *vk.Device
	cfg CandidateEntriesConfig
	k   *opkit.Later
}

// idxCandidateEntriesPush is the push block of idx_candidate_entries.comp.
type idxCandidateEntriesPush struct {
	K, BlocksWidth, Columns, Requests, TableWidth uint32
}

// NewCandidateEntries builds the kernel. The device owns it; there is nothing to close.
//
// Errors: vk.ErrArgument for another page or Block; those of vk.Device.Kernel.
func NewCandidateEntries(dev *vk.Device, cfg CandidateEntriesConfig) (*CandidateEntries, error) {
	const op = "new candidate entries"
	if err := opkit.FirstError(checkBlock(op, "Block", cfg.Block), pkg.Range(op, "SlotPage", cfg.SlotPage, 0, math.MaxInt32)); err != nil {
		return nil, err
	}
	o := &CandidateEntries{dev: dev, cfg: cfg, k: pkg.Later(dev, opkit.Spec{
		Stem: "idx_candidate_entries", Variant: opkit.Base, Push: idxCandidateEntriesPush{},
		Bindings:  []vk.Access{vk.ReadWrite, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Constants: opkit.Constants(cfg.SlotPage, cfg.Block),
	})}
	if cfg.onDemand {
		return o, nil
	}
	return o, opkit.Ask(o.k)
}

// Record checks the arguments and records the launch.
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *CandidateEntries) Record(rec *vk.Recorder, a CandidateEntriesArgs) error {
	const op = "candidate entries"
	t, k := opkit.DimOrZero(a.Picks, 0), opkit.DimOrZero(a.Picks, 1)
	if err := opkit.FirstError(
		pkg.Check(op, "Picks", a.Picks, tensor.I32, -1, -1),
		pkg.Check(op, "Blocks", a.Blocks, tensor.I32, t, -1),
		pkg.Range(op, "Blocks width", opkit.DimOrZero(a.Blocks, 1), 1, math.MaxInt32/o.cfg.Block),
		o.checkLaunch(op, "Picks", a.Picks, a.Blocks),
		checkSlots(op, o.cfg.SlotPage, t, k, a.Slots),
	); err != nil {
		return err
	}
	requests, lens := a.Picks.View(), a.Picks.View()
	if o.cfg.SlotPage > 0 {
		if err := opkit.FirstError(
			pkg.Check(op, "TokenToReq", a.TokenToReq, tensor.I32, t),
			pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
		); err != nil {
			return err
		}
		requests, lens = a.TokenToReq.View(), a.Lens.View()
	}
	if t == 0 || k == 0 {
		return nil
	}
	return o.record(rec, op, a, a.Blocks.Shape[1]*o.cfg.Block, requests, lens)
}

// checkLaunch checks that one launch takes all picks.
func (o *CandidateEntries) checkLaunch(op, arg string, picks, blocks tensor.Tensor) error {
	return opkit.FirstError(
		pkg.Bindable(o.dev, op, arg, picks),
		pkg.Bindable(o.dev, op, "Blocks", blocks),
		pkg.Grid(o.dev, op, arg, opkit.DimOrZero(picks, 0), 1, 0),
	)
}

// record records the launch for picks among the first `columns` columns of each token.
func (o *CandidateEntries) record(rec *vk.Recorder, op string, a CandidateEntriesArgs, columns int, requests, lens vk.View) error {
	kernel, err := o.k.Kernel()
	if err != nil {
		return err
	}
	push := idxCandidateEntriesPush{K: uint32(a.Picks.Shape[1]), BlocksWidth: uint32(a.Blocks.Shape[1]), Columns: uint32(columns)}
	// Without slots the bindings that the kernel does not use get picks, which are memory of this
	// launch.
	table, slots, counts := a.Picks.View(), a.Picks.View(), a.Picks.View()
	if o.cfg.SlotPage > 0 {
		push.Requests, push.TableWidth = uint32(a.Slots.BlockTable.Shape[0]), uint32(a.Slots.BlockTable.Shape[1])
		table, slots, counts = a.Slots.BlockTable.View(), a.Slots.Slots.View(), a.Slots.Lens.View()
	}
	return pkg.Launch(rec, op, kernel, a.Picks.Shape[0], vk.Bytes(&push),
		a.Picks.View(), a.Blocks.View(), table, requests, lens, slots, counts)
}

// checkSlots checks what the slots of k picks of each token need.
func checkSlots(op string, page, t, k int, s PickSlots) error {
	if page == 0 {
		if !s.BlockTable.IsZero() || !s.Slots.IsZero() || !s.Lens.IsZero() {
			n := 0
			for _, x := range []tensor.Tensor{s.BlockTable, s.Slots, s.Lens} {
				if !x.IsZero() {
					n++
				}
			}
			return pkg.Wrong(op, "Slots", fmt.Sprintf("%d tensors", n), "none: SelectConfig.SlotPage is 0")
		}
		return nil
	}
	return opkit.FirstError(
		pkg.Check(op, "Slots.BlockTable", s.BlockTable, tensor.I32, -1, -1),
		pkg.Check(op, "Slots.Slots", s.Slots, tensor.I32, t, k),
		pkg.Check(op, "Slots.Lens", s.Lens, tensor.I32, t),
	)
}
