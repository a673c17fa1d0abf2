package sequences

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
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

// nearness says how far layers of random weights may be from the definition, by the length of its
// outputs, and which part of picks may be others.
type nearness struct{ all, token, missed float64 }

// Layers of DeepSeek-V4 are from theirs, which quantises nothing, what bf16 and quantised caches let
// them be; those of V4.1 from one that rounds what they round.
var (
	formulaWithin = nearness{0.061, 0.095, 0.1}
	definedWithin = nearness{5e-3, math.Inf(1), 1.0 / 200}
)

// angles demands that tokens want entries as far away as a script is long, which show bases and
// scaling. Then it runs a model of random weights, whose outputs and picks depend on all rows and
// all angles, and compares it with its formula.
func angles(p *player) {
	l, away := p.l, p.l.tokens()*4/5
	if l.o.Model != V4 { // its scripts are shorter
		away = l.tokens() * 2 / 3
	}
	p.do(l.pass.sc.far(away))
	switch {
	case !p.ok():
	case l.o.Model != V4:
		p.random(fakemodel.FP8, []int{35, 1, 3, 18, 1, 1, 2}, fakemodel.V41())
	default:
		c := fakemodel.Config(0, 4, 128)
		c.Window = l.cfg.Window
		p.random(fakemodel.FP8, []int{35, 64, 30, 1, 64, 3, 1, 60, 5, 1, 1, 1, 4}, c)
	}
}

// formats reads weights of the formats whose factors are easy to take the wrong way round, which
// others store as what a weight is divided by, and compares a layer with its formula.
func formats(p *player) {
	for _, s := range []fakemodel.Storage{fakemodel.FP8F32, fakemodel.FP8Rows, fakemodel.NVFP4, fakemodel.NVFP4Packed} {
		p.at(func() { p.random(s, []int{9, 1, 3}, fakemodel.Config(4)) }, "%s", s)
	}
}

// random takes tokens in steps of some sizes through layers of random weights in a format, and
// compares all that they give with the formula.
func (p *player) random(s fakemodel.Storage, steps []int, c model.Config) {
	c.Heads = 2
	p.weights(s, c, func(p *player, m *fakemodel.Model) {
		x, all := p.open(p.script(9)), make([]gave, p.l.main())
		for _, n := range steps {
			var given []gave
			p.step(chunk{session: x, n: n, keep: &given})
			for i := range given[:min(len(given), len(all))] {
				all[i].out, all[i].picks = append(all[i].out, given[i].out...), append(all[i].picks, given[i].picks...)
			}
		}
		if p.ok() {
			p.do(p.l.agrees(m, x, all))
		}
	})
}

// far demands that tokens of each layer that makes entries want one so far away.
func (s *script) far(least int) error {
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

// agrees compares what layers of random weights gave for a session's tokens with their definition.
func (l *Lab) agrees(m *fakemodel.Model, x *session, got []gave) error {
	within, records := formulaWithin, model.Records(0)
	if l.o.Model != V4 {
		within, records = definedWithin, models[l.o.Model].records
	}
	q := formula.NewSequence(l.cfg, formula.Numerics{Exact: records == 0, Records: records}, m.Values)
	var inputs [][]float32
	var gave []pipeline.Appended
	for i, g := range got {
		inputs, gave = append(inputs, x.sc.inputs(i, 0, x.len())), append(gave, pipeline.Appended{Out: g.out, TopK: g.picks})
	}
	_, all := q.Follow(inputs, gave)
	for i, f := range all {
		worst := slices.Max(f.Apart)
		about := fmt.Sprintf("layer %d (%s): %.4f from its definition, a token %.4f, %d of %d picks missed", i, l.cfg.Layers[i].Name,
			f.Whole, worst, f.Missed, f.Picks)
		l.o.Log("%s", about)
		if !(f.Whole < within.all && worst < within.token) || f.Few > 0 || float64(f.Missed) > within.missed*float64(f.Picks) {
			return errors.New(about)
		}
	}
	return nil
}
