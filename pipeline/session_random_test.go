package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// history is a sequence of tokens, each with the size of the step that it came in, and
// what the layers gave for the last of them: results depend on nothing else. Invariant engines have
// 0 for all sizes. Sequences that begin alike share their beginnings.
type history struct {
	before      *history
	token, size int
	length      int
	next        map[[2]int]*history
	gave        uint64 // a hash of outputs and picks; 0: not known yet
}

func (h *history) then(token, size int) *history {
	key := [2]int{token, size}
	if h.next == nil {
		h.next = map[[2]int]*history{}
	}
	if h.next[key] == nil {
		h.next[key] = &history{before: h, token: token, size: size, length: h.length + 1}
	}
	return h.next[key]
}

// cut is the history without the tokens from n on.
func (h *history) cut(n int) *history {
	for h.length > n {
		h = h.before
	}
	return h
}

// tracked is a session and its history.
type tracked struct {
	s     *pipeline.Session
	h     *history
	floor int // see Session.Truncate
}

// chance does random things with the sessions of some engines.
type chance struct {
	*sessions
	t       *testing.T
	rng     *rand.Rand
	root    history
	engines []*pipeline.Engine
	options []pipeline.EngineOptions
	open    [][]*tracked // of each engine
	saved   []tracked    // without a session
	data    [][]byte     // their snapshots
	seed    maphash.Seed
	did     map[string]int
}

// random does to the sessions of two engines what comes, and demands of each token what it
// gave in any session with the same history, and in sessions that do nothing else. The second
// engine has vLLM's pages; what one saves the other restores.
func (x *sessions) random(t *testing.T) {
	const operations = 70
	c := x.chance(t, 2)
	o := sessionOptions()
	o.CacheBytes, o.Rewind = 1<<20, 9
	c.add(o)
	o.Rewind, o.LayerByLayer, o.Pages = 130, true, x.of.vllm
	c.add(o)
	for range operations {
		c.operation(c.rng.IntN(len(c.engines)))
	}
	c.end()
}

// end replays the longest session of each engine, and closes all of them.
func (c *chance) end() {
	for _, all := range c.open {
		slices.SortFunc(all, func(a, b *tracked) int { return b.h.length - a.h.length })
		c.replay(all[0].h)
	}
	for k, all := range c.open {
		for _, l := range all {
			assert.NoError(c.t, l.s.Close())
		}
		all, free := c.engines[k].Pages()
		assert.Equal(c.t, free, all, "of %v pages %v are free", all, free)
	}
	c.t.Log(c.did)
}

func (x *sessions) chance(t *testing.T, seed uint64) *chance {
	return &chance{sessions: x, t: t, rng: rand.New(rand.NewPCG(22, seed)), seed: maphash.MakeSeed(), did: map[string]int{}}
}

func (c *chance) add(o pipeline.EngineOptions) {
	c.engines, c.options, c.open = append(c.engines, c.engine(c.t, o)), append(c.options, o), append(c.open, nil)
}

// allowed counts an operation and reports whether it succeeded. Only certain errors are allowed.
func (c *chance) allowed(what string, err error, good ...error) bool {
	c.t.Helper()
	if err == nil {
		c.did[what]++
		return true
	}
	require.True(c.t, slices.ContainsFunc(good, func(g error) bool { return errors.Is(err, g) }), "%s: %v", what, err)
	c.did["no "+what]++
	return false
}

// operation does something with an engine.
func (c *chance) operation(k int) {
	all, n := c.open[k], c.rng.IntN(100)
	if len(all) == 0 || n < 8 {
		s, err := c.engines[k].Open()
		if c.allowed("open", err, pipeline.ErrTooManySessions) {
			c.open[k] = append(all, &tracked{s, &c.root, 0})
		}
		return
	}
	l := all[c.rng.IntN(len(all))]
	switch {
	case n < 25:
		s, err := l.s.Fork()
		if c.allowed("fork", err, pipeline.ErrTooManySessions) {
			c.open[k] = append(all, &tracked{s, l.h, l.floor})
			break
		}
		fallthrough
	case n < 30:
		c.allowed("close", l.s.Close())
		c.open[k] = slices.DeleteFunc(all, func(other *tracked) bool { return other == l })
	case n < 42:
		c.truncate(l)
	case n < 46:
		c.save(l)
	case n < 52 && len(c.saved) > 0:
		i := c.rng.IntN(len(c.saved))
		s, err := c.engines[k].Restore(c.t.Context(), bytes.NewReader(c.data[i]))
		if c.allowed("restore", err, pipeline.ErrTooManySessions, cache.ErrPoolFull) {
			h := c.saved[i].h
			c.open[k] = append(all, &tracked{s, h, max(c.saved[i].floor, h.length-c.options[k].Rewind)})
		}
	default:
		c.step(k)
	}
}

func (c *chance) save(l *tracked) {
	var data bytes.Buffer
	c.allowed("save", l.s.Save(c.t.Context(), &data))
	c.saved, c.data = append(c.saved, *l), append(c.data, data.Bytes())
}

// truncate cuts a session, near its end or where pages and groups begin.
func (c *chance) truncate(l *tracked) {
	n := l.h.length
	switch c.rng.IntN(5) {
	case 0:
		n = c.rng.IntN(n + 1)
	case 1, 2:
		group := []int{4, 16, 32, 64, 128}[c.rng.IntN(5)]
		n = n / group * group
	default:
		n = max(0, n-c.rng.IntN(12))
	}
	err := l.s.Truncate(n)
	assert.Equal(c.t, err == nil, n == 0 || n >= l.floor,
		"to %d of %d tokens, at least %d or none: %v", n, l.h.length, l.floor, err)
	if c.allowed("truncate", err, pipeline.ErrRewind) {
		if l.h = l.h.cut(n); n == 0 {
			l.floor = 0
		}
	}
}

// size is what steps of so many tokens are padded to.
func size(tokens, most int) int { return min(1<<bits.Len(uint(tokens-1)), most) }

// plan gives some sessions of an engine tokens.
func (c *chance) plan(k, most int) (who []*tracked, chunks []pipeline.Chunk, tokens [][]int) {
	o, sum := c.options[k], 0
	for _, i := range c.rng.Perm(len(c.open[k]))[:1+c.rng.IntN(most)] {
		l, n := c.open[k][i], 1+c.rng.IntN(3)
		if l.h.length < 100 && c.rng.IntN(2) == 0 || c.rng.IntN(12) == 0 {
			n = 17 + c.rng.IntN(o.MaxStep)
		}
		if n = min(n, o.MaxStep-sum, o.MaxTokens-l.h.length); n < 1 {
			continue
		}
		sum += n
		chunks, who = append(chunks, pipeline.Chunk{Session: l.s, Tokens: n}), append(who, l)
		tokens = append(tokens, nil)
		for range n {
			last := &tokens[len(tokens)-1]
			if at := l.h.length + len(*last); c.rng.IntN(4) > 0 {
				*last = append(*last, at) // as in other sessions, most of the time
			} else {
				*last = append(*last, c.rng.IntN(sessionTokens))
			}
		}
	}
	if sum == 0 || size(sum, o.MaxStep) == 16 { // for which no other test compiles kernels
		return nil, nil, nil
	}
	return who, chunks, tokens
}

// step takes tokens of some sessions through the layers, or only some of the way.
func (c *chance) step(k int) {
	o := c.options[k]
	who, chunks, tokens := c.plan(k, len(c.open[k]))
	if who == nil {
		return
	}
	st, err := c.engines[k].Begin(c.t.Context(), chunks...)
	if !c.allowed("begin", err, cache.ErrPoolFull) {
		return
	}
	gave, err := c.through(st, o.LayerByLayer, tokens, c.rng.IntN(60))
	if !c.allowed("run", err, context.Canceled) || c.rng.IntN(12) == 0 {
		c.allowed("abort", st.Abort())
		return
	}
	c.commit(k, st, who, tokens, gave)
}

// commit ends a step, and compares what it gave.
func (c *chance) commit(k int, st *pipeline.Step, who []*tracked, tokens [][]int, gave [][]uint64) {
	o := c.options[k]
	c.allowed("commit", st.Commit())
	for i, l := range who {
		for n, token := range tokens[i] {
			if l.h = l.h.then(token, c.counts(k, st.Size())); l.h.gave == 0 {
				l.h.gave = gave[i][n]
			}
			c.is(fmt.Sprintf("token %d of %d in a step of %d", n, len(tokens[i]), st.Size()), l.h, gave[i][n])
		}
		l.floor = max(l.floor, l.h.length-o.Rewind)
		assert.Equal(c.t, l.h.length, l.s.Len(), "tokens")
	}
}

// counts is a size of steps, where results of an engine depend on it.
func (c *chance) counts(k, size int) int {
	if c.options[k].Invariant {
		return 0
	}
	return size
}

func (c *chance) is(what string, h *history, gave uint64) {
	c.t.Helper()
	c.did["compared"]++
	assert.Equal(c.t, gave, h.gave, "%s: position %d gives something else than before", what, h.length-1)
}

// through runs a step and returns hashes of what its tokens gave, by chunk. Where stop
// says so, it leaves the step before it ran, while it runs, or by its context.
func (c *chance) through(st *pipeline.Step, byLayer bool, tokens [][]int, stop int) (gave [][]uint64, err error) {
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	hashes := make([][]maphash.Hash, len(tokens))
	ran := make([]bool, len(c.layers))
	for i := range c.layers {
		if err := c.input(st, i, tokens); err != nil {
			return nil, err
		}
		switch {
		case i == 1 && stop == 0:
			return nil, context.Canceled
		case i == 1 && stop == 1:
			cancel()
		}
		if byLayer || c.rng.IntN(4) == 0 && c.after(i, ran) {
			ran[i] = true
			if err = st.SubmitLayer(i); err == nil && stop == 2 {
				err = context.Canceled
			}
			if err == nil {
				err = st.Wait(ctx)
			}
			if err != nil {
				return nil, err
			}
		}
		if byLayer {
			if err = c.read(st, i, tokens, hashes); err != nil {
				return nil, err
			}
		}
	}
	if !byLayer {
		err = st.Run(ctx) // layers that ran already run again
	}
	for i := range c.layers {
		if !byLayer && err == nil {
			err = c.read(st, i, tokens, hashes)
		}
	}
	return sums(hashes), err
}

// after reports whether all layers ran that a layer takes from.
func (c *chance) after(layer int, ran []bool) bool {
	for _, from := range c.cfg.Layers[layer].From() {
		if from != layer && !ran[from] {
			return false
		}
	}
	return true
}

// input gives a layer what enters it.
func (c *chance) input(st *pipeline.Step, layer int, tokens [][]int) error {
	for k, list := range tokens {
		var hidden []float32
		for _, token := range list {
			hidden = append(hidden, c.tokens(token, token+1)...)
		}
		if err := st.SetInput(layer, k, hidden); err != nil {
			return err
		}
	}
	return nil
}

func sums(hashes [][]maphash.Hash) (gave [][]uint64) {
	for _, list := range hashes {
		gave = append(gave, nil)
		for n := range list {
			gave[len(gave)-1] = append(gave[len(gave)-1], list[n].Sum64()|1)
		}
	}
	return gave
}

// read adds the results of a layer to the hashes.
func (c *chance) read(st *pipeline.Step, layer int, tokens [][]int, hashes [][]maphash.Hash) error {
	for k, list := range tokens {
		out, picks := make([]float32, len(list)*c.cfg.Hidden), make([]int32, len(list)*c.cfg.TopK)
		err := st.ReadOutput(layer, k, out)
		if err == nil && c.cfg.Layers[layer].Picks == model.PickOwn {
			err = st.ReadTopK(layer, k, picks)
		}
		if err != nil {
			return err
		}
		if hashes[k] == nil {
			hashes[k] = make([]maphash.Hash, len(list))
			for n := range list {
				hashes[k][n].SetSeed(c.seed)
			}
		}
		for n := range list {
			for _, v := range out[n*c.cfg.Hidden:][:c.cfg.Hidden] {
				maphash.WriteComparable(&hashes[k][n], v)
			}
			for _, v := range picks[n*c.cfg.TopK:][:c.cfg.TopK] {
				maphash.WriteComparable(&hashes[k][n], v)
			}
		}
	}
	return nil
}

// replay takes the tokens of a history through a new engine, divided otherwise, in steps of
// the same sizes, which another session fills up.
func (c *chance) replay(end *history) {
	var all []*history
	for h := end; h.length > 0; h = h.before {
		all = append(all, h)
	}
	slices.Reverse(all)
	o := sessionOptions()
	e := c.engine(c.t, o)
	s, other := must[*pipeline.Session](c.t)(e.Open()), must[*pipeline.Session](c.t)(e.Open())
	for len(all) > 0 {
		n, want := 1, all[0].size
		for most := 1 + c.rng.IntN(want); n < most && n < len(all) && all[n].size == want; {
			n++
		}
		chunks, tokens := []pipeline.Chunk{{Session: s, Tokens: n}}, [][]int{nil}
		for _, h := range all[:n] {
			tokens[0] = append(tokens[0], h.token)
		}
		fill := 0
		for size(n+fill, o.MaxStep) < want {
			fill++
		}
		if fill > 0 {
			if other.Len()+fill > o.MaxTokens {
				c.allowed("empty", other.Truncate(0))
			}
			chunks, tokens = append(chunks, pipeline.Chunk{Session: other, Tokens: fill}), append(tokens, c.rng.Perm(sessionTokens)[:fill])
		}
		st := must[*pipeline.Step](c.t)(e.Begin(c.t.Context(), chunks...))
		gave, err := c.through(st, false, tokens, -1)
		c.allowed("replay", errors.Join(err, st.Commit()))
		require.Equal(c.t, want, st.Size(), "a step")
		for i, h := range all[:n] {
			c.is("replayed", h, gave[0][i])
		}
		all = all[n:]
	}
}
