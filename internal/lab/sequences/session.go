package sequences

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// engine is an engine and the options that it was made with.
type engine struct {
	*pipeline.Engine
	o pipeline.EngineOptions
}

// session is a session that follows a script.
type session struct {
	e     *engine
	s     *pipeline.Session
	sc    *script
	past  history
	floor int // see pipeline.Session.Truncate

	mu sync.Mutex // held by who uses it, in a walk
}

func (x *session) len() int { return x.past.len() }

// history has a hash for each length of a session, from 0 on: of the tokens until there.
type history []uint64

func newHistory() history { return history{1} }

func (h history) len() int { return len(h) - 1 }

func (h history) now() uint64 { return h[h.len()] }

func (h *history) add(token uint64) { *h = append(*h, mix(h.now(), token)) }

// mix returns a hash of a hash and something more.
func mix(h, more uint64) uint64 {
	h = (h ^ more ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>29) * 0x94d049bb133111eb
	return h ^ h>>32
}

// memory remembers what tokens gave after each history. Of engines that are not invariant it has
// the latest.
type memory struct {
	mu               sync.Mutex
	invariant, other map[uint64]uint64
	latest           []uint64 // keys of other
	next             int
	compared, first  int
}

const mostOther = 1 << 15

func newMemory() *memory {
	return &memory{invariant: map[uint64]uint64{}, other: make(map[uint64]uint64, mostOther), latest: make([]uint64, mostOther)}
}

// same demands what was given before for a key, or remembers it.
func (m *memory) same(invariant bool, key, got uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.other
	if invariant {
		known = m.invariant
	}
	want, there := known[key]
	switch {
	case there && want != got:
		return fmt.Errorf("other bits than before: %x, were %x", got, want)
	case there:
		m.compared++
		return nil
	}
	m.first++
	known[key] = got
	if !invariant {
		delete(m.other, m.latest[m.next])
		m.latest[m.next] = key
		m.next = (m.next + 1) % mostOther
	}
	return nil
}

// knows reports whether an invariant engine gave something for a key.
func (m *memory) knows(key uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.invariant[key]
	return ok
}

// mistakes spoil what sessions do, so that a test can demand that it is seen. All may be zero.
type mistakes struct {
	input    func(layer int, hidden []float32) // before it enters a layer
	truncate func(n int) int                   // changes the length that a session is cut to
	fork     func(of, other *pipeline.Session) *pipeline.Session
	saved    func(data []byte) []byte // what is restored
	output   func(layer int, out []float32, picks []int32)
	causal   bool // in the definition of a draft block
}

// chunk describes what a step takes of a session: its script's next n tokens, the last wrong of
// them from another script and taken back afterwards if the session may be cut there; or a block of
// drafts.
type chunk struct {
	*session
	at       int // of its first token; step sets it
	n, wrong int
	other    *script
	stay     bool // wrong tokens are not taken back
	draft    bool
	keep     *[]gave // gets what it gave; may be nil
}

// token returns the number of a chunk's k-th token and the script that it is of.
func (c *chunk) token(k int) (uint64, *script) {
	from := c.sc
	if k >= c.n-c.wrong {
		from = c.other
	}
	return from.tokens[c.at+k], from
}

// inputs returns the hidden states of a chunk for a layer.
func (c *chunk) inputs(layer int) []float32 {
	right := c.at + c.n - c.wrong
	v := slices.Clone(c.sc.inputs(layer, c.at, right))
	if c.wrong > 0 {
		v = append(v, c.other.inputs(layer, right, c.at+c.n)...)
	}
	if f := c.sc.l.spoil.input; f != nil {
		f(layer, v)
	}
	return v
}

// manner says how a step runs.
type manner struct {
	single bool // each layer is submitted by itself, the last first
	padded bool // inputs are uploaded, with NaN after the tokens
	leave  int  // before this layer it is left; 0: it is not
	abort  bool // at its end
	early  bool // it is left before anything is submitted
	inside func(st *pipeline.Step)
}

// errLeft is no error of the engine: the step was left before its end.
var errLeft = errors.New("left")

// errResult marks an error of what a step gave.
var errResult = errors.New("wrong result")

// gave holds what one layer gave for a chunk.
type gave struct {
	out   []float32
	picks []int32
}

// step takes chunks through the layers, compares what they gave, and takes back what was wrong.
func (l *Lab) step(ctx context.Context, how manner, chunks ...chunk) (err error) {
	var list []pipeline.Chunk
	for i := range chunks {
		c := &chunks[i]
		c.at = c.len()
		list = append(list, pipeline.Chunk{Session: c.s, Tokens: c.n, Draft: c.draft})
	}
	st, err := chunks[0].e.Begin(ctx, list...)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if how.inside != nil {
		how.inside(st)
	}
	if how.early {
		return errors.Join(errLeft, st.Abort())
	}
	given, err := l.through(ctx, how, st, chunks)
	if err == nil && how.abort {
		err = errLeft
	}
	if err != nil {
		return errors.Join(err, st.Abort())
	}
	size := st.Size()
	if err := st.Commit(); err != nil {
		return err
	}
	if l.o.Stepped != nil {
		l.o.Stepped()
	}
	for i := range chunks {
		if err = errors.Join(err, l.account(&chunks[i], size, given[i])); err != nil {
			return err
		}
	}
	return nil
}

// layersOf returns the first layer that a step of chunks runs and the one after the last.
func (l *Lab) layersOf(draft bool) (first, end int) {
	if draft {
		return l.main(), len(l.layers)
	}
	return 0, len(l.layers)
}

// backwards lists layers from the last to the first, but those that others take from before these.
func (l *Lab) backwards(first, end int) (order []int) {
	var add func(layer int)
	add = func(layer int) {
		if slices.Contains(order, layer) {
			return
		}
		for _, from := range l.cfg.Layers[l.layers[layer].Layer].From() {
			if from != layer && from >= first {
				add(from)
			}
		}
		order = append(order, layer)
	}
	for layer := end - 1; layer >= first; layer-- {
		add(layer)
	}
	return order
}

// through runs a step and returns what its chunks gave, by layer.
func (l *Lab) through(ctx context.Context, how manner, st *pipeline.Step, chunks []chunk) ([][]gave, error) {
	first, end := l.layersOf(chunks[0].draft)
	byLayer := chunks[0].e.o.LayerByLayer
	given := make([][]gave, len(chunks))
	each := func(do func(layer int) error) error {
		for layer := first; layer < end; layer++ {
			if err := do(layer); err != nil {
				return err
			}
		}
		return nil
	}
	enter := func(layer int) error { return l.enter(ctx, how, st, layer, chunks) }
	read := func(layer int) error { return l.read(ctx, how, st, layer, chunks, given) }
	left := func(layer int) error {
		if how.leave > 0 && layer >= how.leave {
			return errLeft
		}
		return nil
	}
	if byLayer {
		return given, each(func(layer int) error {
			err := errors.Join(enter(layer), left(layer))
			if err == nil {
				err = st.RunLayer(ctx, layer)
			}
			if err == nil {
				err = read(layer)
			}
			return err
		})
	}
	err := each(enter)
	switch {
	case err != nil:
	case how.single:
		for _, layer := range l.backwards(first, end) {
			if err = errors.Join(st.SubmitLayer(layer), left(layer)); err != nil {
				break
			}
		}
	default:
		err = errors.Join(st.Submit(), left(end))
	}
	if err == nil {
		err = st.Wait(ctx)
	}
	if err == nil {
		err = each(read)
	}
	return given, err
}

// enter gives a layer its inputs.
func (l *Lab) enter(ctx context.Context, how manner, st *pipeline.Step, layer int, chunks []chunk) error {
	if how.padded {
		return pad(ctx, st, layer, chunks[0].inputs(layer))
	}
	for i := range chunks {
		if err := st.SetInput(layer, i, chunks[i].inputs(layer)); err != nil {
			return err
		}
	}
	return nil
}

// read adds what a layer gave.
func (l *Lab) read(ctx context.Context, how manner, st *pipeline.Step, layer int, chunks []chunk, given [][]gave) error {
	for i, c := range chunks {
		var g gave
		if l.cfg.Layers[l.layers[layer].Layer].Block && !c.draft {
			given[i] = append(given[i], g) // it keeps rows alone
			continue
		}
		var err error
		if how.padded {
			g, err = l.download(ctx, st, layer, c.n)
		} else {
			g.out = make([]float32, c.n*l.cfg.Hidden)
			err = st.ReadOutput(layer, i, g.out)
			if err == nil && l.picks(layer) {
				g.picks = make([]int32, c.n*l.cfg.TopK)
				err = st.ReadTopK(layer, i, g.picks)
			}
		}
		if err != nil {
			return err
		}
		if f := l.spoil.output; f != nil {
			f(layer, g.out, g.picks)
		}
		given[i] = append(given[i], g)
	}
	return nil
}

// account adds a step's tokens to a session and compares what they gave.
func (l *Lab) account(c *chunk, size int, given []gave) error {
	if c.keep != nil {
		*c.keep = given
	}
	if c.draft {
		return l.drafted(c, size, given)
	}
	for k := range c.n {
		token, from := c.token(k)
		if err := l.gave(c.session, from, token, size, k, given); err != nil {
			return fmt.Errorf("token %d in a step of %d: %w: %w", c.at+k, size, errResult, err)
		}
	}
	c.floor = max(c.floor, c.len()-c.e.o.Rewind)
	if n := c.at + c.n - c.wrong; c.wrong > 0 && !c.stay && n >= c.floor {
		return l.cut(c.session, n)
	}
	return nil
}

// gave adds a token to a session and compares what it gave, the k-th of some.
func (l *Lab) gave(x *session, from *script, token uint64, size, k int, given []gave) error {
	at, invariant := x.len(), x.e.o.Invariant
	pure := x.past.now() == from.before[at]
	if invariant {
		size = 0
	}
	x.past.add(l.counted(token, size))
	if err := l.memory.same(invariant, mix(x.past.now(), uint64(size)), l.sum(given, k)); err != nil {
		return err
	}
	if !pure {
		return nil
	}
	for layer, g := range given {
		if g.out == nil {
			continue
		}
		var picks []int32
		if spec := &l.cfg.Layers[layer]; spec.Picks != model.PickNone && !spec.Block {
			picks = given[spec.PicksOf].picks[k*l.cfg.TopK:][:l.cfg.TopK]
		}
		out := g.out[k*l.cfg.Hidden:][:l.cfg.Hidden]
		if err := errors.Join(from.check(layer, at, out, picks), l.likePass(from, layer, at, out, picks)); err != nil {
			return err
		}
	}
	return nil
}

// counted returns what a token counts as in a history. The caches of random weights have other bits
// in steps of other sizes.
func (l *Lab) counted(token uint64, size int) uint64 {
	if l.o.Random != nil && size > 0 {
		return mix(token, uint64(size))
	}
	return token
}

// sum returns a hash of what layers gave for the k-th token of some.
func (l *Lab) sum(given []gave, k int) (h uint64) {
	for _, g := range given {
		if g.out != nil {
			for _, v := range g.out[k*l.cfg.Hidden:][:l.cfg.Hidden] {
				h = mix(h, uint64(math.Float32bits(v)))
			}
		}
		if g.picks != nil {
			for _, v := range g.picks[k*l.cfg.TopK:][:l.cfg.TopK] {
				h = mix(h, uint64(uint32(v)))
			}
		}
	}
	return h
}

// drafted compares what a block of drafts gave.
func (l *Lab) drafted(c *chunk, size int, given []gave) error {
	at, key, all := c.len(), c.past.now(), uint64(0)
	if c.e.o.Invariant {
		size = 0
	}
	for k := range c.n {
		token, _ := c.token(k)
		key, all = mix(key, token), mix(all, l.sum(given, k))
	}
	err := l.memory.same(c.e.o.Invariant, mix(key, uint64(size)<<1|1<<61), all)
	for i, g := range given {
		for k := range c.n {
			if err == nil && c.past.now() == c.sc.before[at] {
				err = c.sc.check(l.main()+i, at+k, g.out[k*l.cfg.Hidden:][:l.cfg.Hidden], nil)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("a block of drafts after %d tokens: %w: %w", at, errResult, err)
	}
	return nil
}

// blocks returns chunks of drafts after sessions, of those for which there is room.
func (l *Lab) blocks(list ...*session) (chunks []chunk) {
	n := l.cfg.DraftBlock
	for _, x := range list {
		if l.main() < len(l.layers) && x.len()+n <= min(l.tokens(), x.e.o.MaxTokens) && (len(chunks)+1)*n <= x.e.o.MaxStep {
			chunks = append(chunks, chunk{session: x, n: n, draft: true})
		}
	}
	return chunks
}

// cut takes back the tokens from n on.
func (l *Lab) cut(x *session, n int) error {
	to := n
	if f := l.spoil.truncate; f != nil {
		to = f(n)
	}
	err := x.s.Truncate(to)
	if may := n == 0 || n >= x.floor; (err == nil) != may && !errors.Is(err, vk.ErrClosed) {
		return fmt.Errorf("truncate: to %d of %d tokens, at least %d or none: %v: %w", n, x.len(), x.floor, err, errResult)
	}
	if err != nil {
		return err
	}
	if x.past = x.past[:n+1]; n == 0 {
		x.floor = 0
	}
	return nil
}

// fork makes another session with the same tokens.
func (l *Lab) fork(x *session, sc *script) (*session, error) {
	s, err := x.s.Fork()
	if f := l.spoil.fork; f != nil && err == nil {
		s = f(x.s, s)
	}
	return &session{e: x.e, s: s, sc: sc, past: slices.Clone(x.past), floor: x.floor}, err
}

// saved returns a session's snapshot, and compares it with those of the same tokens.
func (l *Lab) saved(ctx context.Context, x *session) ([]byte, error) {
	var b bytes.Buffer
	if err := x.s.Save(ctx, &b); err != nil {
		return nil, err
	}
	return b.Bytes(), l.sameSnapshot(x, b.Bytes())
}

var hashSeed = maphash.MakeSeed()

func (l *Lab) sameSnapshot(x *session, data []byte) error {
	if err := l.memory.same(x.e.o.Invariant, mix(x.past.now(), uint64(x.floor)<<1|1<<60), maphash.Bytes(hashSeed, data)); err != nil {
		return fmt.Errorf("a snapshot of %d tokens: %w: %w", x.len(), errResult, err)
	}
	return nil
}

// restored makes a session of what another one saved.
func (l *Lab) restored(ctx context.Context, e *engine, of *session, data []byte) (*session, error) {
	if f := l.spoil.saved; f != nil {
		data = f(data)
	}
	s, err := e.Restore(ctx, bytes.NewReader(data)) // leaves out what this engine would not keep
	if err != nil {
		return nil, err
	}
	return &session{e: e, s: s, sc: of.sc, past: slices.Clone(of.past), floor: max(of.floor, of.len()-e.o.Rewind)}, nil
}
