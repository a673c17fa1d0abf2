package walk

import (
	"context"
	"errors"
	"math/bits"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// chunk is what a step takes of a session: tokens, of which only the first ones stay, or a block of
// drafts.
type chunk struct {
	s      *session
	tokens []int
	stay   int
	draft  bool
}

// size is what steps of so many tokens are padded to.
func size(tokens, most int) int { return min(1<<bits.Len(uint(tokens-1)), most) }

// plan gives sessions their next tokens: one each, or drafts, or a piece of a prompt for the first.
func (w *worker) plan(p *place, list []*session) (chunks []chunk) {
	if w.drafts() < len(w.o.Layers) && w.rng.IntN(3) == 0 {
		return w.blocks(p, list)
	}
	kind, room := w.rng.IntN(4), p.o.MaxStep
	for i, s := range list {
		at, n := s.past.length(), 1
		switch {
		case kind == 0:
			n += w.rng.IntN(4)
		case kind == 1 && i == 0:
			n = w.few(p)
		}
		if n = min(n, room, p.o.MaxTokens-at); n < 1 {
			continue
		}
		room -= n
		c := chunk{s: s, stay: n}
		for k := range n {
			token := w.world.token(s.story, at+k)
			if kind == 0 && k > 0 && (c.stay < n || w.rng.IntN(3) == 0) {
				c.stay = min(c.stay, k)
				token = (token + 1 + w.rng.IntN(2)) % tokenKinds // what a draft guessed wrongly
			}
			c.tokens = append(c.tokens, token)
		}
		chunks = append(chunks, c)
	}
	return chunks
}

// blocks are blocks of drafts, which follow from what sessions took so far.
func (w *worker) blocks(p *place, list []*session) (chunks []chunk) {
	n := w.o.Config.DraftBlock
	for _, s := range list {
		if (len(chunks)+1)*n > p.o.MaxStep || s.past.length()+n > p.o.MaxTokens {
			continue
		}
		c := chunk{s: s, draft: true}
		for k := range n {
			c.tokens = append(c.tokens, int(mix(s.past.now(), uint64(k))%tokenKinds))
		}
		chunks = append(chunks, c)
	}
	return chunks
}

// step takes chunks through the layers, or some of the way, and compares what they gave.
func (w *worker) step(p *place, chunks []chunk) {
	if len(chunks) == 0 {
		return
	}
	ctx, stop := w.context()
	defer stop()
	var list []pipeline.Chunk
	for _, c := range chunks {
		list = append(list, pipeline.Chunk{Session: c.s.s, Tokens: len(c.tokens), Draft: c.draft})
	}
	st, err := p.e.Begin(ctx, list...)
	if !w.allowed(p, "begin", err, context.Canceled, cache.ErrPoolFull) {
		for _, c := range chunks {
			w.kept(p, "begin", c.s)
		}
		if errors.Is(err, cache.ErrPoolFull) && w.rng.IntN(2) == 0 {
			w.close(p, chunks[0].s)
		}
		return
	}
	if w.rng.IntN(10) == 0 {
		s := chunks[0].s.s
		_, err := s.Fork()
		for what, err := range map[string]error{"fork": err, "truncate": s.Truncate(0), "close": s.Close()} {
			if w.allowed(p, what+" in a step", err, pipeline.ErrInStep) && !p.closing.Load() {
				w.fail(what, errors.New("succeeds within a step"))
			}
		}
	}
	given, err := w.through(ctx, p, st, chunks)
	switch {
	case !w.allowed(p, "run", err, context.Canceled, errLeft):
		w.allowed(p, "abort", st.Abort())
	case !w.plain && w.rng.IntN(20) == 0:
		w.allowed(p, "abort", st.Abort())
	case w.allowed(p, "commit", st.Commit()):
		for i, c := range chunks {
			if c.draft {
				w.drafted(p, c.s, st.Size(), given[i])
				continue
			}
			for k, token := range c.tokens {
				w.gave(p, c.s, token, st.Size(), given[i][k])
			}
			c.s.grown(&p.o)
			if n := c.s.past.length() - len(c.tokens) + c.stay; c.stay < len(c.tokens) && n >= c.s.floor {
				w.cut(p, c.s, n)
			}
		}
	}
	for _, c := range chunks {
		w.kept(p, "step", c.s)
	}
}

// errLeft is no error of the engine: the step is left before its end.
var errLeft = errors.New("left")

// through runs a step, all layers at once or one by one, and reads what its tokens gave.
func (w *worker) through(ctx context.Context, p *place, st *pipeline.Step, chunks []chunk) ([]sums, error) {
	given := make([]sums, len(chunks))
	for i, c := range chunks {
		given[i] = make(sums, len(c.tokens))
	}
	first, end := 0, len(w.o.Layers)
	if chunks[0].draft {
		first = w.drafts()
	}
	leave, single := -1, p.o.LayerByLayer || w.rng.IntN(6) == 0
	if !w.plain && w.rng.IntN(25) == 0 {
		leave = first + w.rng.IntN(end-first)
	}
	for layer := first; layer < end; layer++ {
		for i, c := range chunks {
			if err := st.SetInput(layer, i, w.world.input(layer, c.tokens)); err != nil {
				return nil, err
			}
		}
		if p.o.LayerByLayer {
			if layer == leave {
				return nil, errLeft
			}
			if err := st.RunLayer(ctx, layer); err != nil {
				return nil, err
			}
			if err := w.read(st, layer, chunks, given); err != nil {
				return nil, err
			}
		}
	}
	if p.o.LayerByLayer {
		return given, nil
	}
	if single {
		for layer := first; layer < end; layer++ {
			if err := st.SubmitLayer(layer); err != nil {
				return nil, err
			}
			if layer == leave {
				return nil, errLeft
			}
		}
	} else if err := st.Submit(); err != nil {
		return nil, err
	}
	if leave >= 0 {
		return nil, errLeft
	}
	if err := st.Wait(ctx); err != nil {
		return nil, err
	}
	for layer := first; layer < end; layer++ {
		if err := w.read(st, layer, chunks, given); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// read adds the results of a layer to what tokens gave.
func (w *worker) read(st *pipeline.Step, layer int, chunks []chunk, given []sums) error {
	if w.o.Config.Layers[layer].Block && !chunks[0].draft {
		return nil // it keeps rows alone
	}
	for i, c := range chunks {
		out := make([]float32, len(c.tokens)*w.o.Config.Hidden)
		if err := st.ReadOutput(layer, i, out); err != nil {
			return err
		}
		given[i].floats(out)
		if w.o.Config.Layers[layer].Picks == model.PickOwn {
			picks := make([]int32, len(c.tokens)*w.o.Config.TopK)
			if err := st.ReadTopK(layer, i, picks); err != nil {
				return err
			}
			given[i].ints(picks)
		}
	}
	return nil
}
