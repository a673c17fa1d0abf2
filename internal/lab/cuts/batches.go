package cuts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
)

// unlessFull drops the error of caches that are full.
func unlessFull(err error) error {
	if errors.Is(err, cache.ErrPoolFull) {
		return nil
	}
	return err
}

// mixes are chunks of steps: of a long session, of one of some groups, of one just past its first
// group, and of one that begins. Steps of one size come with most of the tokens in any of them.
var mixes = [][4]int{
	{1, 1, 1, 1}, {1, 0, 0, 3}, {1, 2, 1, 4}, {5, 0, 2, 1}, {2, 33, 1, 5},
	{1, 1, 0, 0}, {1, 0, 0, 1}, {8, 0, 0, 0}, {1, 5, 1, 1},
}

// mixedBatches takes sessions of very different lengths in the same steps.
func mixedBatches(ctx context.Context, l *Lab) error {
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	a, err := l.mixed(ctx, p, [4]int{l.tokens() - 40, l.room(259), 127, 0}, 30)
	if err != nil {
		return err
	}
	// The first session alone decides what it gives: others may be anything and anywhere.
	b, err := l.mixed(ctx, p, [4]int{l.tokens() - 40, 0, l.room(515), 130}, 40)
	if err != nil {
		return err
	}
	if err := same(a, b); err != nil {
		return fmt.Errorf("a session beside others: %w", err)
	}
	return nil
}

// mixed takes sessions through mixes. The first follows the story of the pass, the others stories
// from a seed on. Sessions are resumed at a length, or take that many tokens of their own.
func (l *Lab) mixed(ctx context.Context, p *pass, lengths [4]int, seed uint64) (first *line, err error) {
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 5, MaxStep: 64})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	lines := make([]*line, len(lengths))
	for i, n := range lengths {
		if i == 0 {
			lines[i], err = p.resume(ctx, e, n)
		} else if lines[i], err = l.open(e, l.newStory(seed+uint64(i))); err == nil {
			err = lines[i].take(ctx, n, 64)
		}
		if err != nil {
			return nil, err
		}
	}
	for k, mix := range mixes {
		var chunks []chunk
		for i := range mix { // in another order each time
			if i = (i + k) % len(mix); mix[i] > 0 {
				chunks = append(chunks, chunk{line: lines[i], n: mix[i]})
			}
		}
		if err := step(ctx, chunks...); err != nil {
			return nil, err
		}
	}
	for i, x := range lines[1:] {
		if err := x.found(); err != nil {
			return nil, fmt.Errorf("session %d of a batch: %w", i+1, err)
		}
	}
	return lines[0], p.check(ctx, lines[0])
}

// shortRecordings records steps at a length of 0 and replays them on a long sequence. An engine
// that records them there gives the same bits.
func shortRecordings(ctx context.Context, l *Lab) error {
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	var lines []*line
	for _, c := range []struct {
		short  bool
		budget time.Duration // of a submission; below 0: a step is one
	}{{false, -1}, {true, -1}, {true, 1}} {
		x, err := l.replay(ctx, p, c.short, pipeline.EngineOptions{SubmitBudget: c.budget})
		if err != nil {
			return fmt.Errorf("recorded at a short length %v, a budget of %v: %w", c.short, c.budget, err)
		}
		lines = append(lines, x)
	}
	return errors.Join(same(lines[1], lines[0]), same(lines[2], lines[0]))
}

// replay decodes the end of the story in steps of some sizes, each of which a short session had
// before if short.
func (l *Lab) replay(ctx context.Context, p *pass, short bool, o pipeline.EngineOptions) (x *line, err error) {
	sizes := []int{1, 8, 2, 1, 4}
	o.MaxSessions, o.MaxStep = 2, 64
	e, err := l.engine(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	take := func(x *line) error {
		for _, n := range sizes {
			if err := x.take(ctx, n, n); err != nil {
				return err
			}
		}
		return nil
	}
	if short {
		y, err := l.open(e, l.newStory(50))
		if err == nil {
			err = take(y)
		}
		if err != nil {
			return nil, err
		}
		if err := errors.Join(y.found(), y.s.Close()); err != nil {
			return nil, err
		}
	}
	if x, err = p.resume(ctx, e, l.tokens()-29); err == nil {
		err = take(x)
	}
	if err != nil {
		return nil, err
	}
	return x, p.check(ctx, x)
}

// repeats takes the same tokens in the same steps again: in the same engine at once, beside
// others, and in another engine. All bits are the same.
func repeats(ctx context.Context, l *Lab) error {
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64})
	if err != nil {
		return err
	}
	defer e.Close()
	x, err := p.resume(ctx, e, l.tokens()-36)
	if err != nil {
		return err
	}
	data, err := x.saved(ctx)
	if err != nil {
		return err
	}
	var first *line
	for i := range 6 {
		s, err := e.Restore(ctx, bytes.NewReader(data))
		if err != nil {
			return err
		}
		y := l.follow(e, s, p.st)
		for _, n := range []int{1, 1, 4, 1, 8, 2, 1} {
			if err := y.take(ctx, n, n); err != nil {
				return err
			}
		}
		if first == nil {
			first = y
		} else if err := errors.Join(same(y, first), y.s.Close()); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	return p.check(ctx, first)
}
