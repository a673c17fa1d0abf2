package model

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/vk"
)

// mostKeeping is the most sequences on their way to the store at a time. Each holds its pages.
const mostKeeping = 4

// Prefixes are what the model computed of prompts and keeps in a store, for itself and for others
// that run the same model on the same kind of device.
type Prefixes struct {
	model  *Model
	keeper *prefix.Keeper
	log    *slog.Logger
	slots  chan struct{}
	group  sync.WaitGroup
}

// identity names what numbers in the caches depend on, besides the attention's weights and formats:
// all weights, who multiplies, and the device with its driver, since another compiler may add in
// another order.
func (m *Model) identity(a *vk.Adapter, at Placement) string {
	products := cpu.Instructions()
	switch {
	case at.Whole:
		products = "gpu"
	case at.Apart:
		products += fmt.Sprintf(" gpu %d", at.Layers)
	}
	return fmt.Sprintf("%s %s %s %s %s %d", m.Weights.Identity(), products, a.Name, a.DriverName, a.DriverInfo, a.DriverVersion)
}

// Prefixes keeps prompts in a store. It is for a model that was opened with Options.Prefixes. The
// caller closes it before the model.
func (m *Model) Prefixes(s prefix.Store, o prefix.Options) (*Prefixes, error) {
	k, err := prefix.New(m.engine, s, o)
	if err != nil {
		return nil, err
	}
	return &Prefixes{model: m, keeper: k, log: o.Log, slots: make(chan struct{}, mostKeeping)}, nil
}

// Open opens a sequence that has the first n of the tokens already. It may take the store's time.
//
// Errors: those of prefix.Keeper.Open.
func (p *Prefixes) Open(ctx context.Context, tokens []int32) (s *Sequence, n int, err error) {
	session, n, err := p.keeper.Open(ctx, tokens)
	if err != nil {
		return nil, 0, err
	}
	return &Sequence{session}, n, nil
}

// Parting is after how many of some tokens, which Open was called with, a sequence should be kept:
// there others that were kept go on otherwise. 0: nowhere.
func (p *Prefixes) Parting(tokens []int32) int { return p.keeper.Parting(tokens) }

// Keep stores what a sequence has of its first tokens, beside the steps that follow: with end for
// who sends the same prompt again. While too many are on their way it does nothing.
func (p *Prefixes) Keep(s *Sequence, tokens []int32, end bool) {
	select {
	case p.slots <- struct{}{}:
	default:
		return
	}
	fork, err := s.session.Fork()
	if err != nil {
		<-p.slots
		p.log.Warn("keeping a prefix", "error", err)
		return
	}
	tokens = slices.Clone(tokens)
	p.group.Go(func() {
		defer func() { <-p.slots }()
		defer fork.Close()
		keep := p.keeper.KeepBlocks
		if end {
			keep = p.keeper.Keep
		}
		if err := keep(context.Background(), fork, tokens); err != nil { // bounded by Options.Timeout
			p.log.Warn("keeping a prefix", "tokens", len(tokens), "error", err)
		}
	})
}

// Stats counts what was found and kept.
func (p *Prefixes) Stats() prefix.Stats { return p.keeper.Stats() }

// Close waits for what is on its way to the store.
func (p *Prefixes) Close() {
	if p != nil {
		p.group.Wait()
	}
}
