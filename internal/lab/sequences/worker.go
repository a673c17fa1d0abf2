package sequences

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// worker is one goroutine of a walk.
type worker struct {
	*walk
	rng   *rand.Rand
	plain bool // steps are neither cancelled nor aborted
}

func (w *worker) walkOn() {
	for !w.ended.Load() {
		if n := w.steps.Add(1); w.o.Steps > 0 && n > int64(w.o.Steps) {
			w.steps.Add(-1)
			return
		}
		w.operation(w.places[w.rng.IntN(len(w.places))])
	}
}

func (w *worker) operation(p *place) {
	n := w.rng.IntN(1000)
	if n < 4 {
		p.replace(w.walk, n < 2)
		w.count("replace an engine")
		return
	}
	p.use.RLock()
	defer p.use.RUnlock()
	switch {
	case n < 20:
		w.look(p)
	case n < 25:
		w.prepare(p)
	case n < 30:
		w.transfer()
	case n < 60:
		w.open(p)
	case n < 110:
		w.restore(p)
	case n < 210:
		w.one(p, w.fork)
	case n < 310:
		w.one(p, w.truncate)
	case n < 350:
		w.one(p, w.save)
	case n < 420:
		w.one(p, w.close)
	case n < 520:
		w.one(p, w.append)
	default:
		list := w.take(p, 1+w.rng.IntN(6))
		w.step(p, w.plan(p, list))
		give(list)
	}
}

// take takes up to n sessions that are not in use, and opens one if there is none.
func (w *worker) take(p *place, n int) []*session {
	list := p.take(w.rng, n)
	if len(list) == 0 {
		w.open(p)
		list = p.take(w.rng, n)
	}
	return list
}

// one does something with a session that is not in use.
func (w *worker) one(p *place, do func(*place, *session)) {
	list := w.take(p, 1)
	for _, s := range list {
		do(p, s)
	}
	give(list)
}

// allowed counts an operation and reports whether it succeeded. An error that is not one of some
// ends the walk.
func (w *worker) allowed(p *place, what string, err error, good ...error) bool {
	if err == nil {
		w.count(what)
		return true
	}
	if p.closing.Load() {
		good = append(good, vk.ErrClosed)
	}
	for _, g := range good {
		if errors.Is(err, g) && !errors.Is(err, errResult) {
			w.count("no " + what + ": " + g.Error())
			return false
		}
	}
	w.fail(what, err)
	return false
}

// kept demands that a session has the tokens that it should have.
func (w *worker) kept(p *place, what string, s *session) {
	if n := s.s.Len(); n != s.len() && !p.closing.Load() {
		w.fail(what, fmt.Errorf("%d tokens, want %d", n, s.len()))
	}
}

// look asks what can be asked at any time.
func (w *worker) look(p *place) {
	p.mu.Lock()
	for _, s := range p.all {
		if n := s.s.Len(); n < 0 || n > p.o.MaxTokens {
			w.fail("look", fmt.Errorf("%d tokens", n))
		}
	}
	p.mu.Unlock()
	if m := p.e.Memory(); m.Held > m.Caches || m.Caches > p.o.MaxCacheBytes {
		w.fail("look", fmt.Errorf("caches of %d bytes, %d of them held, of at most %d", m.Caches, m.Held, p.o.MaxCacheBytes))
	}
	w.count("look")
}

func (w *worker) prepare(p *place) {
	ctx, stop := w.context()
	defer stop()
	w.allowed(p, "prepare", p.e.Prepare(ctx, 1+w.rng.IntN(min(8, p.o.MaxStep))), context.Canceled)
}

// transfer uses the device for something else.
func (w *worker) transfer() {
	data := make([]byte, 4*(1+w.rng.IntN(1000)))
	for i := range data {
		data[i] = byte(w.rng.Uint32())
	}
	d, ctx, back := w.dev, context.Background(), make([]byte, len(data))
	b, err := d.NewBuffer(vk.BufferSpec{Label: "walk", Size: uint64(len(data))})
	if err != nil {
		w.fail("new buffer", err)
		return
	}
	err = errors.Join(d.Upload(ctx, b.Whole(), data), d.Download(ctx, back, b.Whole()), b.Close())
	if err == nil && !bytes.Equal(back, data) {
		err = errors.New("other bytes come back")
	}
	if err != nil {
		w.fail("transfer", err)
	}
	w.count("transfer")
}

func (w *worker) open(p *place) {
	s, err := p.e.Open()
	if w.allowed(p, "open", err, pipeline.ErrTooManySessions) {
		p.add(&session{e: p.e, s: s, sc: w.any(newHistory(), nil), past: newHistory()})
	}
}

// any returns a script with the tokens of a history, or the one that had them.
func (w *worker) any(past history, of *script) *script {
	if sc := w.scripts[w.rng.IntN(len(w.scripts))]; sc.before[past.len()] == past.now() {
		return sc
	}
	return of
}

func (w *worker) fork(p *place, s *session) {
	f, err := w.Lab.fork(s, w.any(s.past, s.sc))
	if w.allowed(p, "fork", err, pipeline.ErrTooManySessions) {
		p.add(f)
	}
}

func (w *worker) close(p *place, s *session) {
	if w.allowed(p, "close", s.s.Close()) {
		p.remove(s)
	}
}

// truncate cuts a session: at any length, near its end, or where groups and pages begin.
func (w *worker) truncate(p *place, s *session) {
	length := s.len()
	n := w.rng.IntN(length + 1)
	switch w.rng.IntN(5) {
	case 0:
	case 1:
		group := []int{4, 16, 32, 64, 128}[w.rng.IntN(5)]
		n = length / group * group
	default:
		n = max(0, length-w.rng.IntN(12))
	}
	if w.allowed(p, "truncate", w.cut(s, n), pipeline.ErrRewind) {
		s.sc = w.any(s.past, s.sc)
	}
	w.kept(p, "truncate", s)
}

// plan gives sessions their next tokens: one each, or drafts, or a piece of a prompt for the first.
func (w *worker) plan(p *place, list []*session) (chunks []chunk) {
	if w.main() < len(w.layers) && w.rng.IntN(3) == 0 {
		return w.blocks(list...)
	}
	kind, room := w.rng.IntN(4), p.o.MaxStep
	for i, s := range list {
		n := 1
		switch {
		case kind == 0:
			n += w.rng.IntN(4)
		case kind == 1 && i == 0:
			n = w.few(p)
		}
		if n = min(n, room, p.o.MaxTokens-s.len()); n < 1 {
			continue
		}
		room -= n
		c := chunk{session: s, n: n}
		if kind == 0 && n > 1 && w.rng.IntN(2) == 0 { // what a draft guessed wrongly
			c.wrong, c.other = 1+w.rng.IntN(n-1), w.scripts[w.rng.IntN(len(w.scripts))]
		}
		chunks = append(chunks, c)
	}
	return chunks
}

// step takes chunks through the layers, or some of the way.
func (w *worker) step(p *place, chunks []chunk) {
	if len(chunks) == 0 {
		return
	}
	ctx, stop := w.context()
	defer stop()
	how := manner{single: w.rng.IntN(6) == 0}
	if !w.plain {
		how.abort, how.early = w.rng.IntN(20) == 0, w.rng.IntN(25) == 0
		if first, end := w.layersOf(chunks[0].draft); w.rng.IntN(25) == 0 {
			how.leave = max(1, first+w.rng.IntN(end-first))
		}
	}
	if w.rng.IntN(10) == 0 {
		how.inside = func(*pipeline.Step) { w.inside(p, chunks[0].s) }
	}
	before := make([]int, len(chunks))
	for i, c := range chunks {
		before[i] = c.len()
	}
	err := w.Lab.step(ctx, how, chunks...)
	if !w.allowed(p, "step", err, context.Canceled, errLeft, cache.ErrPoolFull) {
		for i, c := range chunks {
			if c.len() != before[i] && !p.closing.Load() {
				w.fail("step", fmt.Errorf("a session has tokens of a step that failed: %w", err))
			}
		}
	} else if chunks[0].draft {
		w.count("draft")
	}
	for _, c := range chunks {
		w.kept(p, "step", c.session)
	}
	if errors.Is(err, cache.ErrPoolFull) && w.rng.IntN(2) == 0 {
		w.close(p, chunks[0].session)
	}
}

// inside does with a session what is refused within a step.
func (w *worker) inside(p *place, s *pipeline.Session) {
	_, err := s.Fork()
	for what, err := range map[string]error{"fork": err, "truncate": s.Truncate(0), "close": s.Close()} {
		if w.allowed(p, what+" in a step", err, pipeline.ErrInStep) && !p.closing.Load() {
			w.fail(what, errors.New("succeeds within a step"))
		}
	}
}

// context returns one that now and then ends, at once or in a while.
func (w *worker) context() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	n := w.rng.IntN(40)
	if w.plain || n > 2 {
		return ctx, cancel
	}
	if n == 0 {
		cancel()
		return ctx, cancel
	}
	var done sync.WaitGroup
	turns := w.rng.IntN(5000)
	done.Go(func() {
		for range turns {
			runtime.Gosched()
		}
		cancel()
	})
	return ctx, func() {
		cancel()
		done.Wait()
	}
}

// append appends tokens to one session, in as many steps as it takes.
func (w *worker) append(p *place, s *session) {
	c := chunk{session: s, at: s.len(), n: min(w.few(p), p.o.MaxTokens-s.len())}
	if c.n < 1 {
		return
	}
	var inputs [][]float32
	for layer := range w.layers {
		inputs = append(inputs, c.inputs(layer))
	}
	ctx, stop := w.context()
	defer stop()
	got, err := s.s.Append(ctx, inputs)
	w.allowed(p, "append", err, context.Canceled, cache.ErrPoolFull)
	did := c.n
	if err != nil {
		if did = 0; len(got) > 0 {
			did = len(got[0].Out) / w.cfg.Hidden
		}
		if did > c.n || did%p.o.MaxStep != 0 {
			w.fail("append", fmt.Errorf("%d tokens in steps of %d: %w", did, p.o.MaxStep, err))
			return
		}
	}
	var given []gave
	for i := range got {
		g := gave{out: got[i].Out, picks: got[i].TopK}
		if len(g.picks) == 0 {
			g.picks = nil
		}
		if len(g.out) == 0 {
			g.out = nil
		}
		given = append(given, g)
	}
	for k := range did {
		first := k / p.o.MaxStep * p.o.MaxStep
		token, from := c.token(k)
		if err := w.gave(s, from, token, stepSize(min(p.o.MaxStep, c.n-first), p.o.MaxStep), k, given); err != nil {
			w.fail("append", err)
			return
		}
	}
	s.floor = max(s.floor, s.len()-p.o.Rewind)
	w.kept(p, "append", s)
}

// stepSize returns what steps of some tokens are padded to.
func stepSize(tokens, most int) int { return min(1<<bits.Len(uint(tokens-1)), most) }

// few returns a number of tokens: mostly small, at times a long piece of a prompt.
func (w *worker) few(p *place) int {
	switch n := w.rng.IntN(40); {
	case n == 0:
		return 1 + w.rng.IntN(min(200, 2*p.o.MaxStep))
	case n < 6:
		return 1 + w.rng.IntN(24)
	}
	return 1 + w.rng.IntN(5)
}

// snapshots are the last that were saved.
type snapshots struct {
	mu   sync.Mutex
	list [12]snapshot
}

type snapshot struct {
	data []byte
	made pipeline.Fingerprint // by an engine
	of   *session             // its script, history and floor
}

var errWriter = errors.New("the writer fails")

// writer fails after some bytes.
type writer struct {
	bytes.Buffer
	most int
}

func (b *writer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, errWriter
	}
	return b.Buffer.Write(p)
}

func (w *worker) save(p *place, s *session) {
	to := writer{most: 1 << 30}
	if w.rng.IntN(12) == 0 {
		to.most = w.rng.IntN(1 << 20)
	}
	ctx, stop := w.context()
	defer stop()
	if !w.allowed(p, "save", s.s.Save(ctx, &to), context.Canceled, errWriter) {
		return
	}
	if err := w.sameSnapshot(s, to.Bytes()); err != nil {
		w.fail("save", err)
	}
	w.saved.mu.Lock()
	defer w.saved.mu.Unlock()
	w.saved.list[w.rng.IntN(len(w.saved.list))] = snapshot{bytes.Clone(to.Bytes()), p.e.Fingerprint(),
		&session{sc: s.sc, past: slices.Clone(s.past), floor: s.floor}}
}

func (w *worker) restore(p *place) {
	w.saved.mu.Lock()
	from := w.saved.list[w.rng.IntN(len(w.saved.list))]
	w.saved.mu.Unlock()
	if from.data == nil {
		return
	}
	var damage []error // what may be said of it; any: it has to be refused
	switch w.rng.IntN(16) {
	case 0:
		from.data = bytes.Clone(from.data)
		from.data[w.rng.IntN(len(from.data))] ^= 1 << w.rng.IntN(8)
		damage = []error{pipeline.ErrSnapshot, pipeline.ErrSequenceFull} // of a length, which is looked at first
	case 1:
		from.data = from.data[:w.rng.IntN(len(from.data))]
		damage = []error{pipeline.ErrSnapshot}
	default:
		if from.made != p.e.Fingerprint() {
			damage = []error{pipeline.ErrSnapshotModel}
		}
	}
	ctx, stop := w.context()
	defer stop()
	s, err := w.restored(ctx, p.e, from.of, from.data)
	if err == nil && damage != nil {
		w.fail("restore", errors.New("a snapshot that is damaged or of another engine is accepted"))
	}
	if !w.allowed(p, "restore", err, append(damage, context.Canceled, pipeline.ErrTooManySessions, cache.ErrPoolFull)...) {
		return
	}
	s.sc = w.any(s.past, s.sc)
	w.kept(p, "restore", s)
	p.add(s)
}
