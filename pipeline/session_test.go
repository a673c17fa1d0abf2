package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// sessions is a model with a layer of each kind, enough tokens to recycle pages of windows and
// states, and the results of an engine that ran them without interruption. Every test takes the
// tokens in the same steps.
type sessions struct {
	dev    *vk.Device
	cfg    model.Config
	layers []*model.DeviceLayer
	hidden []float32
	want   []pipeline.Appended // of each layer
}

const (
	sessionTokens = 206
	sessionFork   = 163 // a length between two steps
)

// sessionSteps are the tokens of the steps: prefill, speculative decoding, decode. Entries
// of C4A are completed by the first, the middle and the last token of a step.
var sessionSteps = []int{40, 40, 40, 40, 3, 1, 1, 1, 1, 5, 2, 1, 30, 1}

func sessionOptions() pipeline.EngineOptions {
	return pipeline.EngineOptions{MaxTokens: sessionTokens, MaxSessions: 4, MaxStep: 40, Rewind: 20, KeepTopK: true, CacheBytes: 64 << 20}
}

// newModel uploads the model to a device.
func newModel(t testing.TB, dev *vk.Device) *sessions {
	t.Helper()
	x := &sessions{dev: dev}
	x.cfg, x.layers = uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4, 0, 128), Storage: fakemodel.FP8})))
	x.hidden = normals(sessionTokens * x.cfg.Hidden)
	return x
}

// normals are random numbers, the same each time.
func normals(n int) []float32 {
	rng, v := rand.New(rand.NewPCG(8, 9)), make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// newSessions uploads the model to a device and runs the tokens.
func newSessions(t testing.TB, dev *vk.Device) *sessions {
	t.Helper()
	x := newModel(t, dev)
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.want = x.run(t, s, sessionTokens)
	return x
}

func (x *sessions) engine(t testing.TB, o pipeline.EngineOptions) *pipeline.Engine {
	t.Helper()
	return engine(t, x.dev, x.cfg, x.layers, o)
}

// run appends the session's next tokens, up to a length, in the steps that all tests
// take.
func (x *sessions) run(t testing.TB, s *pipeline.Session, length int) []pipeline.Appended {
	t.Helper()
	all := make([]pipeline.Appended, len(x.layers))
	at := 0
	for _, n := range sessionSteps {
		if at += n; at <= s.Len() || at > length {
			continue
		}
		for i, got := range extend(t, s, len(x.layers), x.tokens(at-n, at)) {
			all[i].Out, all[i].TopK = append(all[i].Out, got.Out...), append(all[i].TopK, got.TopK...)
		}
	}
	if s.Len() != length {
		t.Fatalf("%d tokens, want %d", s.Len(), length)
	}
	return all
}

func (x *sessions) tokens(a, b int) []float32 { return x.hidden[a*x.cfg.Hidden : b*x.cfg.Hidden] }

// same demands the bits of the uninterrupted run for the tokens up to a length.
func (x *sessions) same(t testing.TB, what string, length int, got []pipeline.Appended) {
	t.Helper()
	for i := range got {
		n := len(got[i].Out)
		from := length*x.cfg.Hidden - n
		if n == 0 || !slices.Equal(got[i].Out, x.want[i].Out[from:from+n]) {
			t.Errorf("%s: layer %d: another output", what, i)
		}
		if k := len(got[i].TopK); k > 0 && !slices.Equal(got[i].TopK, x.want[i].TopK[length*x.cfg.TopK-k:length*x.cfg.TopK]) {
			t.Errorf("%s: layer %d: other picks", what, i)
		}
	}
}

// rest runs the session to its end and demands the results of the uninterrupted run.
func (x *sessions) rest(t testing.TB, what string, s *pipeline.Session) {
	t.Helper()
	x.same(t, what, sessionTokens, x.run(t, s, sessionTokens))
}

// begin begins a step of the tokens from the session's length on.
func (x *sessions) begin(t testing.TB, e *pipeline.Engine, s *pipeline.Session, n int) *pipeline.Step {
	t.Helper()
	at := s.Len()
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
	for i := range x.layers {
		if err := st.SetInput(i, 0, x.tokens(at, at+n)); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// TestSessions does everything to sessions that must not change their results, and demands that it
// does not.
func TestSessions(t *testing.T) {
	x := newSessions(t, testkit.Device(t))
	t.Run("growth", func(t *testing.T) {
		o := sessionOptions()
		o.CacheBytes = 1 << 20
		e := x.engine(t, o)
		s, other := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
		before, _ := e.Pages()
		first := x.run(t, s, sessionFork)
		x.run(t, other, sessionFork) // moves the pages of s
		x.same(t, "to the fork", sessionFork, first)
		x.rest(t, "the rest", s)
		if after, _ := e.Pages(); after[0] <= before[0] || after[1] <= before[1] {
			t.Errorf("pages before %v, after %v", before, after)
		}
	})
	t.Run("fork", func(t *testing.T) { x.fork(t) })
	t.Run("truncate", func(t *testing.T) { x.truncate(t) })
	t.Run("cancel", func(t *testing.T) { x.cancel(t) })
	t.Run("layers", func(t *testing.T) { x.byLayer(t) })
	t.Run("budget", func(t *testing.T) { x.budget(t) })
	t.Run("batch", func(t *testing.T) { x.batch(t) })
	t.Run("full", func(t *testing.T) { x.full(t) })
	t.Run("save", func(t *testing.T) { x.save(t) })
	t.Run("concurrent", func(t *testing.T) { x.concurrent(t) })
	t.Run("random", func(t *testing.T) { x.random(t) })
}

func (x *sessions) fork(t *testing.T) {
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, sessionFork)
	child := must[*pipeline.Session](t)(s.Fork())
	grand := must[*pipeline.Session](t)(child.Fork())
	if child.Len() != sessionFork || grand.Len() != sessionFork {
		t.Error(child.Len(), grand.Len())
	}
	if err := grand.Truncate(sessionFork - sessionOptions().Rewind - 1); !errors.Is(err, pipeline.ErrRewind) {
		t.Errorf("truncated further than what it was forked from: %v", err)
	}
	// Other tokens of the parent, in a step of its own and in one with its child, and a
	// sibling that comes and goes meanwhile.
	extend(t, s, len(x.layers), x.tokens(0, 7))
	sibling := must[*pipeline.Session](t)(child.Fork())
	extend(t, sibling, len(x.layers), x.tokens(3, 4))
	if err := sibling.Close(); err != nil {
		t.Error(err)
	}
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 2}, pipeline.Chunk{Session: child, Tokens: 3}))
	if err := st.Abort(); err != nil {
		t.Error(err)
	}
	x.rest(t, "child", child)
	if err := errors.Join(s.Close(), child.Close()); err != nil {
		t.Error(err)
	}
	// One goes on, in copies of pages that it had written to; then the other writes there.
	x.same(t, "before the last", sessionFork+1, x.run(t, grand, sessionFork+1))
	last := must[*pipeline.Session](t)(grand.Fork())
	x.same(t, "beside the last", sessionFork+2, x.run(t, grand, sessionFork+2))
	extend(t, last, len(x.layers), x.tokens(5, 8))
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	x.rest(t, "grandchild", grand)
	if err := errors.Join(grand.Close(), grand.Close()); err != nil {
		t.Error(err)
	}
	if all, free := e.Pages(); all != free {
		t.Errorf("of %v pages %v are free", all, free)
	}
}

func (x *sessions) truncate(t *testing.T) {
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, sessionFork)
	extend(t, s, len(x.layers), x.tokens(11, 11+18))
	if err := s.Truncate(sessionFork - 3); !errors.Is(err, pipeline.ErrRewind) {
		t.Error(err)
	}
	for _, n := range []int{-1, s.Len() + 1} {
		if err := s.Truncate(n); !errors.Is(err, vk.ErrArgument) {
			t.Error(n, err)
		}
	}
	if err := s.Truncate(sessionFork); err != nil || s.Len() != sessionFork {
		t.Fatal(err, s.Len())
	}
	x.rest(t, "truncated", s)
	if err := s.Truncate(0); err != nil || s.Len() != 0 {
		t.Fatal(err, s.Len())
	}
	if all, free := e.Pages(); all != free {
		t.Errorf("of %v pages %v are free", all, free)
	}
	extend(t, s, len(x.layers), x.tokens(2, 5))
	if err := errors.Join(s.Truncate(1), s.Truncate(0)); err != nil {
		t.Errorf("a session that was empty in between: %v", err)
	}
	x.rest(t, "from the beginning", s)
}

func (x *sessions) cancel(t *testing.T) {
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, sessionFork)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Begin(cancelled, pipeline.Chunk{Session: s, Tokens: 1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for name, leave := range map[string]func(st *pipeline.Step){
		"before it ran": func(*pipeline.Step) {},
		"after it ran": func(st *pipeline.Step) {
			if err := st.Run(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"while it runs": func(st *pipeline.Step) {
			if err := st.Submit(); err != nil {
				t.Error(err)
			}
			if err := st.Commit(); !errors.Is(err, vk.ErrBusy) {
				t.Errorf("commit: %v", err)
			}
			if err := st.SetInput(0, 0, x.tokens(0, 33)); !errors.Is(err, vk.ErrBusy) {
				t.Errorf("input: %v", err)
			}
		},
		"by its context": func(st *pipeline.Step) {
			assert.ErrorIs(t, interrupted(st, cancelled), context.Canceled)
			if err := st.Commit(); !errors.Is(err, vk.ErrClosed) {
				t.Errorf("commit: %v", err)
			}
		},
		"between layers": func(st *pipeline.Step) {
			if err := st.RunLayer(t.Context(), 1); err != nil {
				t.Error(err)
			}
			if err := st.Commit(); !errors.Is(err, vk.ErrArgument) {
				t.Errorf("commit: %v", err)
			}
		},
	} {
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 33}))
		for i := range x.layers {
			if err := st.SetInput(i, 0, x.tokens(5, 5+33)); err != nil {
				t.Fatal(err)
			}
		}
		for what, err := range map[string]error{"close": s.Close(), "truncate": s.Truncate(0), "fork": failure(s.Fork()), "advance": s.Advance(t.Context(), 1)} {
			if !errors.Is(err, pipeline.ErrInStep) {
				t.Errorf("%s in a step: %v", what, err)
			}
		}
		leave(st)
		if err := errors.Join(st.Abort(), st.Abort()); err != nil {
			t.Error(err)
		}
		if s.Len() != sessionFork {
			t.Errorf("aborted %s: %d tokens", name, s.Len())
		}
		if first, end := st.Rows(0); first != 0 || end != 0 {
			t.Error(first, end)
		}
	}
	waiting, stop := context.WithCancel(t.Context())
	st := x.begin(t, e, s, 1)
	done := make(chan error)
	go func() { done <- failure(e.Begin(waiting, pipeline.Chunk{Session: s, Tokens: 1})) }()
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a step while another is in progress: %v", err)
	}
	if err := st.Abort(); err != nil {
		t.Error(err)
	}
	x.rest(t, "after all that", s)
}

func failure[T any](_ T, err error) error { return err }

// interrupted runs a step under a context that has ended. The device may finish before the wait
// begins, where the machine is busy: then once more.
func interrupted(st *pipeline.Step, ended context.Context) (err error) {
	for try := 0; try < 20 && err == nil; try++ {
		err = st.Run(ended)
	}
	return err
}

// byLayer runs layers one by one, in another order, from tensors on the device and from
// host memory, with tensors for each layer and for all.
func (x *sessions) byLayer(t *testing.T) {
	for _, shared := range []bool{false, true} {
		o := sessionOptions()
		o.LayerByLayer = shared
		e := x.engine(t, o)
		s := must[*pipeline.Session](t)(e.Open())
		if err := errors.Join(e.Prepare(t.Context(), 40), e.Prepare(t.Context(), 1)); err != nil {
			t.Error(err)
		}
		if shared { // Append goes layer by layer
			x.same(t, "append", sessionFork, x.run(t, s, sessionFork))
		} else {
			x.run(t, s, sessionFork)
		}
		const n = 1
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
		if err := st.SubmitLayer(len(x.layers)); !errors.Is(err, vk.ErrArgument) {
			t.Error(err)
		}
		got := make([]pipeline.Appended, len(x.layers))
		for i := len(x.layers) - 1; i >= 0; i-- {
			if err := st.Input(i).Rows(0, n).Upload(t.Context(), bf16(x.tokens(sessionFork, sessionFork+n))); err != nil {
				t.Fatal(err)
			}
			if err := st.RunLayer(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			got[i].Out = floats(testkit.Download[uint16](t, st.Output(i).Rows(0, n)))
			if picks := st.TopK(i); !picks.IsZero() {
				got[i].TopK = testkit.Download[int32](t, picks.Rows(0, n))
			}
		}
		if err := st.ReadOutput(0, 0, got[0].Out); !errors.Is(err, vk.ErrArgument) {
			t.Errorf("outputs in host memory of inputs on the device: %v", err)
		}
		if err := st.Submit(); shared != errors.Is(err, vk.ErrArgument) {
			t.Error(err)
		}
		if err := errors.Join(st.Wait(t.Context()), st.Commit()); err != nil {
			t.Error(err)
		}
		if !st.Input(-1).IsZero() || !st.Output(9).IsZero() || !st.TopK(1).IsZero() || !st.TopK(9).IsZero() || st.Tokens() != n || st.Size() != 1 {
			t.Error("tensors of layers that there are not")
		}
		x.same(t, "one by one", sessionFork+n, got)
		x.rest(t, "after layers one by one", s)
		if m := e.Memory(); m.Weights == 0 || m.Caches == 0 || m.Tables == 0 || m.Steps == 0 || m.Hidden == 0 || m.Total() < m.Caches+m.Steps {
			t.Errorf("memory %+v", m)
		}
	}
}

// batch runs sessions together. Sums are in another order then, but the order of chunks
// does not matter, nor what the other session is.
func (x *sessions) batch(t *testing.T) {
	e := x.engine(t, sessionOptions())
	a, b := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	x.run(t, a, sessionFork)
	x.run(t, b, 80)
	var all [2][][]float32
	for turned := range all {
		chunks := []pipeline.Chunk{{Session: a, Tokens: 1}, {Session: b, Tokens: 30}}
		at := []int{sessionFork, 80}
		if turned == 1 {
			slices.Reverse(chunks)
			slices.Reverse(at)
		}
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), chunks...))
		for i := range x.layers {
			for k, c := range chunks {
				if err := st.SetInput(i, k, x.tokens(at[k], at[k]+c.Tokens)); err != nil {
					t.Fatal(err)
				}
				if last := i == len(x.layers)-1 && k == 1; !last && !errors.Is(st.Submit(), vk.ErrArgument) {
					t.Fatal("submitted without all inputs")
				}
			}
		}
		if err := st.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range x.layers {
			for _, k := range []int{turned, 1 - turned} {
				out := make([]float32, chunks[k].Tokens*x.cfg.Hidden)
				if err := st.ReadOutput(i, k, out); err != nil {
					t.Fatal(err)
				}
				if err := distance(out, x.want[i].Out[at[k]*x.cfg.Hidden:][:len(out)]); !(err < 0.025) {
					t.Errorf("layer %d, %d tokens: %.4f from what the session gives alone", i, chunks[k].Tokens, err)
				}
				all[turned] = append(all[turned], out)
			}
		}
		if err := st.Abort(); err != nil {
			t.Error(err)
		}
	}
	if !slices.EqualFunc(all[0], all[1], slices.Equal) {
		t.Error("the order of chunks matters")
	}
	x.rest(t, "after steps with another", a)
}

// full fills the caches, which are just large enough for one session to get to its end.
func (x *sessions) full(t *testing.T) {
	o := sessionOptions()
	o.CacheBytes, o.MaxCacheBytes = 0, 2<<20
	for ; ; o.MaxCacheBytes += 1 << 19 {
		e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), x.dev, x.cfg, x.layers, o))
		err := must[*pipeline.Session](t)(e.Open()).Advance(t.Context(), sessionTokens)
		if e := e.Close(); e != nil {
			t.Error(e)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, cache.ErrPoolFull) || o.MaxCacheBytes > 64<<20 {
			t.Fatalf("%d bytes: %v", o.MaxCacheBytes, err)
		}
	}
	e := x.engine(t, o)
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, 120)
	var others []*pipeline.Session
	for range 3 {
		hog := must[*pipeline.Session](t)(e.Open())
		others = append(others, hog)
		for err := error(nil); err == nil; {
			if hog.Len() == sessionTokens {
				t.Fatal("the caches do not become full")
			}
			if err = hog.Advance(t.Context(), 1); err != nil && !errors.Is(err, cache.ErrPoolFull) {
				t.Fatal(err)
			}
		}
	}
	before, _ := e.Pages()
	if _, err := e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 40}); !errors.Is(err, cache.ErrPoolFull) || s.Len() != 120 {
		t.Error(err, s.Len())
	}
	if after, _ := e.Pages(); after != before {
		t.Errorf("pages %v, then %v", before, after)
	}
	if m := e.Memory(); m.Caches > o.MaxCacheBytes {
		t.Errorf("%d bytes, at most %d", m.Caches, o.MaxCacheBytes)
	}
	for _, hog := range others {
		if err := hog.Close(); err != nil {
			t.Error(err)
		}
	}
	x.rest(t, "once there is room", s)
}

func (x *sessions) save(t *testing.T) {
	o := sessionOptions()
	e := x.engine(t, o)
	noise, s := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	x.run(t, noise, 40)
	x.run(t, s, sessionFork)
	fork := must[*pipeline.Session](t)(s.Fork())
	extend(t, fork, len(x.layers), x.tokens(0, 1))
	var saved, again bytes.Buffer
	if err := errors.Join(s.Save(t.Context(), &saved), s.Save(t.Context(), &again)); err != nil || !bytes.Equal(saved.Bytes(), again.Bytes()) {
		t.Fatal(err)
	}
	x.rest(t, "after it was saved", s)

	o.MaxSessions, o.CacheBytes, o.Rewind = 5, 1<<20, 0
	fresh := x.engine(t, o)
	other := must[*pipeline.Session](t)(fresh.Open())
	x.run(t, other, 80)
	back := must[*pipeline.Session](t)(fresh.Restore(t.Context(), bytes.NewReader(saved.Bytes())))
	same := must[*pipeline.Session](t)(fresh.Open())
	x.run(t, same, sessionFork)
	var short bytes.Buffer // what Rewind needs is not in it
	again.Reset()
	if err := errors.Join(same.Save(t.Context(), &short), back.Save(t.Context(), &again), same.Close()); err != nil || !bytes.Equal(short.Bytes(), again.Bytes()) || short.Len() >= saved.Len() {
		t.Error("saved again it is not what a session has that ran there", err)
	}
	if err := back.Truncate(sessionFork - 1); !errors.Is(err, pipeline.ErrRewind) {
		t.Error(err)
	}
	x.run(t, other, 120)
	x.rest(t, "restored", back)

	if err := errors.Join(s.Close(), fork.Close(), noise.Close()); err != nil {
		t.Error(err)
	}
	before, _ := e.Pages()
	data := saved.Bytes()
	for _, n := range []int{0, 7, 150, 300, len(data) / 2, len(data) - 1} {
		if _, err := e.Restore(t.Context(), bytes.NewReader(data[:n])); !errors.Is(err, pipeline.ErrSnapshot) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for at := 0; at < len(data); at += 1 + at*3/2 {
		bad := bytes.Clone(data)
		bad[at] ^= 0x40
		if _, err := e.Restore(t.Context(), bytes.NewReader(bad)); !errors.Is(err, pipeline.ErrSnapshot) && !errors.Is(err, pipeline.ErrSequenceFull) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	o.Hadamard = true
	if _, err := x.engine(t, o).Restore(t.Context(), bytes.NewReader(data)); !errors.Is(err, pipeline.ErrSnapshot) {
		t.Error(err)
	}
	if after, free := e.Pages(); after != before || after != free {
		t.Errorf("of %v pages %v are free", after, free)
	}
	broken := errors.New("no more")
	if _, err := e.Restore(t.Context(), readerFunc(func([]byte) (int, error) { return 0, broken })); !errors.Is(err, broken) {
		t.Error(err)
	}
	full := must[*pipeline.Session](t)(e.Restore(t.Context(), bytes.NewReader(data)))
	again.Reset()
	if err := full.Save(t.Context(), &again); err != nil || !bytes.Equal(data, again.Bytes()) {
		t.Error("saved again it is not the same", err)
	}
	if err := full.Save(t.Context(), writerFunc(func([]byte) (int, error) { return 0, broken })); !errors.Is(err, broken) {
		t.Error(err)
	}
	x.rest(t, "restored where it was", full)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// concurrent lets goroutines with sessions of their own use one engine.
func (x *sessions) concurrent(t *testing.T) {
	e := x.engine(t, sessionOptions())
	first := must[*pipeline.Session](t)(e.Open())
	x.run(t, first, sessionFork)
	var wait sync.WaitGroup
	for range 3 {
		s := must[*pipeline.Session](t)(first.Fork())
		wait.Go(func() {
			var all pipeline.Appended
			for at := sessionFork; at < sessionFork+4; at++ {
				got, err := s.Append(t.Context(), slices.Repeat([][]float32{x.tokens(at, at+1)}, len(x.layers)))
				if err != nil {
					t.Error(err)
					return
				}
				e.Memory()
				all.Out = append(all.Out, got[0].Out...)
			}
			x.same(t, "in a crowd", sessionFork+4, []pipeline.Appended{all})
			var saved strings.Builder
			if err := errors.Join(s.Save(t.Context(), &saved), s.Close()); err != nil {
				t.Error(err)
			}
			if back, err := e.Restore(t.Context(), strings.NewReader(saved.String())); err != nil || back.Len() != sessionFork+4 {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}
