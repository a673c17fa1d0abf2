package cuts

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/pipeline"
)

// foreign are the numbers that a session is given beside another: of each kind alone, and all.
var foreign = [][]float32{
	{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 3e38, -3e38, 1e-40, 1},
	{float32(math.NaN())}, {float32(math.Inf(1))}, {float32(math.Inf(-1))}, {3e38, -3e38}, {1e-40, -1e-40},
}

// besideSteps are the tokens of a session with such numbers and of the one beside it.
var besideSteps = [][2]int{{40, 20}, {1, 1}, {3, 7}, {1, 1}}

// isolation takes a session beside one whose numbers are not finite, large or subnormal, in front
// of it and behind it in each step. It has the bits that it has beside any other, and so has a
// session in the pages that the other gives back.
func isolation(ctx context.Context, l *Lab) error {
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64})
	if err != nil {
		return err
	}
	defer e.Close()
	kinds := foreign
	if l.o.Size == Small {
		kinds = foreign[:1]
	}
	for _, first := range []bool{false, true} {
		clean, heir, err := l.beside(ctx, p, e, l.newStory(2), first)
		if err != nil {
			return err
		}
		for _, numbers := range kinds {
			x, y, err := l.beside(ctx, p, e, l.storyOf(numbers), first)
			if err == nil {
				err = errors.Join(same(x, clean), same(y, heir))
			}
			if err != nil {
				return fmt.Errorf("beside %v, in front of it %v: %w", numbers, first, err)
			}
		}
	}
	return nil
}

// storyOf has numbers in turn for hidden states, in two of three places.
func (l *Lab) storyOf(numbers []float32) *story {
	s := &story{l: l, n: l.tokens()}
	for range l.layers {
		h := make([]float32, s.n*hidden)
		for i := range h {
			if h[i] = 1; i%3 > 0 {
				h[i] = numbers[i/3%len(numbers)]
			}
		}
		s.layers = append(s.layers, chapter{hidden: h})
	}
	return s
}

// beside takes tokens of one pass beside a session of another story, and a third session in the
// pages that this one gives back. Both have to find what they ask for.
func (l *Lab) beside(ctx context.Context, p *pass, e *pipeline.Engine, other *story, first bool) (x, heir *line, err error) {
	var bad *line
	if first {
		bad, err = l.open(e, other)
	}
	if err == nil {
		x, err = p.resume(ctx, e, 250)
	}
	if err == nil && !first {
		bad, err = l.open(e, other)
	}
	for _, n := range besideSteps {
		if err == nil {
			err = step(ctx, chunk{line: bad, n: n[0]}, chunk{line: x, n: n[1]})
		}
	}
	if err == nil {
		err = bad.s.Close()
	}
	if err == nil {
		heir, err = l.open(e, l.newStory(3))
	}
	if err == nil {
		err = heir.take(ctx, 48, 48)
	}
	if err != nil {
		return nil, nil, err
	}
	return x, heir, errors.Join(heir.found(), p.check(ctx, x), heir.s.Close(), x.s.Close())
}
