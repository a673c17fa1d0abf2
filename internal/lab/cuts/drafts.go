package cuts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/pipeline"
)

// mostDrafted is the most tokens of a draft.
const mostDrafted = 6

// longGeneration decodes one token at a time, past every reuse of a page.
func longGeneration(ctx context.Context, l *Lab) error {
	n := l.room(330)
	if l.o.Size == Full {
		n = 4200
	}
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 2, MaxStep: 64, CacheBytes: 1 << 20})
	if err != nil {
		return err
	}
	x, err := l.open(e, p.st)
	if err == nil {
		err = x.take(ctx, 5, 5)
	}
	if err == nil {
		err = x.take(ctx, n, 1)
	}
	if err == nil {
		err = p.check(ctx, x)
	}
	return errors.Join(err, e.Close())
}

// draft is one step of speculative decoding, at an even or odd length.
type draft struct{ tokens, accepted, odd int }

// drafts are all drafts of 1 to mostDrafted tokens with all numbers of accepted ones, each at an
// even and at an odd length, in random order.
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
// of each, of which the last are wrong and taken back.
func rejectedDrafts(ctx context.Context, l *Lab) error {
	from, rounds := min(190, l.tokens()-220), 1
	if l.o.Size == Full {
		from, rounds = 5, 23
	}
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64, Rewind: mostDrafted, CacheBytes: 1 << 20})
	if err != nil {
		return err
	}
	return errors.Join(l.verify(ctx, p, e, from, rounds), e.Close())
}

func (l *Lab) verify(ctx context.Context, p *pass, e *pipeline.Engine, from, rounds int) error {
	x, err := p.resume(ctx, e, from)
	if err != nil {
		return err
	}
	y, err := l.open(e, l.newStory(62))
	if err != nil {
		return err
	}
	wrong, rng := l.newStory(60), rand.New(rand.NewPCG(6, 6))
	for range rounds {
		beside := drafts(rng)
		for left := drafts(rng); len(left) > 0; {
			i := slices.IndexFunc(left, func(d draft) bool { return d.odd == x.s.Len()%2 })
			if i < 0 { // a token without a draft
				if err := x.take(ctx, 1, 1); err != nil {
					return err
				}
				continue
			}
			d, other := left[i], beside[i]
			left, beside = slices.Delete(left, i, i+1), slices.Delete(beside, i, i+1)
			if _, err := blocks(ctx, y, x); err != nil {
				return err
			}
			if err = step(ctx, x.drafted(d, wrong), y.drafted(other, wrong)); err == nil {
				err = errors.Join(x.cut(x.s.Len()-d.tokens+d.accepted), y.cut(y.s.Len()-other.tokens+other.accepted))
			}
			if err != nil {
				return fmt.Errorf("%d of %d drafted tokens accepted at %d: %w", d.accepted, d.tokens, x.s.Len(), err)
			}
		}
	}
	// The session's greatest length decides what it keeps, which is compared.
	if err := x.take(ctx, 8, 4); err != nil {
		return err
	}
	return errors.Join(y.found(), p.check(ctx, x))
}

// drafted is a token and a draft. Those that will not be accepted are tokens of another story.
func (x *line) drafted(d draft, wrong *story) chunk {
	return chunk{line: x, n: 1 + d.tokens, other: x.st.until(wrong, x.s.Len()+1+d.accepted)}
}

// blocks runs the layers that draft on a block behind each line: the tokens that its story goes on
// with. It returns what they gave, of each line and layer; nothing where no layer drafts, or where
// a story ends within the block.
func blocks(ctx context.Context, lines ...*line) (out [][][]float32, err error) {
	l, n := lines[0].l, lines[0].l.cfg.DraftBlock
	var chunks []pipeline.Chunk
	for _, x := range lines {
		if x.s.Len()+n > l.tokens() || l.main() == len(l.layers) {
			return nil, nil
		}
		chunks = append(chunks, pipeline.Chunk{Session: x.s, Tokens: n, Draft: true})
	}
	st, err := lines[0].e.Begin(ctx, chunks...)
	if err != nil {
		return nil, err
	}
	for k, x := range lines {
		for i := l.main(); i < len(l.layers); i++ {
			err = errors.Join(err, st.SetInput(i, k, x.st.inputs(i, x.s.Len(), x.s.Len()+n)))
		}
	}
	if err == nil {
		err = st.Run(ctx)
	}
	for k := range lines {
		out = append(out, nil)
		for i := l.main(); i < len(l.layers) && err == nil; i++ {
			values := make([]float32, n*hidden)
			err = st.ReadOutput(i, k, values)
			out[k] = append(out[k], values)
		}
	}
	if err != nil {
		return nil, errors.Join(err, st.Abort())
	}
	return out, st.Commit()
}

// draftsLike demands that a block of drafts behind a line finds what it asks for, with the bits of
// one behind another line of the same tokens, and that it leaves what the line keeps as it was.
func (x *line) draftsLike(ctx context.Context, other *line, kept []byte) error {
	want, err := blocks(ctx, other)
	if err != nil || want == nil {
		return err
	}
	got, err := blocks(ctx, x)
	if err != nil {
		return err
	}
	for k, out := range got[0] {
		layer, n := x.l.main()+k, x.s.Len()
		if !slices.Equal(out, want[0][k]) {
			return fmt.Errorf("layer %d: a block of drafts behind %d tokens has other bits than behind those of one pass", layer, n)
		}
		for i := range x.l.cfg.DraftBlock {
			if err := x.st.check(layer, n+i, out[i*hidden:][:hidden], nil); err != nil {
				return fmt.Errorf("a block of drafts behind %d tokens: %w", n, err)
			}
		}
	}
	now, err := x.saved(ctx)
	if err == nil && !bytes.Equal(now, kept) {
		err = fmt.Errorf("a block of drafts changed the caches of %d tokens", x.s.Len())
	}
	return err
}

// truncations takes tokens back to every place in a group of 4 and to many in one of 128, some of
// them over pages and groups that had been full.
func truncations(ctx context.Context, l *Lab) error {
	const rewind = 140
	places := []int{0, 1, 2, 3, 17, 62, 63, 64, 65, 126, 127}
	groups, first := 1, min(384, (l.tokens()-180)/128*128)
	if l.o.Size == Full {
		groups = 20
	}
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 3, MaxStep: 64, Rewind: rewind, CacheBytes: 1 << 20})
	if err != nil {
		return err
	}
	x, err := p.resume(ctx, e, first-4)
	rng, wrong := rand.New(rand.NewPCG(7, 7)), l.newStory(61)
	for group := range groups {
		for i, place := range places {
			if err == nil {
				err = x.rewound(ctx, first+128*group+place, wrong, []int{4, 1, 2, 8}[i%4], rng)
			}
		}
	}
	if err == nil { // so far that all it lies in was full, and the same tokens again
		n := x.s.Len()
		if err = x.cut(n - rewind + 13); err == nil {
			err = x.take(ctx, n+20-x.s.Len(), 64)
		}
	}
	if err == nil {
		err = p.check(ctx, x)
	}
	return errors.Join(err, e.Close())
}

// rewound goes on to a place, takes wrong tokens, takes them back, and takes a right one.
func (x *line) rewound(ctx context.Context, place int, wrong *story, tokens int, rng *rand.Rand) error {
	if err := x.take(ctx, place-x.s.Len(), 64); err != nil {
		return err
	}
	if rng.IntN(6) == 0 {
		tokens = min(130, x.l.tokens()-place)
	}
	for at := 0; at < tokens; at += 64 {
		if err := step(ctx, chunk{line: x, n: min(64, tokens-at), other: wrong}); err != nil {
			return err
		}
	}
	if err := x.cut(place); err != nil {
		return err
	}
	return x.take(ctx, 1, 1)
}
