package walk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// worker is one goroutine of a walk.
type worker struct {
	*Walk
	rng   *rand.Rand
	plain bool // steps are neither cancelled nor aborted
}

func (w *worker) walk() {
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
		p.replace(w.Walk, n < 2)
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

// take takes up to n sessions that nobody uses, and opens one if there is none.
func (w *worker) take(p *place, n int) []*session {
	list := p.take(w.rng, n)
	if len(list) == 0 {
		w.open(p)
		list = p.take(w.rng, n)
	}
	return list
}

// one does something with a session that nobody uses.
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
		if errors.Is(err, g) {
			w.count("no " + what + ": " + g.Error())
			return false
		}
	}
	w.fail(what, err)
	return false
}

// kept demands that a session has the tokens that it should have.
func (w *worker) kept(p *place, what string, s *session) {
	if n := s.s.Len(); n != s.past.length() && !p.closing.Load() {
		w.fail(what, fmt.Errorf("%d tokens, want %d", n, s.past.length()))
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
	if w.o.Disturb != nil {
		w.o.Disturb(p.e)
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
	d, ctx, back := w.o.Device, context.Background(), make([]byte, len(data))
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
		p.add(&session{s: s, story: w.rng.IntN(len(w.world.stories)), past: newPast(p.o.Invariant)})
	}
}

func (w *worker) fork(p *place, s *session) {
	f, err := s.s.Fork()
	if w.allowed(p, "fork", err, pipeline.ErrTooManySessions) {
		p.add(&session{s: f, story: w.world.hop(w.rng, s.story, s.past.length()), past: s.past.clone(), floor: s.floor})
	}
}

func (w *worker) close(p *place, s *session) {
	if w.allowed(p, "close", s.s.Close()) {
		p.remove(s)
	}
}

// truncate cuts a session: at any length, near its end, or where groups and pages begin.
func (w *worker) truncate(p *place, s *session) {
	length := s.past.length()
	n := w.rng.IntN(length + 1)
	switch w.rng.IntN(5) {
	case 0:
	case 1:
		group := []int{4, 16, 32, 64, 128}[w.rng.IntN(5)]
		n = length / group * group
	default:
		n = max(0, length-w.rng.IntN(12))
	}
	w.cut(p, s, n)
}

func (w *worker) cut(p *place, s *session, n int) {
	err := s.s.Truncate(n)
	if may := n == 0 || n >= s.floor; (err == nil) != may && !errors.Is(err, vk.ErrClosed) {
		w.fail("truncate", fmt.Errorf("to %d of %d tokens, at least %d or none: %w", n, s.past.length(), s.floor, err))
		return
	}
	if w.allowed(p, "truncate", err, pipeline.ErrRewind) {
		s.past.cut(n)
		if s.story = w.world.hop(w.rng, s.story, n); n == 0 {
			s.past, s.floor = newPast(p.o.Invariant), 0
		}
	}
	w.kept(p, "truncate", s)
}

// grown notes the tokens that a session got.
func (s *session) grown(o *pipeline.EngineOptions) { s.floor = max(s.floor, s.past.length()-o.Rewind) }

// context is one that now and then ends, at once or in a while.
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
	at := s.past.length()
	n := min(w.few(p), p.o.MaxTokens-at)
	if n < 1 {
		return
	}
	var tokens []int
	for i := range n {
		tokens = append(tokens, w.world.token(s.story, at+i))
	}
	var hidden [][]float32
	for i := range w.o.Layers {
		hidden = append(hidden, w.world.input(i, tokens))
	}
	ctx, stop := w.context()
	defer stop()
	got, err := s.s.Append(ctx, hidden)
	w.allowed(p, "append", err, context.Canceled, cache.ErrPoolFull)
	did := n
	if err != nil {
		if did = 0; len(got) > 0 {
			did = len(got[0].Out) / w.o.Config.Hidden
		}
		if did > n || did%p.o.MaxStep != 0 {
			w.fail("append", fmt.Errorf("%d tokens in steps of %d: %w", did, p.o.MaxStep, err))
			return
		}
	}
	given := make(sums, did)
	for _, layer := range got {
		if did > 0 {
			given.floats(layer.Out)
		}
		if len(layer.TopK) > 0 {
			given.ints(layer.TopK)
		}
	}
	for i, token := range tokens[:did] {
		first := i / p.o.MaxStep * p.o.MaxStep
		w.gave(p, s, token, size(min(p.o.MaxStep, n-first), p.o.MaxStep), given[i])
	}
	s.grown(&p.o)
	w.kept(p, "append", s)
}

// gave adds a token to a session, and compares what it gave.
func (w *worker) gave(p *place, s *session, token, size int, given uint64) {
	if p.o.Invariant {
		size = 0
	}
	s.past.add(token, size)
	if err := w.memory.same(s.past.pure, s.past.now(), given); err != nil {
		w.fail(fmt.Sprintf("token %d of story %d in an engine with steps of %d", s.past.length()-1, s.story, p.o.MaxStep), err)
	}
}

// drafted compares what a block of drafts gave.
func (w *worker) drafted(p *place, s *session, size int, given sums) {
	if p.o.Invariant {
		size = 0
	}
	key, all := mix(s.past.now(), uint64(size)<<1|1<<61), uint64(0)
	for _, x := range given {
		all = mix(all, x)
	}
	if err := w.memory.same(s.past.pure && size == 0, key, all); err != nil {
		w.fail(fmt.Sprintf("drafts behind %d tokens of story %d in an engine with steps of %d", s.past.length(), s.story, p.o.MaxStep), err)
	}
	w.count("draft")
}

// few is a number of tokens: mostly small, at times a long piece of a prompt.
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
	list [12]struct {
		data []byte
		from pipeline.Fingerprint
		of   session
	}
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
	sum := uint64(s.floor)
	for _, b := range to.Bytes() {
		sum = (sum ^ uint64(b)) * 0x100000001b3
	}
	key := mix(s.past.now(), uint64(s.floor)<<1|1<<60)
	if err := w.memory.same(s.past.pure, key, sum); err != nil {
		w.fail(fmt.Sprintf("snapshot of %d tokens", s.past.length()), err)
	}
	w.saved.mu.Lock()
	defer w.saved.mu.Unlock()
	kept := &w.saved.list[w.rng.IntN(len(w.saved.list))]
	kept.data, kept.from = bytes.Clone(to.Bytes()), p.e.Fingerprint()
	kept.of.past, kept.of.floor, kept.of.story = s.past.clone(), s.floor, s.story
}

func (w *worker) restore(p *place) {
	w.saved.mu.Lock()
	from := &w.saved.list[w.rng.IntN(len(w.saved.list))]
	data, made, story, old, floor := from.data, from.from, from.of.story, from.of.past, from.of.floor
	w.saved.mu.Unlock()
	if data == nil {
		return
	}
	var damage []error // what may be said of it; any: it has to be refused
	switch w.rng.IntN(16) {
	case 0:
		data = bytes.Clone(data)
		data[w.rng.IntN(len(data))] ^= 1 << w.rng.IntN(8)
		damage = []error{pipeline.ErrSnapshot, pipeline.ErrSequenceFull} // of a length, which is looked at first
	case 1:
		data = data[:w.rng.IntN(len(data))]
		damage = []error{pipeline.ErrSnapshot}
	default:
		if made != p.e.Fingerprint() {
			damage = []error{pipeline.ErrSnapshotModel}
		}
	}
	ctx, stop := w.context()
	defer stop()
	s, err := p.e.Restore(ctx, bytes.NewReader(data))
	if err == nil && damage != nil {
		w.fail("restore", errors.New("a snapshot that is damaged or of another engine is accepted"))
	}
	if !w.allowed(p, "restore", err, append(damage, context.Canceled, pipeline.ErrTooManySessions, cache.ErrPoolFull)...) {
		return
	}
	l := &session{s: s, past: old.clone(), floor: floor, story: w.world.hop(w.rng, story, old.length())}
	l.grown(&p.o)
	w.kept(p, "restore", l)
	p.add(l)
}
