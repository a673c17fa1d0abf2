package cuts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// line is a session that follows a story.
type line struct {
	l    *Lab
	e    *pipeline.Engine
	s    *pipeline.Session
	st   *story
	got  []pipeline.Appended // of each layer that does not draft, for the tokens from `from` on
	from int
}

// open begins a story in an engine.
func (l *Lab) open(e *pipeline.Engine, st *story) (*line, error) {
	s, err := e.Open()
	return l.follow(e, s, st), err
}

// follow lets a session, which has the story's first tokens, go on.
func (l *Lab) follow(e *pipeline.Engine, s *pipeline.Session, st *story) *line {
	x := &line{l: l, e: e, s: s, st: st, got: make([]pipeline.Appended, l.main())}
	if s != nil {
		x.from = s.Len()
	}
	return x
}

// chunk is a line's next tokens in a step; of another story, if it has one.
type chunk struct {
	*line
	n     int
	other *story
}

// step takes chunks through all layers.
func step(ctx context.Context, chunks ...chunk) error {
	e := chunks[0].e
	var list []pipeline.Chunk
	for _, c := range chunks {
		list = append(list, pipeline.Chunk{Session: c.s, Tokens: c.n})
	}
	st, err := e.Begin(ctx, list...)
	if err != nil {
		return err
	}
	for k, c := range chunks {
		from := c.st
		if c.other != nil {
			from = c.other
		}
		for i := range c.l.layers {
			at := c.s.Len()
			err = errors.Join(err, st.SetInput(i, k, from.inputs(i, at, at+c.n)))
		}
	}
	if err == nil {
		err = st.Run(ctx)
	}
	for k, c := range chunks {
		for i := range c.got {
			if err == nil {
				err = c.read(st, i, k)
			}
		}
	}
	if err != nil {
		return errors.Join(err, st.Abort())
	}
	if f := chunks[0].l.o.Stepped; f != nil {
		f()
	}
	return st.Commit()
}

// read adds what a step gave.
func (c *chunk) read(st *pipeline.Step, layer, k int) error {
	out, picks := make([]float32, c.n*hidden), make([]int32, c.n*c.l.cfg.TopK)
	err := st.ReadOutput(layer, k, out)
	got := &c.got[layer]
	got.Out = append(got.Out, out...)
	if err == nil && c.l.picks(layer) {
		err = st.ReadTopK(layer, k, picks)
		got.TopK = append(got.TopK, picks...)
	}
	return err
}

// picks reports whether a layer has an indexer.
func (l *Lab) picks(layer int) bool {
	return l.cfg.Layers[l.layers[layer].Layer].Picks == model.PickOwn
}

// take takes the next n tokens in a step of their own, or in several of at most so many.
func (x *line) take(ctx context.Context, n, most int) error {
	for end := x.s.Len() + n; x.s.Len() < end; {
		if err := step(ctx, chunk{line: x, n: min(most, end-x.s.Len())}); err != nil {
			return err
		}
	}
	return nil
}

// cut takes back the tokens from n on.
func (x *line) cut(n int) error {
	if err := x.s.Truncate(n); err != nil {
		return err
	}
	if n < x.from {
		x.from = n
	}
	for i := range x.got {
		g := &x.got[i]
		g.Out = g.Out[:(n-x.from)*hidden]
		if x.l.picks(i) {
			g.TopK = g.TopK[:(n-x.from)*x.l.cfg.TopK]
		}
	}
	return nil
}

// end is the token after the last of those that the line has results of.
func (x *line) end() int { return x.from + len(x.got[0].Out)/hidden }

// fork makes another line with the same tokens, which goes on with another story or the same.
func (x *line) fork(st *story) (*line, error) {
	s, err := x.s.Fork()
	return x.l.follow(x.e, s, st), err
}

// saved is the line's snapshot.
func (x *line) saved(ctx context.Context) ([]byte, error) {
	var b bytes.Buffer
	err := x.s.Save(ctx, &b)
	return b.Bytes(), err
}

// same demands the same bits of two lines' tokens.
func same(a, b *line) error {
	for i := range a.got {
		if !slices.Equal(a.got[i].Out, b.got[i].Out) || !slices.Equal(a.got[i].TopK, b.got[i].TopK) {
			return fmt.Errorf("layer %d: other bits in a step of the same size", i)
		}
	}
	return nil
}

// pass is what one step over a whole story gives.
type pass struct {
	*line
}

// check demands of a line what one pass gives: outputs and picks, caches, and that each token
// found what it asked for.
func (p *pass) check(ctx context.Context, x *line) error {
	return errors.Join(x.found(), p.like(x), p.caches(ctx, x))
}

// pass returns what one step over the story of a seed gives; it is kept.
func (l *Lab) pass(ctx context.Context, seed uint64) (*pass, error) {
	if p := l.passes[seed]; p != nil {
		return p, nil
	}
	n := l.tokens()
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 2, MaxStep: n, Rewind: n})
	if err != nil {
		return nil, err
	}
	x, err := l.open(e, l.newStory(seed))
	if err == nil {
		err = x.take(ctx, n, n)
	}
	if err == nil {
		err = x.found()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("one pass: %w", err), e.Close())
	}
	l.o.Log("one pass: outputs at most %.3g from what was asked for, turned numbers %.3g", x.st.worst[0], x.st.worst[1])
	l.passes[seed] = &pass{x}
	return l.passes[seed], nil
}

// resume makes a line in an engine of the first n tokens, as one pass left them.
func (p *pass) resume(ctx context.Context, e *pipeline.Engine, n int) (*line, error) {
	f, err := p.fork(p.st)
	if err != nil {
		return nil, err
	}
	defer f.s.Close()
	if err := f.cut(n); err != nil {
		return nil, err
	}
	data, err := f.saved(ctx)
	if err != nil {
		return nil, err
	}
	s, err := e.Restore(ctx, bytes.NewReader(data)) // leaves out what this engine would not keep
	if err != nil {
		return nil, err
	}
	return p.l.follow(e, s, p.st), nil
}

// found demands that every token found what it asked for.
func (x *line) found() error {
	k := x.l.cfg.TopK
	for i := range x.got {
		for t := x.from; t < x.end(); t++ {
			var picks []int32
			if l := &x.l.cfg.Layers[i]; l.Picks != model.PickNone {
				picks = x.got[l.PicksOf].TopK[(t-x.from)*k:][:k]
			}
			if err := x.st.check(i, t, x.got[i].Out[(t-x.from)*hidden:][:hidden], picks); err != nil {
				return err
			}
		}
	}
	return nil
}

// passWithin bounds the distance of a token's output from that of one pass, by the length of the
// latter. Caches are the same bytes, so all that differs is the order of sums in attention and
// where its weights are rounded to bf16 (2^-9), beside the rounding of outputs to bf16 on the way
// through two products. A row more or less among 144 of equal weight changes 0.08.
const passWithin = 0.01

// like demands what one pass gives: every token's output within passWithin, and its picks.
func (p *pass) like(x *line) error {
	worst := 0.0
	for i := range x.got {
		for t := x.from; t < x.end(); t++ {
			got, want := x.got[i].Out[(t-x.from)*hidden:][:hidden], p.got[i].Out[t*hidden:][:hidden]
			d := distance(got, want)
			worst = max(worst, d)
			if !(d < passWithin) {
				return fmt.Errorf("layer %d, token %d: %.4f from one pass, want less than %g", i, t, d, passWithin)
			}
			if k := x.l.cfg.TopK; x.l.picks(i) {
				a, b := x.got[i].TopK[(t-x.from)*k:][:k], p.got[i].TopK[t*k:][:k]
				if !slices.Equal(a, b) {
					return fmt.Errorf("layer %d, token %d: picks %v, one pass %v", i, t, a, b)
				}
			}
		}
	}
	x.l.o.Log("tokens %d to %d: at most %.2g from one pass", x.from, x.end()-1, worst)
	return nil
}

// distance is that of a from b by the length of b.
func distance(a, b []float32) float64 {
	var d, of float64
	for i, w := range b {
		x := float64(a[i]) - float64(w)
		d, of = d+x*x, of+float64(w)*float64(w)
	}
	return math.Sqrt(d / of)
}

// caches demands that the caches of a line hold the same bytes as those of one pass, wherever a
// session of the line's engine keeps them. The engine needs room for one more session.
func (p *pass) caches(ctx context.Context, x *line) error {
	same, err := p.resume(ctx, x.e, x.s.Len())
	if err != nil {
		return err
	}
	defer same.s.Close()
	want, err := same.saved(ctx)
	if err != nil {
		return err
	}
	got, err := x.saved(ctx)
	if err == nil && !bytes.Equal(got, want) {
		return fmt.Errorf("the caches of %d tokens differ from those of one pass", x.s.Len())
	}
	if err == nil {
		err = x.draftsLike(ctx, same, got)
	}
	return err
}
