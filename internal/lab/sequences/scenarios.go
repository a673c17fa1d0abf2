package sequences

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vkmla/vkmla/cache"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// promptLengths cuts prompts at random and decodes some tokens.
func promptLengths(p *player) {
	lengths, cuts := p.l.upTo(1, 2, 3, 41, 42, 43, 127, 128, 129, 255, 256, 257, 1003), 1
	if p.l.o.Size == Full {
		lengths, cuts = append(lengths, 1000, 1001, 1002, 2047, 2048, 2049, 4094, 4095, 4096, 4097), 4
	}
	p.in(pipeline.EngineOptions{MaxSessions: 2, MaxStep: 64}, func(p *player) {
		for _, n := range lengths {
			p.at(func() {
				for range cuts {
					x := p.open(p.script(1))
					for p.ok() && x.len() < n {
						p.take(x, min(1+p.rng.IntN(64), n-x.len()), 64)
					}
					p.take(x, 6, 1)
					p.done(x)
				}
			}, "a prompt of %d tokens", n)
		}
	})
}

// sharedPrefixes forks a session after its window's first wrap. One goes on with other tokens, is
// closed, and its pages go to a third; the other has to go on as if it were alone.
func sharedPrefixes(p *player) {
	lengths := p.l.upTo(255, 301) // just before a page and a group are full, and anywhere
	if p.l.o.Size == Full {
		lengths = append(lengths, 256, 2048, 4095, 4321)
	}
	p.in(pipeline.EngineOptions{MaxSessions: 5, MaxStep: 64}, func(p *player) {
		for _, n := range lengths {
			p.at(func() { p.share(n) }, "a prefix of %d tokens", n)
		}
	})
}

// leaves takes another script's next n tokens with a session.
func (p *player) leaves(x *session, n int, other *script) chunk {
	return chunk{session: x, n: n, wrong: n, other: other, stay: true}
}

func (p *player) share(n int) {
	other, steps := p.script(2), []int{3, 5, 5}
	alone := p.resume(n) // leaves the script without ever sharing a page
	for _, m := range steps {
		p.step(p.leaves(alone, m, other))
	}
	p.saved(alone)
	p.close(alone)

	a := p.open(p.script(1))
	p.take(a, n, 64)
	b := p.fork(a)
	p.abandon(chunk{session: b, n: 1}) // whose copy of the shared page the device does not know
	// Both write where their shared page ends, in one step and in steps of their own.
	for i, m := range steps {
		if i == 0 {
			p.step(chunk{session: b, n: 1}, p.leaves(a, m, other))
		} else {
			p.step(p.leaves(a, m, other))
			p.take(b, 1, 1)
		}
	}
	p.saved(a)
	c := p.fork(b) // of a fork
	p.close(a)
	d := p.open(p.script(3)) // takes the pages that were given back
	p.take(d, 64, 64)
	for range 4 {
		p.step(chunk{session: c, n: 2}, chunk{session: d, n: 4}, chunk{session: b, n: 1})
	}
	p.check(b)
	p.check(c)
	p.close(b, c, d)
}

// restores saves a session after its window's first wrap, lets others use its pages, and goes on
// with what was saved.
func restores(p *player) {
	lengths := p.l.upTo(259, 1003)
	if p.l.o.Size == Full {
		lengths = append(lengths, 2047, 4096, 4321)
	}
	p.in(pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64}, func(p *player) {
		for _, n := range lengths {
			p.at(func() {
				x := p.resume(n - 6)
				p.take(x, 6, 4)
				data := p.saved(x)
				p.close(x)
				for seed := range uint64(2) {
					y := p.open(p.script(4 + seed))
					p.take(y, 128, 64)
					p.close(y)
				}
				y := p.restored(x, data)
				p.takeEach(y, 1, 7, 1, 15)
				p.done(y)
			}, "saved at %d tokens", n)
		}
	})
}

// reusedPages opens sessions one after the other in caches that have room for one: each has the
// pages that the one before has just given back. The last has the tokens of the first, whose pages
// had never been used; those between are longer.
func reusedPages(p *player) {
	n := p.l.room(330)
	if p.l.o.Size == Full {
		n = 4400
	}
	e, err := p.smallest(n)
	if p.do(err); err != nil {
		return
	}
	p.with(e, func(p *player) {
		for i, seed := range []uint64{20, 21, 22, 20} {
			length, most := n, uint64(2)
			if seed == 20 {
				length, most = n-80, 3
			}
			if p.l.o.Model != V4 { // whose steps take more than its sessions hold
				most++
			}
			p.at(func() {
				x := p.open(p.script(seed))
				p.take(x, length-3, 64)
				p.take(x, 3, 1)
				if m := p.e.Memory(); most*m.Held < m.Caches {
					p.do(fmt.Errorf("%d bytes of %d are held, too few for the next session to need them",
						m.Held, m.Caches))
				}
				p.close(x)
			}, "session %d", i)
		}
	})
}

// smallest makes an engine with the least cache memory, to a quarter, that one session of n tokens
// fits in.
func (p *player) smallest(n int) (*engine, error) {
	for most := uint64(1 << 19); ; most += most / 4 {
		e, err := p.l.engine(p.ctx, pipeline.EngineOptions{MaxSessions: 1, MaxStep: 64, CacheBytes: most, MaxCacheBytes: most})
		if errors.Is(err, vk.ErrArgument) && most < 4<<20 { // not a page of each pool
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := e.Open()
		if err == nil {
			err = errors.Join(probe.Advance(p.ctx, s, n), s.Close())
		}
		if err == nil {
			return e, nil
		}
		if closed := e.Close(); closed != nil || !errors.Is(err, cache.ErrPoolFull) {
			return nil, errors.Join(err, closed)
		}
	}
}

// mixes are chunks of steps: of a long session, of one of some groups, of one just past its first
// group, and of one that begins. Steps of one size come with most of the tokens in any of them.
var mixes = [][4]int{
	{1, 1, 1, 1}, {1, 0, 0, 3}, {1, 2, 1, 4}, {5, 0, 2, 1}, {2, 33, 1, 5},
	{1, 1, 0, 0}, {1, 0, 0, 1}, {8, 0, 0, 0}, {1, 5, 1, 1},
}

// mixedBatches takes sessions of very different lengths in the same steps, twice. The first session
// alone decides what it gives: others are of other lengths and other tokens the second time.
func mixedBatches(p *player) {
	for i, lengths := range [][4]int{{0, p.l.room(259), 127, 0}, {0, 0, p.l.room(515), 130}} {
		p.in(pipeline.EngineOptions{MaxSessions: 5, MaxStep: 64}, func(p *player) {
			list := []*session{p.resume(p.l.tokens() - 40)}
			for k, n := range lengths[1:] {
				x := p.open(p.script(uint64(30 + 10*i + k + 1)))
				p.take(x, n, 64)
				list = append(list, x)
			}
			for k, mix := range mixes {
				var chunks []chunk
				for j := range mix { // in another order each time
					if j = (j + k) % len(mix); mix[j] > 0 {
						chunks = append(chunks, chunk{session: list[j], n: mix[j]})
					}
				}
				p.step(chunks...)
			}
			p.check(list[0])
		})
	}
}

// shortRecordings records steps at a length of 0 and replays them on a long sequence. An engine
// that records them there gives the same bits.
func shortRecordings(p *player) {
	sizes := []int{1, 8, 2, 1, 4}
	for _, c := range []struct {
		short  bool
		budget time.Duration // of a submission; below 0: a step is one
	}{{false, -1}, {true, -1}, {true, 1}} {
		p.at(func() {
			p.in(pipeline.EngineOptions{MaxSessions: 2, MaxStep: 64}, func(p *player) {
				probe.SetBudget(p.e.Engine, c.budget)
				if c.short {
					y := p.open(p.script(50))
					p.takeEach(y, sizes...)
					p.close(y)
				}
				x := p.resume(p.l.tokens() - 29)
				p.takeEach(x, sizes...)
				p.done(x)
			})
		}, "recorded at a short length %v, a budget of %v", c.short, c.budget)
	}
}

// repeats takes the same tokens in the same steps again.
func repeats(p *player) {
	p.in(pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64}, func(p *player) {
		x := p.resume(p.l.tokens() - 36)
		data := p.saved(x)
		for i := range 6 {
			y := p.restored(x, data)
			p.at(func() { p.takeEach(y, 1, 1, 4, 1, 8, 2, 1) }, "run %d", i+1)
			if i == 5 {
				p.close(x)
				p.check(y)
			}
			p.close(y)
		}
	})
}

// longGeneration decodes one token at a time, past every reuse of a page.
func longGeneration(p *player) {
	n := p.l.room(330)
	if p.l.o.Size == Full {
		n = 4200
	}
	p.in(pipeline.EngineOptions{MaxSessions: 2, MaxStep: 64}, func(p *player) {
		x := p.open(p.script(1))
		p.take(x, 5, 5)
		p.take(x, n, 1)
		p.check(x)
	})
}

// mostDrafted is the most tokens of a draft.
const mostDrafted = 6

// draft is one step of speculative decoding, at an even or odd length.
type draft struct{ tokens, accepted, odd int }

// drafts returns all drafts of 1 to mostDrafted tokens with all numbers of accepted ones, each at
// an even and at an odd length, in random order.
func drafts(rng *rand.Rand) (all []draft) {
	for n := 1; n <= mostDrafted; n++ {
		for a := range n + 1 {
			all = append(all, draft{n, a, 0}, draft{n, a, 1})
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// rejectedDrafts verifies drafts of two sessions: a step takes the next token and those of a draft
// of each; the last are wrong and taken back.
func rejectedDrafts(p *player) {
	from, rounds := min(190, p.l.tokens()-220), 1
	if p.l.o.Size == Full {
		from, rounds = 5, 23
	}
	p.in(pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64, Rewind: mostDrafted}, func(p *player) {
		x, y, wrong := p.resume(from), p.open(p.script(62)), p.script(60)
		of := func(x *session, d draft) chunk {
			return chunk{session: x, n: 1 + d.tokens, wrong: d.tokens - d.accepted, other: wrong}
		}
		for range rounds {
			beside := drafts(p.rng)
			for left := drafts(p.rng); p.ok() && len(left) > 0; {
				i := slices.IndexFunc(left, func(d draft) bool { return d.odd == x.len()%2 })
				if i < 0 { // a token without a draft
					p.take(x, 1, 1)
					continue
				}
				d, other := left[i], beside[i]
				left, beside = slices.Delete(left, i, i+1), slices.Delete(beside, i, i+1)
				p.step(p.l.blocks(y, x)...)
				p.at(func() { p.step(of(x, d), of(y, other)) }, "%d of %d drafted tokens accepted at %d",
					d.accepted, d.tokens, x.len())
			}
		}
		p.take(x, 8, 4) // a session's greatest length decides what it keeps
		p.check(x)
	})
}

// truncations takes tokens back to every place in a group of 4 and to many in one of 128, some of
// them over pages and groups that had been full.
func truncations(p *player) {
	const rewind = 140
	groups, first := 1, min(384, (p.l.tokens()-180)/128*128)
	if p.l.o.Size == Full {
		groups = 20
	}
	p.in(pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64, Rewind: rewind}, func(p *player) {
		x, wrong := p.resume(first-4), p.script(61)
		for group := range groups {
			for i, place := range []int{0, 1, 2, 3, 17, 62, 63, 64, 65, 126, 127} {
				place += first + 128*group
				p.take(x, place-x.len(), 64)
				tokens := []int{4, 1, 2, 8}[i%4]
				if p.rng.IntN(6) == 0 {
					tokens = min(130, p.l.tokens()-place)
				}
				for ; tokens > 0; tokens -= 64 {
					p.step(p.leaves(x, min(64, tokens), wrong))
				}
				p.cut(x, place)
				p.take(x, 1, 1)
			}
		}
		n := x.len() // so far that all it lies in was full, and the same tokens again
		p.cut(x, n-rewind+13)
		p.take(x, n+20-x.len(), 64)
		p.check(x)
	})
}

// padding takes steps whose inputs are on the device, with NaN in the rows after their tokens.
func padding(p *player) {
	p.in(pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64}, func(p *player) {
		for _, from := range []int{0, 254} {
			p.at(func() {
				clean, x := p.resume(from), p.resume(from)
				for _, n := range []int{3, 35, 5, 1, 3} {
					if p.take(clean, n, n); p.ok() {
						p.do(p.l.step(p.ctx, manner{padded: true}, chunk{session: x, n: n}))
					}
				}
				p.close(clean)
				p.done(x)
			}, "from token %d", from)
		}
	})
}

// numbers lists what a session is given beside another: of each kind alone, and all.
var numbers = [][]float32{
	{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 3e38, -3e38, 1e-40, 1},
	{float32(math.NaN()), math.Float32frombits(0xFFFF0000), math.Float32frombits(0x7F810000)},
	{float32(math.Inf(1))}, {float32(math.Inf(-1))}, {3e38, -3e38}, {1e-40, -1e-40},
}

// isolation takes a session beside one whose numbers are not finite, large or subnormal, before it
// and after it in each step. It has the bits that it has beside any other, and so has a session in
// the pages that the other gives back.
func isolation(p *player) {
	p.in(pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64}, func(p *player) {
		for _, first := range []bool{false, true} {
			p.beside(p.script(2), first)
			for _, list := range numbers {
				p.at(func() { p.beside(p.l.foreign(p.rng.Uint64(), list), first) }, "beside %v, before it %v", list, first)
			}
		}
	})
}

// beside takes tokens of one pass beside a session of another script, and a third session in the
// pages that this one gives back.
func (p *player) beside(other *script, first bool) {
	var bad, x *session
	if first {
		bad, x = p.open(other), p.resume(250)
	} else {
		x, bad = p.resume(250), p.open(other)
	}
	for _, n := range [][2]int{{40, 20}, {1, 1}, {3, 7}, {1, 1}} {
		p.step(chunk{session: bad, n: n[0]}, chunk{session: x, n: n[1]})
	}
	p.close(bad)
	heir := p.open(p.script(3))
	p.take(heir, 48, 48)
	p.saved(heir)
	p.saved(x)
	p.close(heir, x)
}
