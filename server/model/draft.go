package model

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/weights"
)

// weights opens the weights, with the draft block where it is used, and settles how many tokens are
// drafted.
func (o *Options) weights(dir string) (*weights.Model, error) {
	if o.Drafts == 0 && o.Draft == "" {
		return weights.Open(dir)
	}
	w, err := weights.OpenWithDrafts(dir, o.Draft)
	if err != nil {
		return nil, err
	}
	block := w.Config.DraftBlock
	if o.Drafts = cmp.Or(o.Drafts, block); o.Drafts > block || block > o.MaxStep {
		w.Close()
		return nil, fmt.Errorf("model: --drafts: got %d in steps of %d tokens, want at most the block's, %d, in steps of as many",
			o.Drafts, o.MaxStep, block)
	}
	return w, nil
}

// attention opens the attention of all layers that were opened.
func (o *Options) attention(dir string, w *weights.Model) (*model.Checkpoint, error) {
	layers := make([]int, len(w.Layers))
	for i := range layers {
		layers[i] = i
	}
	return model.Open(dir, model.CheckpointOptions{Layers: layers, Drafts: o.Draft})
}

// attend runs the attention of a layer in a step.
func (m *Model) attend(ctx context.Context, step *pipeline.Step, parts []pipeline.Chunk, layer int, x, f []float32) error {
	m.spent.Attention.Bytes += int64(m.layers[layer].Bytes())
	return runLayer(ctx, step, parts, layer, x, f)
}

// keepState keeps what a layer left, if drafts are made of it.
func (m *Model) keepState(layer int) {
	k := slices.Index(m.Config.DraftTargets, layer)
	if m.Weights.Draft == nil || k < 0 {
		return
	}
	d, width := m.Config.Hidden, m.Weights.Draft.Main.K
	m.states = room(m.states, m.streams.T*width)
	m.cpu.State(&m.streams, m.states, k*d, width)
}

// context gives the layers that draft the tokens of a step.
func (m *Model) context(tokens int, attend attention, w *watch) error {
	x := m.x[:tokens*m.Config.Hidden]
	m.cpu.Context(m.states, x)
	w.lap(&m.spent.Drafts)
	for i := m.Weights.Own(); i < len(m.Weights.Layers); i++ {
		if err := attend(i, x, nil); err != nil {
			return err
		}
	}
	w.lap(&m.spent.Drafts)
	return nil
}

// Draft guesses what comes after sequences. Each goes on with its chunk's one token:
// Config.DraftBlock tokens for each, none for one that has no room for as many. The sequences stay
// as they are.
//
// Errors: those of Step.
func (m *Model) Draft(ctx context.Context, chunks ...Chunk) ([][]int32, error) {
	block := m.Config.DraftBlock
	all, most := make([][]int32, len(chunks)), m.step/block
	var some []int
	for i, c := range chunks {
		if c.Sequence.session.Len()+block <= m.most {
			some = append(some, i)
		}
	}
	for len(some) > 0 {
		now := some[:min(most, len(some))]
		some = some[len(now):]
		list := make([]Chunk, len(now))
		for k, i := range now {
			list[k] = chunks[i]
		}
		drafts, err := m.draft(ctx, list)
		if err != nil {
			return nil, err
		}
		for k, i := range now {
			all[i] = drafts[k]
		}
	}
	return all, nil
}

// draft is Draft for as many sequences as a step has room for.
func (m *Model) draft(ctx context.Context, chunks []Chunk) (drafts [][]int32, err error) {
	block := m.Config.DraftBlock
	var ids []int32
	var parts []pipeline.Chunk
	for _, c := range chunks {
		ids = append(append(ids, c.Tokens[0]), slices.Repeat([]int32{m.Config.Noise}, block-1)...)
		parts = append(parts, pipeline.Chunk{Session: c.Sequence.session, Tokens: block, Draft: true})
	}
	step, err := m.engine.Begin(ctx, parts...)
	if err != nil {
		return nil, err
	}
	defer step.Abort() // does nothing after Commit
	if m.gpu != nil {
		return m.draftGPU(ctx, step, parts, ids)
	}
	if err := m.Intact(); err != nil {
		return nil, err
	}
	before := m.spent
	err = m.Weights.Read(func() (err error) { // a file may become shorter meanwhile
		drafts, err = m.block(ctx, ids, func(layer int, x, f []float32) error { return m.attend(ctx, step, parts, layer, x, f) })
		return err
	})
	m.spent = m.spent.drafting(before)
	if err != nil {
		return nil, err
	}
	return drafts, step.Commit()
}

// block takes blocks of drafts through the layers that draft.
func (m *Model) block(ctx context.Context, ids []int32, attend attention) ([][]int32, error) {
	w := m.watch()
	m.cpu.Embed(&m.streams, ids)
	for i := m.Weights.Own(); i < len(m.Weights.Layers); i++ {
		if err := m.layer(ctx, i, attend, &w); err != nil {
			return nil, err
		}
	}
	all := make([]int, len(ids))
	for i := range all {
		all[i] = i
	}
	if _, err := m.logitsOf(ctx, true, all, &w); err != nil {
		return nil, err
	}
	drafts := m.cpu.Follow(ids, m.logits, m.Config.DraftBlock)
	w.lap(&m.spent.Drafts)
	return drafts, nil
}

// draftGPU is the rest of draft where everything is on the device.
func (m *Model) draftGPU(ctx context.Context, step *pipeline.Step, parts []pipeline.Chunk, ids []int32) (drafts [][]int32, err error) {
	began := time.Now()
	rows := rowsOf(step, parts)
	if err := m.gpu.Set(rows, ids, nil); err != nil {
		return nil, err
	}
	if err := step.Run(ctx); err != nil {
		return nil, err
	}
	for i := range parts {
		first, _ := step.Rows(i)
		drafts = append(drafts, m.gpu.Drafts(first))
	}
	m.spent.Drafts.Time += time.Since(began)
	return drafts, step.Commit()
}

// TakeBack forgets the last n tokens of a sequence, at most Options.Drafts.
func (m *Model) TakeBack(s *Sequence, n int) error { return s.session.Truncate(s.session.Len() - n) }
