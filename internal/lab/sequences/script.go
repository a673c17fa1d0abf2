package sequences

import (
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline/model"
)

// script is a sequence of tokens that sessions follow. All layers see the same contents; what a
// token wants to find differs by layer.
type script struct {
	l        *Lab
	tokens   []uint64    // equal numbers: equal inputs of all layers
	before   []uint64    // before[n] is the history of the first n tokens
	contents [][]float32 // [tokens][features] of 1 and -1
	views    []view      // of each layer
	equal    bool        // all contents are the same
}

// view holds what one layer sees of a script.
type view struct {
	spec   *model.Layer
	hidden []float32 // [tokens, hidden]
	marked []int     // tokens whose content is that of an entry of the layer's own, or of EntriesOf
	wants  []want    // [tokens]; nil where layers have random weights
}

// wantKind says what a token wants to find.
type wantKind int

const (
	wantMean  wantKind = iota // nothing: its queries are 0, so all that it sees weighs the same
	wantRow                   // the window's row of a token
	wantGone                  // the row of the token that has just left the window: it must find nothing
	wantEntry                 // an entry, by the group that it is of or by the one before
)

// want names what a token has to find.
type want struct {
	kind  wantKind
	token int // whose content it is
	entry int // that has it
	by    *code
}

// script returns the script of a seed. Scripts of different seeds have nothing in common but their
// first `shared` tokens, which are those of seed 1. Scripts are kept.
func (l *Lab) script(seed uint64, shared int) *script {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.scripts[seed]; s != nil {
		return s
	}
	s := &script{l: l}
	for t := range l.tokens() {
		from := seed
		if t < shared {
			from = 1
		}
		token := mix(mix(from, 0), uint64(t))
		s.tokens = append(s.tokens, token)
		s.contents = append(s.contents, newContent(rand.New(rand.NewPCG(token, 11))))
	}
	l.scripts[seed] = s.fill()
	return s
}

func newContent(rng *rand.Rand) []float32 {
	c := make([]float32, features)
	for i := range c {
		c[i] = float32(1 - 2*rng.IntN(2))
	}
	return c
}

// equal returns a script of tokens with one content.
func (l *Lab) equal(seed uint64) *script {
	s := &script{l: l, equal: true, contents: slices.Repeat([][]float32{newContent(rand.New(rand.NewPCG(seed, 11)))}, l.tokens())}
	for t := range s.contents {
		s.tokens = append(s.tokens, mix(mix(seed, 0), uint64(t)))
	}
	return s.fill()
}

// foreign returns a script whose hidden states are numbers, in turn, in two of three places.
func (l *Lab) foreign(seed uint64, numbers []float32) *script {
	s := l.bare(seed)
	for range l.layers {
		h := make([]float32, l.tokens()*l.cfg.Hidden)
		for i := range h {
			if h[i] = 1; i%3 > 0 {
				h[i] = numbers[i/3%len(numbers)]
			}
		}
		s.views = append(s.views, view{hidden: h})
	}
	return s
}

func (l *Lab) bare(seed uint64) *script {
	s := &script{l: l}
	for t := range l.tokens() {
		s.tokens = append(s.tokens, mix(mix(seed, 0), uint64(t)))
	}
	s.remember()
	return s
}

// fill makes the views of a script that has tokens and contents.
func (s *script) fill() *script {
	for i, w := range s.l.layers {
		spec := &s.l.cfg.Layers[w.Layer]
		if s.l.o.Random != nil {
			s.views = append(s.views, s.random(spec, i))
		} else {
			s.views = append(s.views, s.view(spec, uint64(i)))
		}
	}
	s.remember()
	return s
}

func (s *script) remember() {
	h := newHistory()
	for _, token := range s.tokens {
		h.add(token)
	}
	s.before = h
}

// random gives a layer of random weights random hidden states.
func (s *script) random(spec *model.Layer, layer int) view {
	v := view{spec: spec}
	for _, token := range s.tokens {
		v.hidden = append(v.hidden, fakemodel.RandomHidden(rand.New(rand.NewPCG(token, uint64(layer))), 1, s.l.cfg.Hidden)...)
	}
	return v
}

// view chooses what each token wants by random numbers of the token and the layer: scripts that
// begin alike want the same there.
func (s *script) view(spec *model.Layer, layer uint64) view {
	n := len(s.tokens)
	v := view{spec: spec, hidden: make([]float32, n*hidden), wants: make([]want, n)}
	if spec.Borrows {
		v.marked = s.views[spec.EntriesOf].marked
	} else {
		v.marked = s.marked(spec, layer)
	}
	for t := range n {
		row := v.hidden[t*hidden:][:hidden]
		copy(row, s.contents[t])
		row[constant] = 1
		v.wants[t] = s.want(spec, v.marked, t, rand.New(rand.NewPCG(s.tokens[t], layer)))
		if a := v.wants[t]; a.kind != wantMean {
			for i, from := range a.by {
				row[wanted+i] = s.contents[a.token][from]
			}
		}
	}
	for _, t := range v.marked {
		v.hidden[t*hidden+salient] = salience
	}
	return v
}

// marked returns the tokens whose content becomes that of an entry: one of every second group,
// anywhere in it, and of every third one where entries overlap. All tokens of the other groups
// count in their entries.
func (s *script) marked(spec *model.Layer, layer uint64) (all []int) {
	if spec.Ratio == 0 {
		return nil
	}
	every := 2 * spec.Ratio
	if spec.Overlap {
		every = 3 * spec.Ratio
	}
	for at := 0; at+spec.Ratio <= len(s.tokens); at += every {
		all = append(all, at+rand.New(rand.NewPCG(s.tokens[at], 1000+layer)).IntN(spec.Ratio))
	}
	return all
}

// want chooses what a token wants: the last of a group the entry that it completes, others as often
// the latest as the earliest entry and any other.
func (s *script) want(spec *model.Layer, marked []int, t int, rng *rand.Rand) want {
	window := s.l.cfg.Window
	visible := 0
	if spec.Ratio > 0 {
		visible = (t + 1) / spec.Ratio
	}
	var entries []want
	for _, p := range marked {
		if e := p / spec.Ratio; e < visible {
			entries = append(entries, want{wantEntry, p, e, &codeOwn})
		}
		if e := p/spec.Ratio + 1; spec.Overlap && e < visible {
			entries = append(entries, want{wantEntry, p, e, &codeBefore})
		}
	}
	entries = s.findable(spec, t, visible, entries)
	completes := spec.Ratio > 0 && t%max(4, spec.Ratio) == spec.Ratio-1
	switch n := rng.IntN(16); {
	case completes && len(entries) > 0: // what began before a cut, as soon as it can be seen
		return entries[len(entries)-1]
	case n < 3:
		return want{}
	case n < 4 && t >= window && !spec.Block: // a block sees a whole window before it
		return want{wantGone, t - window, 0, &codeWindow}
	case n < 5:
		return want{wantRow, max(0, t-window+1), 0, &codeWindow}
	case n < 8 || len(entries) == 0:
		return want{wantRow, t - rng.IntN(min(t+1, window)), 0, &codeWindow}
	case n < 11:
		return entries[len(entries)-1]
	case n < 13:
		return entries[0]
	}
	return entries[rng.IntN(len(entries))]
}

// findable keeps the entries that a token of a layer surely attends: all, or, of a layer that
// attends what another one picks, the entry that this one wants, or, of one that picks among
// another's candidates, the entries in the block of that entry and in the newest one.
func (s *script) findable(spec *model.Layer, t, visible int, entries []want) []want {
	var source want
	keep := func(e int) bool { return true }
	switch c := &s.l.cfg; {
	case spec.Picks == model.PickEarlier && visible > c.TopK:
		source = s.views[spec.PicksOf].wants[t]
		keep = func(e int) bool { return source.kind == wantEntry && e == source.entry }
	case spec.Candidates == model.CandidatesUsed && visible > c.CandidateBlocks*c.CandidateBlock:
		source = s.views[spec.CandidatesOf].wants[t]
		keep = func(e int) bool {
			b := e / c.CandidateBlock
			return b == (visible-1)/c.CandidateBlock || source.kind == wantEntry && b == source.entry/c.CandidateBlock
		}
	}
	return slices.DeleteFunc(entries, func(a want) bool { return !keep(a.entry) })
}

// inputs returns the hidden states of tokens from to end-1 for a layer.
func (s *script) inputs(layer, from, end int) []float32 {
	return s.views[layer].hidden[from*s.l.cfg.Hidden : end*s.l.cfg.Hidden]
}
