package sequences

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline"
)

// equalScores gives all tokens the same content, so that entries have one of three keys: that of
// their own group's token, that of the one before, or a mean of both. Without overlap all have the
// same, and blocks of candidates the same scores.
func equalScores(p *player) {
	n := p.l.room(300)
	if p.l.o.Size == Full {
		n = p.l.tokens() - 60
	}
	p.in(pipeline.EngineOptions{MaxStep: 64}, func(p *player) {
		x := p.open(p.l.equal(8))
		p.take(x, n, 64)
		p.takeEach(x, 1, 1, 1, 7, 2, 3, 1)
	})
}

// earliest demands that a token that wants an entry of a key picked the first entries with that
// key, and the first of the others where there are too few.
func (s *script) earliest(layer, t int, picks []int32) error {
	c, k := &s.views[layer], s.l.cfg.TopK
	if !s.l.picks(layer) {
		return nil
	}
	a, visible := c.wants[t], (t+1)/c.spec.Ratio
	want := s.first(visible)
	switch {
	case !c.spec.Overlap: // all entries have the same key
	case a.kind == wantEntry && visible > k:
		want = firstOf(visible, k, a.entry%3)
	case a.kind != wantMean && visible > k:
		return nil // no key has a score that says anything
	}
	if !slices.Equal(picks, want) {
		return fmt.Errorf("layer %d, token %d: picks %v, want %v, the first with the highest score", layer, t, picks, want)
	}
	return nil
}

// firstOf returns k of the visible entries: the first of a key, 0 or 1, then of the mean, then of
// the other key, in ascending order.
func firstOf(visible, k, key int) (list []int32) {
	for _, from := range []int{key, 2, 1 - key} {
		for e := from; e < visible && len(list) < k; e += 3 {
			list = append(list, int32(e))
		}
	}
	slices.Sort(list)
	return list
}

// far demands that tokens of each layer that makes entries want one as far away as a script is
// long, which shows bases and scaling of angles.
func (s *script) far() error {
	least := len(s.tokens) * 4 / 5
	if s.l.o.Model != V4 { // its scripts are shorter
		least = len(s.tokens) * 2 / 3
	}
	for i, c := range s.views {
		n := 0
		for t, a := range c.wants {
			if a.kind == wantEntry && t-a.entry*c.spec.Ratio >= least {
				n++
			}
		}
		if c.spec.Compresses() && n < 5 { // those that borrow want what others do
			return fmt.Errorf("layer %d: %d tokens want an entry %d tokens away", i, n, least)
		}
	}
	return nil
}
