package layer

import (
	"errors"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// selection is the indexer: it scores entries and picks the best for each token.
type selection struct {
	query      *indexer.QueryQuant // nil where the kernel of the scores quantises queries
	pick       *indexer.Select
	touch      *cache.Touch // nil where the pool of entries never reaches a size to be touched
	entries    int          // the most of a token that are scored
	candidates model.Candidates

	q, weights             tensor.Tensor // [T, Hi, 128], [T, Hi] bf16
	wide                   tensor.Tensor // [T, more than Hi] bf16, where no product has Hi outputs: see linearRows
	codes, scales, folded  tensor.Tensor // quantised queries, and their weights [T, Hi] f32; absent without query
	topK                   tensor.Tensor // [T, TopK] i32
	own                    slotLists     // [T, TopK]: slots of the picks
	scratch, arrived, sink tensor.Tensor // arrived has counters, 0 between selections; sink is of touch
}

func (s *selection) build(k *Kernels) (err error) {
	c, m := &k.cfg.Caches, k.cfg.Model
	cfg := indexer.SelectConfig{K: m.TopK, SlotPage: c.Compressed.Layout.Page, OnDemand: true, Logits: indexer.LogitsConfig{
		Heads: m.IndexHeads, Format: c.Keys.Layout.Format, Page: c.Keys.Layout.Page, Group: k.cfg.Group, MaxBytes: c.Keys.Pool.Bytes(),
		Block: m.CandidateBlock}}
	switch k.cfg.Spec.Candidates {
	case model.CandidatesMade:
		cfg.Candidates = m.CandidateBlocks
	case model.CandidatesUsed:
		cfg.Logits.Blocks = m.CandidateBlocks
	}
	if k.want.touch {
		if s.touch, err = cache.NewTouch(k.dev); err != nil {
			return err
		}
	}
	if k.want.raw && !k.cfg.Model.Hadamard { // no kernel of scores mixes queries
		cfg.Logits.Raw, cfg.Logits.Few = true, k.cfg.Tokens < k.tune.BesideTokens
		if err = s.buildPick(k, cfg); !errors.Is(err, vk.ErrMissingFeature) {
			return err
		}
		cfg.Logits.Raw, cfg.Logits.Few = false, false
	}
	s.query, err = indexer.NewQueryQuant(k.dev, indexer.QueryQuantConfig{Format: c.Keys.Layout.Format, Hadamard: k.cfg.Model.Hadamard})
	if err != nil {
		return err
	}
	return s.buildPick(k, cfg)
}

// buildPick makes the operation, and asks for the kernels that record launches.
func (s *selection) buildPick(k *Kernels, cfg indexer.SelectConfig) (err error) {
	if s.pick, err = indexer.NewSelect(k.dev, cfg); err != nil {
		return err
	}
	return s.pick.Prepare(k.cfg.Tokens, s.entries, true)
}

// tensors wants scratch. Picks stay until they are copied after the layer.
func (s *selection) tensors(l scratch, k *Kernels) {
	t, h, topK := k.cfg.Tokens, k.cfg.Model.IndexHeads, k.cfg.Model.TopK
	l.Add("index q", picking, &s.q, tensor.BF16, t, h, indexDim)
	l.Add("index weights", edges|picking, &s.weights, tensor.BF16, t, h)
	if wide := linearRows(h); wide != h {
		l.Add("index weights, wide", edges|picking, &s.wide, tensor.BF16, t, wide)
	}
	l.Add("picks", edges|picking|attending, &s.topK, tensor.I32, t, topK)
	l.Add("slots of picks", picking|attending, &s.own.slots, tensor.I32, t, topK)
	l.Add("numbers of picks", picking|attending, &s.own.lens, tensor.I32, t)
	l.Add("touched", picking, &s.sink, tensor.U32, 1)
	if s.pick != nil {
		l.Add("selection", picking, &s.scratch, tensor.U8, int(s.pick.ScratchBytes(t)))
	}
	if s.query != nil {
		format := k.cfg.Caches.Keys.Layout.Format
		l.Add("index q, codes", picking, &s.codes, tensor.U8, t, h, format.RowBytes())
		l.Add("index q, weights", picking, &s.folded, tensor.F32, t, h)
		if format == cache.IndexKeyMXFP4 {
			l.Add("index q, scales", picking, &s.scales, tensor.U8, t, h, cache.IndexScaleBytes)
		}
	}
}

// recordQuantise records how queries are quantised.
func (s *selection) recordQuantise(rec *vk.Recorder, step *StepArgs, cosSin tensor.Tensor) error {
	return s.query.Record(rec, indexer.QueryQuantArgs{Q: s.q, Positions: step.Positions, Weights: s.weights, Table: cosSin,
		Codes: s.codes, Scales: s.scales, WeightsOut: s.folded})
}

// record records scores and selection, and beside, unless nil, with the first scores. visible
// says how many entries each token may see.
func (s *selection) record(rec *vk.Recorder, step *StepArgs, a *Args, visible tensor.Tensor, beside func() error) error {
	scores := indexer.LogitsArgs{Q: s.codes, QScale: s.scales, Weights: s.folded, Keys: a.Caches.Keys,
		BlockTable: step.Tables.Keys, TokenToReq: step.TokenToReq, Lens: visible}
	if s.query == nil {
		scores.Raw = indexer.RawQueries{Q: s.q, Positions: step.Positions, Weights: s.weights, Table: a.CosSin}
	}
	var made indexer.CandidateBlocks
	switch s.candidates {
	case model.CandidatesMade:
		made = a.Blocks
	case model.CandidatesUsed:
		scores.Blocks, scores.Lens = a.Blocks.Blocks, a.Blocks.Columns
	}
	to := s.to(a)
	err := s.pick.Record(rec, indexer.SelectArgs{LogitsArgs: scores, TopK: s.topK, Entries: s.entries, Scratch: s.scratch.View(),
		Candidates: made, Arrived: s.arrived, Beside: beside,
		Slots: indexer.PickSlots{BlockTable: step.Tables.Compressed, Slots: to.Slots, Lens: to.Lens}})
	if err != nil || a.Picks.TopK.IsZero() {
		return err
	}
	return rec.Copy(a.Picks.TopK.View(), s.topK.View())
}

// to returns the tensors for the picks of a layer.
func (s *selection) to(a *Args) PickedSlots {
	if a.Picks.Slots.IsZero() {
		return PickedSlots{s.own.slots, s.own.lens, s.topK}
	}
	return PickedSlots{a.Picks.Slots, a.Picks.Lens, s.topK}
}
