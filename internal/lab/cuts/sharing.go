package cuts

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// sharedPrefixes forks a session behind its window's first wrap. One goes on with other tokens,
// is closed, and its pages go to a third; the other has to go on as if it were alone.
func sharedPrefixes(ctx context.Context, l *Lab) error {
	lengths := l.upTo(255, 301) // just before a page and a group are full, and anywhere
	if l.o.Size == Full {
		lengths = append(lengths, 256, 2048, 4095, 4321)
	}
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 5, MaxStep: 64, CacheBytes: 1 << 20})
	if err != nil {
		return err
	}
	for _, n := range lengths {
		if err := l.share(ctx, p, e, n); err != nil {
			return errors.Join(fmt.Errorf("a prefix of %d tokens: %w", n, err), e.Close())
		}
	}
	return e.Close()
}

func (l *Lab) share(ctx context.Context, p *pass, e *pipeline.Engine, n int) error {
	other, third := l.newStory(2), l.newStory(3)
	alone, err := l.apart(ctx, p, e, n, other)
	if err != nil {
		return err
	}
	a, err := l.open(e, p.st)
	if err == nil {
		err = a.take(ctx, n, 64)
	}
	if err != nil {
		return err
	}
	b, err := a.fork(p.st)
	if err != nil {
		return err
	}
	// Both write where their shared page ends, in one step and in steps of their own.
	for i, m := range apartSteps {
		if i == 0 {
			err = step(ctx, chunk{line: b, n: 1}, chunk{line: a, n: m, other: other})
		} else if err = step(ctx, chunk{line: a, n: m, other: other}); err == nil {
			err = b.take(ctx, 1, 1)
		}
		if err != nil {
			return err
		}
	}
	if err := alone.like(ctx, a); err != nil {
		return err
	}
	c, err := b.fork(p.st) // of a fork
	if err != nil {
		return err
	}
	if err := a.s.Close(); err != nil {
		return err
	}
	d, err := l.open(e, third) // takes the pages that were given back
	if err == nil {
		err = d.take(ctx, 64, 64)
	}
	for range 4 {
		if err == nil {
			err = step(ctx, chunk{line: c, n: 2}, chunk{line: d, n: 4}, chunk{line: b, n: 1})
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(d.found(), p.check(ctx, b), p.check(ctx, c), b.s.Close(), c.s.Close(), d.s.Close())
}

// apartSteps are the tokens of steps with which a session leaves what it shared.
var apartSteps = []int{3, 5, 5}

// branch is what a session gave that left another's story without ever sharing a page.
type branch struct {
	*line
	kept []byte
}

// apart takes the first n tokens of one pass and then another story's, in steps of the sizes that
// sessions beside others take.
func (l *Lab) apart(ctx context.Context, p *pass, e *pipeline.Engine, n int, other *story) (*branch, error) {
	x, err := p.resume(ctx, e, n)
	if err != nil {
		return nil, err
	}
	for _, m := range apartSteps {
		if err := step(ctx, chunk{line: x, n: m, other: other}); err != nil {
			return nil, err
		}
	}
	kept, err := x.saved(ctx)
	return &branch{x, kept}, errors.Join(err, x.s.Close())
}

// like demands the same bits of a line that shared pages, also in what it keeps now.
func (b *branch) like(ctx context.Context, x *line) error {
	tail := &line{got: make([]pipeline.Appended, len(x.got))}
	for i := range x.got {
		tail.got[i].Out = x.got[i].Out[(b.from-x.from)*hidden:]
		if x.l.picks(i) {
			tail.got[i].TopK = x.got[i].TopK[(b.from-x.from)*x.l.cfg.TopK:]
		}
	}
	kept, err := x.saved(ctx)
	if err == nil && !bytes.Equal(kept, b.kept) {
		err = errors.New("others wrote into what it keeps")
	}
	return errors.Join(same(tail, b.line), err)
}

// restores saves a session behind its window's first wrap, lets others use its pages, and goes on
// with what was saved, there and in an engine of other sizes.
func restores(ctx context.Context, l *Lab) error {
	lengths := l.upTo(259, 1003)
	if l.o.Size == Full {
		lengths = append(lengths, 2047, 4096, 4321)
	}
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64, CacheBytes: 1 << 20})
	if err != nil {
		return err
	}
	for _, n := range lengths {
		if err := l.restore(ctx, p, e, n); err != nil {
			return errors.Join(fmt.Errorf("saved at %d tokens: %w", n, err), e.Close())
		}
	}
	return e.Close()
}

func (l *Lab) restore(ctx context.Context, p *pass, e *pipeline.Engine, n int) error {
	x, err := p.resume(ctx, e, n-6)
	if err == nil {
		err = x.take(ctx, 6, 4)
	}
	if err != nil {
		return err
	}
	data, err := x.saved(ctx)
	if err == nil {
		err = x.s.Close()
	}
	if err == nil {
		err = l.crowd(ctx, e, 2)
	}
	if err != nil {
		return err
	}
	s, err := e.Restore(ctx, bytes.NewReader(data))
	if err != nil {
		return err
	}
	y := l.follow(e, s, p.st)
	for _, n := range []int{1, 7, 1, 15} {
		if err := y.take(ctx, n, n); err != nil {
			return err
		}
	}
	return errors.Join(p.like(x), p.check(ctx, y), y.s.Close())
}

// crowd lets sessions come and go, which hold as many tokens as there are pages for and more.
func (l *Lab) crowd(ctx context.Context, e *pipeline.Engine, sessions int) error {
	for i := range sessions {
		x, err := l.open(e, l.newStory(uint64(4+i)))
		if err == nil {
			err = x.take(ctx, 128, 64)
		}
		if err != nil {
			return err
		}
		if err := errors.Join(x.found(), x.s.Close()); err != nil {
			return err
		}
	}
	return nil
}

// reusedPages opens sessions one after the other in caches that have room for one: each has the
// pages that the one before has just given back. The last has the tokens of the first, whose pages
// nobody had used; those between are longer.
func reusedPages(ctx context.Context, l *Lab) error {
	n := l.room(330)
	if l.o.Size == Full {
		n = 4400
	}
	e, err := l.smallest(ctx, n)
	if err != nil {
		return err
	}
	var first *line
	for i, seed := range []uint64{20, 21, 22, 20} {
		length, most := n, uint64(2)
		if seed == 20 {
			length, most = n-80, 3
		}
		if l.o.Model != V4 { // whose steps take more than its sessions hold
			most++
		}
		x, err := l.alone(ctx, e, seed, length, most)
		if err == nil && i == 0 {
			first = x
		} else if err == nil && seed == 20 {
			err = same(x, first)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("session %d: %w", i, err), e.Close())
		}
	}
	return e.Close()
}

// alone takes the first tokens of a story in an engine that has fewer pages than so many such
// sessions need.
func (l *Lab) alone(ctx context.Context, e *pipeline.Engine, seed uint64, n int, most uint64) (*line, error) {
	x, err := l.open(e, l.newStory(seed))
	if err == nil {
		err = x.take(ctx, n-3, 64)
	}
	if err == nil {
		err = x.take(ctx, 3, 1)
	}
	if err == nil {
		err = x.found()
	}
	if m := e.Memory(); err == nil && most*m.Held < m.Caches {
		err = fmt.Errorf("%d bytes of %d are held, too few for the next session to need them", m.Held, m.Caches)
	}
	if err != nil {
		return nil, err
	}
	return x, x.s.Close()
}

// smallest makes an engine with the least cache memory, to a quarter, that one session of n tokens
// fits in.
func (l *Lab) smallest(ctx context.Context, n int) (*pipeline.Engine, error) {
	for most := uint64(1 << 19); ; most += most / 4 {
		e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 1, MaxStep: 64, CacheBytes: most, MaxCacheBytes: most})
		if errors.Is(err, vk.ErrArgument) && most < 1<<20 { // not a page of each pool
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := e.Open()
		if err == nil {
			err = errors.Join(s.Advance(ctx, n), s.Close())
		}
		if err == nil {
			return e, nil
		}
		if err = errors.Join(e.Close(), unlessFull(err)); err != nil {
			return nil, err
		}
	}
}
