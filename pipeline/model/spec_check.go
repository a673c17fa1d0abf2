package model

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/vkmla/vkmla/cache"
)

// stores lists the caches that a layer has to have, without StoreWindow.
func (s *LayerSpec) stores() []Store {
	if !s.Compresses() {
		return nil
	}
	list := []Store{StoreEntries}
	if s.Gated() {
		list = append(list, StoreState)
	}
	if s.Picks == PickOwn {
		list = append(list, StoreKeys)
		if !s.LatentKeys {
			list = append(list, StoreKeyState)
		}
	}
	return list
}

// layerCheck finds what is wrong with a list of layers.
type layerCheck struct {
	list  []Layer
	bad   func(field string, got any, want string, a ...any)
	pools map[string]PoolSpec
	kinds map[string]LayerSpec
}

func checkLayers(list []Layer, bad func(field string, got any, want string, a ...any)) {
	c := layerCheck{list: list, bad: bad, pools: map[string]PoolSpec{}, kinds: map[string]LayerSpec{}}
	for i := range list {
		c.layer(i)
	}
}

func (c *layerCheck) layer(i int) {
	l := &c.list[i]
	field := fmt.Sprintf("layers[%d]", i)
	if l.Name == "" || l.Ratio < 0 || l.Ratio > cache.MaxRatio {
		c.bad("compress_ratios", fmt.Sprintf("%d for layer %d", l.Ratio, i), "0, 1, 4 or 128, and in DeepSeek-V4.1 0, 1 or 2")
		return
	}
	if !l.LayerSpec.sensible() {
		c.bad(field, l.Name, "no fields about entries that the layer does not have")
	}
	if k, seen := c.kinds[l.Name]; seen && !k.equal(&l.LayerSpec) {
		c.bad(field, l.Name, "one kind of layer by that name")
	}
	c.kinds[l.Name] = l.LayerSpec
	if i > 0 && c.list[i-1].Draft && !l.Draft {
		c.bad(field+".Draft", l.Draft, "true, behind a layer that only predicts ahead")
	}
	c.sources(field, i)
	c.caches(field, l)
}

// sensible reports whether the fields of a row go with each other.
func (s *LayerSpec) sensible() bool {
	pools := s.Overlap || s.Unplaced || s.Latent
	switch {
	case s.Ratio == 0 && (s.Borrows || s.Picks != PickNone), pools && !s.Compresses(), s.Overlap && s.Latent,
		s.LatentKeys && (!s.Latent || s.Picks != PickOwn), !s.gated() && !s.Latent,
		s.Candidates != CandidatesNone && s.Picks != PickOwn, s.Block && s.Ratio > 0,
		s.Picks > PickEarlier, s.Candidates > CandidatesUsed:
		return false
	}
	return true
}

// sources checks that a layer takes from itself or from an earlier one that has it.
func (c *layerCheck) sources(field string, i int) {
	l := &c.list[i]
	from := func(name string, source int, earlier bool) *Layer {
		switch {
		case !earlier && source != i:
			c.bad(field+"."+name, source, "%d, the layer itself", i)
		case earlier && (source < 0 || source >= i):
			c.bad(field+"."+name, source, "an earlier layer")
		default:
			return &c.list[source]
		}
		return nil
	}
	entries := from("EntriesOf", l.EntriesOf, l.Borrows)
	if entries != nil && l.Borrows && (!entries.Compresses() || entries.Ratio != l.Ratio ||
		l.Picks == PickOwn && entries.Picks != PickOwn) {
		c.bad(field+".EntriesOf", l.EntriesOf, "a layer with what %s reads, by a compressor of ratio %d", l.Name, l.Ratio)
	}
	picks := from("PicksOf", l.PicksOf, l.Picks == PickEarlier)
	if picks != nil && l.Picks == PickEarlier && (picks.Picks != PickOwn || picks.EntriesOf != l.EntriesOf) {
		c.bad(field+".PicksOf", l.PicksOf, "a layer whose indexer picks of the same entries")
	}
	if l.Candidates != CandidatesUsed {
		return
	}
	made := from("CandidatesOf", l.CandidatesOf, true)
	if made != nil && (made.Candidates != CandidatesMade || made.Ratio != l.Ratio) {
		c.bad(field+".CandidatesOf", l.CandidatesOf, "a layer that makes candidates, of entries of as many tokens")
	}
}

// caches checks that a layer has the pools that it needs, and that each is one pool
// throughout the model.
func (c *layerCheck) caches(field string, l *Layer) {
	var have []Store
	for _, p := range l.Pools {
		at := fmt.Sprintf("%s.Pools %q", field, p.Name)
		if p.Name == "" || len(p.Name) > MaxPoolName || p.Page < 1 || p.Page > maxPage || p.Tokens < 1 || p.Keep < KeepContext {
			c.bad(at, fmt.Sprintf("%+v", p), "a name, and 1 to %d slots of at least a token", maxPage)
		}
		if q, seen := c.pools[p.Name]; seen && (q.Page != p.Page || q.Tokens != p.Tokens || q.Keep != p.Keep) {
			c.bad(at, fmt.Sprintf("%+v", p), "one pool by that name")
		}
		c.pools[p.Name] = p
		for _, s := range p.Stores {
			have = append(have, s)
			if tokens, keeps := l.reads(s, p.Keep); p.Tokens != tokens || !keeps {
				c.bad(at, fmt.Sprintf("%+v", p), "slots of %d tokens, and Keep at least what a step reads", tokens)
			}
		}
	}
	want := append([]Store{StoreWindow}, l.stores()...)
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		c.bad(field+".Pools", fmt.Sprintf("stores %v", have), "%v", want)
	}
}

// reads returns the tokens of a slot of a store, and whether keep is enough for what a step reads.
func (s *LayerSpec) reads(store Store, keep int) (tokens int, enough bool) {
	switch store {
	case StoreWindow:
		return 1, keep == KeepContext || keep == KeepWindow && !s.Block || keep == KeepAll
	case StoreEntries, StoreKeys:
		return s.Ratio, keep == KeepAll
	}
	c := s.Compression(cache.D)
	return 1, keep >= c.Window()-1 || keep == KeepAll
}

func (s *LayerSpec) equal(o *LayerSpec) bool {
	a, b := *s, *o
	a.Pools, b.Pools = nil, nil
	return reflect.DeepEqual(a, b) &&
		slices.EqualFunc(s.Pools, o.Pools, func(a, b PoolSpec) bool {
			return a.Name == b.Name && a.Page == b.Page && a.Tokens == b.Tokens && a.Keep == b.Keep && slices.Equal(a.Stores, b.Stores)
		})
}
