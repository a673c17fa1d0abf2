package layer

import (
	"fmt"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// StepArgs are the inputs that all layers of a kind share in a step, for R requests with
// QueryStart[R] tokens in all. The T - QueryStart[R] tokens after those are padding: IsValid
// 0, and in TokenToReq and Positions any value, such as 0. The i-th of n tokens of request r
// has position SeqLens[r] - n + i.
//
// A block table has an entry for every page of a request's sequence, in the order of positions. -1
// stands for a page that was never allocated or was recycled: nothing is read or written there. A
// token's own position has a page in Window, or its row is not stored.
//
// Source: vLLM vllm/v1/attention/backends/mla/sparse_swa.py.
type StepArgs struct {
	QueryStart tensor.Tensor // [R+1] i32: first token of each request, then their number; ascending from 0
	SeqLens    tensor.Tensor // [R] i32: tokens of each request, this step's included
	TokenToReq tensor.Tensor // [T] i32: request of each token
	Positions  tensor.Tensor // [T] i32: position of each token in its request
	IsValid    tensor.Tensor // [T] u8: 0 for padding
	Tables     Tables

	// Drafts tells layers that draft (LayerSpec.Block) that the tokens of each request are a block:
	// its last Config.DraftBlock rows. Otherwise they are tokens of the context.
	Drafts bool

	// The number of pieces of an attention.RowPlan by Kernels.Room, the plan, and the workspace for
	// its rows; only where rows are gathered.
	Pieces    int
	Plan      attention.PlanTensors
	Workspace tensor.Tensor // [at least Room.Rows(), 512] bf16
}

// Tables are the block tables [R, W] i32 of the caches of the same names in Caches.
type Tables struct {
	Window, Compressed, State, IndexState, Keys tensor.Tensor
}

// lists holds what is computed once for the layers of a step: where KV rows go, and which slots
// are attended as far as no indexer decides it.
type lists struct {
	slotMap *cache.SlotMapping
	windows *attention.WindowIndices
	entries *attention.C128Indices // nil unless all entries are attended
	visible *indexer.Visible       // nil without an indexer

	slots       tensor.Tensor // [T] i64: where the step's KV rows are stored
	window      slotLists     // [T, LayerSpec.WindowRows], oldest first
	all         slotLists     // [T, width], of all entries
	visibleLens tensor.Tensor // [T] i32: entries that a token may see
}

// slotLists are rows of slots of a cache, with lengths; beyond these they are undefined.
type slotLists struct {
	slots, lens tensor.Tensor // [T, width], [T] i32
}

func (s *slotLists) tensors(l scratch, of string, tokens, width int) {
	l.step(of, &s.slots, tensor.I32, tokens, width)
	l.step("numbers of "+of, &s.lens, tensor.I32, tokens)
}

func (x *lists) build(k *Kernels) (err error) {
	page, spec := k.cfg.Caches.Window.Layout.Page, &k.cfg.Spec
	if x.slotMap, err = cache.NewSlotMapping(k.dev, cache.SlotMappingConfig{Page: page, Ratio: 1}); err != nil {
		return err
	}
	cfg := attention.WindowIndicesConfig{Page: page}
	if spec.Block {
		cfg.Drafts = k.cfg.Model.DraftBlock
	}
	if x.windows, err = attention.NewWindowIndices(k.dev, cfg); err != nil {
		return err
	}
	switch {
	case k.indexer != nil:
		x.visible, err = indexer.NewVisible(k.dev, indexer.VisibleConfig{Ratio: spec.Ratio})
	case spec.Ratio > 0 && spec.Picks == model.PickNone:
		entries := k.cfg.Caches.Compressed.Layout.Page
		x.entries, err = attention.NewC128Indices(k.dev, attention.C128IndicesConfig{Page: entries, Ratio: spec.Ratio})
	}
	return err
}

func (x *lists) tensors(l scratch, k *Kernels) {
	t := k.cfg.Tokens
	l.step("slots of rows", &x.slots, tensor.I64, t)
	x.window.tensors(l, "slots of the window", t, k.cfg.window())
	switch {
	case k.indexer != nil:
		l.step("visible entries", &x.visibleLens, tensor.I32, t)
	case k.mla.width > 0 && k.cfg.Spec.Picks == model.PickNone:
		x.all.tensors(l, "slots of entries", t, k.mla.width)
	}
}

// RecordStep records what is computed once for all layers of a step: where KV rows, states
// and entries are stored, each token's window, and its entries or how many it may see.
//
// Errors: those of the operations, after which the recording is to be given up.
func (k *Kernels) RecordStep(rec *vk.Recorder, a StepArgs) error {
	rec.Section("step")
	var err error
	if k.main != nil {
		err = k.main.recordSlots(rec, &a, a.Tables.State, a.Tables.Compressed)
	}
	if err == nil && k.keys != nil {
		err = k.keys.recordSlots(rec, &a, a.Tables.IndexState, a.Tables.Keys)
	}
	if err == nil {
		err = k.lists.record(rec, &a, k.attends(&a))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opStep, err)
	}
	return nil
}

// attends reports whether layers attend in a step: of the context those that draft keep rows alone.
func (k *Kernels) attends(a *StepArgs) bool { return a.Drafts || !k.cfg.Spec.Block }

// record ends with the list of entries, which waits for the slots of KV rows.
func (x *lists) record(rec *vk.Recorder, a *StepArgs, attends bool) error {
	if x.visible != nil {
		err := x.visible.Record(rec, indexer.VisibleArgs{Positions: a.Positions, IsValid: a.IsValid, Lens: x.visibleLens})
		if err != nil {
			return err
		}
	}
	err := x.slotMap.Record(rec, cache.SlotMappingArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, Table: a.Tables.Window,
		Slots: x.slots})
	if err != nil || !attends {
		return err
	}
	if err := x.windows.Record(rec, attention.WindowIndicesArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, TokenToReq: a.TokenToReq,
		IsValid: a.IsValid, BlockTable: a.Tables.Window, Slots: x.window.slots, Lens: x.window.lens}); err != nil {
		return err
	}
	if x.entries == nil {
		return nil
	}
	return x.entries.Record(rec, attention.C128IndicesArgs{Positions: a.Positions, SlotMapping: x.slots, TokenToReq: a.TokenToReq,
		BlockTable: a.Tables.Compressed, Indices: x.all.slots, Lens: x.all.lens})
}
