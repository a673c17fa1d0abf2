package cuts

import (
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
)

// story is a sequence of tokens. All layers see the same contents; what a token asks for differs.
type story struct {
	l        *Lab
	n        int
	contents [][]float32 // [n][features] of 1 and -1
	layers   []chapter
	worst    [2]float64 // distances that check met: of outputs, and of their turned numbers
}

// chapter is what one layer sees.
type chapter struct {
	spec    *model.Layer
	hidden  []float32 // [n, hidden]
	needles []int     // tokens whose content is that of an entry of the layer's own, or of EntriesOf
	asks    []ask     // [n]
}

// askKind says what a token asks for.
type askKind int

const (
	askMean   askKind = iota // nothing: its queries are 0, so all that it sees weighs the same
	askRow                   // the window's row of a token
	askBeyond                // the row of the token that has just left the window: it must find nothing
	askEntry                 // an entry, by the group that it is of or by the one before
)

// ask is what a token asks for.
type ask struct {
	kind  askKind
	token int // whose content is asked for
	entry int // that has it
	by    *code
}

// newStory makes as many tokens as the lab has for one, by random contents. Those of stories with
// different seeds have nothing in common.
func (l *Lab) newStory(seed uint64) *story {
	rng := rand.New(rand.NewPCG(seed, 11))
	var contents [][]float32
	for range l.tokens() {
		contents = append(contents, newContent(rng))
	}
	return l.tell(contents, rng)
}

func newContent(rng *rand.Rand) []float32 {
	c := make([]float32, features)
	for i := range c {
		c[i] = float32(1 - 2*rng.IntN(2))
	}
	return c
}

// tell makes a story of contents.
func (l *Lab) tell(contents [][]float32, rng *rand.Rand) *story {
	s := &story{l: l, n: len(contents), contents: contents}
	for _, w := range l.layers {
		s.layers = append(s.layers, s.chapter(&l.cfg.Layers[w.Layer], rng))
	}
	return s
}

func (s *story) chapter(spec *model.Layer, rng *rand.Rand) chapter {
	c := chapter{spec: spec, hidden: make([]float32, s.n*hidden), asks: make([]ask, s.n)}
	if spec.Borrows {
		c.needles = s.layers[spec.EntriesOf].needles
	} else {
		c.needles = s.needles(spec, rng)
	}
	for t := range s.n {
		row := c.hidden[t*hidden:][:hidden]
		copy(row, s.contents[t])
		row[constant] = 1
		c.asks[t] = s.ask(spec, c.needles, t, rng)
		if a := c.asks[t]; a.kind != askMean {
			for i, from := range a.by {
				row[asked+i] = s.contents[a.token][from]
			}
		}
	}
	for _, t := range c.needles {
		c.hidden[t*hidden+salient] = salience
	}
	return c
}

// needles are the tokens whose content becomes that of an entry: one of every second group,
// anywhere in it, and of every third one where entries overlap. All tokens of the other groups
// count in their entries.
func (s *story) needles(spec *model.Layer, rng *rand.Rand) (all []int) {
	if spec.Ratio == 0 {
		return nil
	}
	every := 2 * spec.Ratio
	if spec.Overlap {
		every = 3 * spec.Ratio
	}
	for at := 0; at+spec.Ratio <= s.n; at += every {
		all = append(all, at+rng.IntN(spec.Ratio))
	}
	return all
}

// ask chooses what a token asks for: the last of a group for the entry that it completes, others
// as often for the latest as for the earliest entry and any other.
func (s *story) ask(spec *model.Layer, needles []int, t int, rng *rand.Rand) ask {
	window := s.l.cfg.Window
	visible := 0
	if spec.Ratio > 0 {
		visible = (t + 1) / spec.Ratio
	}
	var entries []ask
	for _, p := range needles {
		if e := p / spec.Ratio; e < visible {
			entries = append(entries, ask{askEntry, p, e, &codeOwn})
		}
		if e := p/spec.Ratio + 1; spec.Overlap && e < visible {
			entries = append(entries, ask{askEntry, p, e, &codeBefore})
		}
	}
	entries = s.findable(spec, t, visible, entries)
	completes := spec.Ratio > 0 && t%max(4, spec.Ratio) == spec.Ratio-1
	switch n := rng.IntN(16); {
	case completes && len(entries) > 0: // what began before a cut, as soon as it can be seen
		return entries[len(entries)-1]
	case n < 3:
		return ask{}
	case n < 4 && t >= window && !spec.Block: // a block sees a whole window before it
		return ask{askBeyond, t - window, 0, &codeWindow}
	case n < 5:
		return ask{askRow, max(0, t-window+1), 0, &codeWindow}
	case n < 8 || len(entries) == 0:
		return ask{askRow, t - rng.IntN(min(t+1, window)), 0, &codeWindow}
	case n < 11:
		return entries[len(entries)-1]
	case n < 13:
		return entries[0]
	}
	return entries[rng.IntN(len(entries))]
}

// findable are those of some entries that a token of a layer surely attends: all, or, of a layer
// that attends what another one picks, the entry that this one asks for, or, of one that picks
// among another's candidates, the entries in the block of that entry and in the newest one.
func (s *story) findable(spec *model.Layer, t, visible int, entries []ask) []ask {
	var source ask
	keep := func(e int) bool { return true }
	switch c := &s.l.cfg; {
	case spec.Picks == model.PickEarlier && visible > c.TopK:
		source = s.layers[spec.PicksOf].asks[t]
		keep = func(e int) bool { return source.kind == askEntry && e == source.entry }
	case spec.Candidates == model.CandidatesUsed && visible > c.CandidateBlocks*c.CandidateBlock:
		source = s.layers[spec.CandidatesOf].asks[t]
		keep = func(e int) bool {
			b := e / c.CandidateBlock
			return b == (visible-1)/c.CandidateBlock || source.kind == askEntry && b == source.entry/c.CandidateBlock
		}
	}
	return slices.DeleteFunc(entries, func(a ask) bool { return !keep(a.entry) })
}

// inputs are the hidden states of tokens from to end-1 for a layer.
func (s *story) inputs(layer, from, end int) []float32 {
	return s.layers[layer].hidden[from*hidden : end*hidden]
}

// until is the story up to a token, and another from there on.
func (s *story) until(other *story, n int) *story {
	m := &story{l: s.l, n: s.n}
	for i := range s.layers {
		m.layers = append(m.layers, chapter{hidden: slices.Concat(s.inputs(i, 0, n), other.inputs(i, n, other.n))})
	}
	return m
}
