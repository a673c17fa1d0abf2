package model

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/vk"
)

// mostKeeping is the most sequences on their way to the store at a time. Each holds its pages.
const mostKeeping = 4

// Prefixes keeps what the model computed of prompts in a store, for itself and for others
// that run the same model on the same kind of device.
type Prefixes struct {
	model *Model
	store prefix.Store
	o     prefix.Options
	slots chan struct{}
	group sync.WaitGroup

	mu      sync.Mutex
	keepers map[string]*prefix.Keeper // by owner: none finds what another one keeps
}

// identity names what numbers in the caches depend on, besides the attention's weights and formats:
// all weights, who multiplies, and the device with its driver, since another compiler may add in
// another order.
func (m *Model) identity(a *vk.Adapter, at Placement) string {
	products := cpu.Products()
	switch {
	case at.Whole:
		products = "gpu 2"
	case at.Apart:
		products += fmt.Sprintf(" gpu 2 %d", at.Layers)
	}
	return fmt.Sprintf("%s %s %s %s %s %d", m.Weights.Identity(), products, a.Name, a.DriverName, a.DriverInfo, a.DriverVersion)
}

// Prefixes keeps prompts in a store. It is for a model that was opened with Options.Prefixes. The
// caller closes it before the model.
func (m *Model) Prefixes(s prefix.Store, o prefix.Options) (*Prefixes, error) {
	p := &Prefixes{model: m, store: s, o: o, slots: make(chan struct{}, mostKeeping), keepers: map[string]*prefix.Keeper{}}
	_, err := p.keeper("")
	return p, err
}

// keeper returns the keeper of an owner, whose names and checksums are of a key of their own.
func (p *Prefixes) keeper(owner string) (k *prefix.Keeper, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k = p.keepers[owner]; k != nil {
		return k, nil
	}
	o := p.o
	if owner != "" {
		sum := hmac.New(sha256.New, p.o.Key)
		sum.Write([]byte(owner))
		o.Key = sum.Sum(nil)
	}
	if k, err = prefix.New(p.model.engine, p.store, o); err == nil {
		p.keepers[owner] = k
	}
	return k, err
}

// Open opens a sequence that has the first n of an owner's tokens already. It may take the store's
// time.
//
// Errors: those of prefix.Keeper.Open.
func (p *Prefixes) Open(ctx context.Context, owner string, tokens []int32) (s *Sequence, n int, err error) {
	k, err := p.keeper(owner)
	if err != nil {
		return nil, 0, err
	}
	session, n, err := k.Open(ctx, tokens)
	if err != nil {
		return nil, 0, err
	}
	return &Sequence{session}, n, nil
}

// Parting returns the number of tokens, which Open was called with, after which a sequence should
// be kept: there others of the owner that were kept go on otherwise. 0: nowhere.
func (p *Prefixes) Parting(owner string, tokens []int32) int {
	k, err := p.keeper(owner)
	if err != nil {
		return 0
	}
	return k.Parting(tokens)
}

// Keep stores what an owner's sequence has of its first tokens, beside the steps that follow: with
// end for who sends the same prompt again. While too many are on their way it does nothing.
func (p *Prefixes) Keep(s *Sequence, owner string, tokens []int32, end bool) {
	k, err := p.keeper(owner)
	if err != nil {
		return
	}
	select {
	case p.slots <- struct{}{}:
	default:
		return
	}
	fork, err := s.session.Fork()
	if err != nil {
		<-p.slots
		p.o.Log.Warn("keeping a prefix", "error", err)
		return
	}
	tokens = slices.Clone(tokens)
	p.group.Go(func() {
		defer func() { <-p.slots }()
		defer fork.Close()
		keep := k.KeepBlocks
		if end {
			keep = k.Keep
		}
		if err := keep(context.Background(), fork, tokens); err != nil { // bounded by Options.Timeout
			p.o.Log.Warn("keeping a prefix", "tokens", len(tokens), "error", err)
		}
	})
}

// Stats counts what was found and kept, of all owners.
func (p *Prefixes) Stats() (sum prefix.Stats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keepers {
		s := k.Stats()
		sum.Asked, sum.Found, sum.Loaded = sum.Asked+s.Asked, sum.Found+s.Found, sum.Loaded+s.Loaded
		sum.Stored, sum.Damaged, sum.Failed = sum.Stored+s.Stored, sum.Damaged+s.Damaged, sum.Failed+s.Failed
	}
	return sum
}

// Close waits for what is on its way to the store.
func (p *Prefixes) Close() {
	if p != nil {
		p.group.Wait()
	}
}
