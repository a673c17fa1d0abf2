package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
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
	pages  map[string]int      // slots of engines, by pool
	of     *sessionModel
}

// sessionModel is a model whose sessions are tested.
type sessionModel struct {
	name      string
	config    func() model.Config
	records   model.Records
	vllm, odd map[string]int // slots of a page: as vLLM has them, and such that divide nothing
}

var (
	v4Sessions = sessionModel{"v4", v4Layers, model.RecordsV4, fakemodel.VLLMPages(), oddPages}
	// v41Sessions have a layer of each role. From 25 tokens on not all entries are candidates.
	v41Sessions = sessionModel{"v41", v41Layers, model.RecordsV41, v41Pages, v41OddPages}
	v41InV4     = sessionModel{"v41 in v4 records", v41Layers, model.RecordsV4, v41Pages, v41OddPages}

	v41Pages    = fakemodel.VLLMPagesV41(64)
	v41OddPages = map[string]int{"window": 23, "ratio2": 48, "ratio2.state": 3, "ratio1": 80}
)

func v4Layers() model.Config { return fakemodel.Config(4, 0, 128) }

func v41Layers() model.Config {
	c := fakemodel.V41()
	s := model.Sources{Entries: []int{0, 3}, Picks: []int{0, 3, 5}, Candidates: 3}
	c.Layers = model.V41Layers(s, 2, 0, 2, 1, 1, 1, 1)
	return c
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

// newModel uploads a model to a device.
func newModel(t testing.TB, dev *vk.Device, of *sessionModel) *sessions {
	t.Helper()
	x := &sessions{dev: dev, of: of}
	x.cfg, x.layers = uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: of.config(), Storage: fakemodel.FP8})))
	x.cfg.Records = of.records
	x.hidden = normals(sessionTokens * x.cfg.Hidden)
	return x
}

// rounded are numbers as bf16 keeps them.
func rounded(v []float32) []float32 {
	for i, x := range v {
		v[i] = numfmt.BF16Round(x)
	}
	return v
}

// normals are random numbers, the same each time.
func normals(n int) []float32 { return normalsOf(rand.New(rand.NewPCG(8, 9)), n) }

func normalsOf(rng *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// newSessions uploads the model to a device and runs the tokens.
func newSessions(t testing.TB, dev *vk.Device, of *sessionModel) *sessions {
	t.Helper()
	x := newModel(t, dev, of)
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.want = x.run(t, s, sessionTokens)
	return x
}

func (x *sessions) engine(t testing.TB, o pipeline.EngineOptions) *pipeline.Engine {
	t.Helper()
	return engine(t, x.dev, fakemodel.Paged(x.cfg, x.pages), x.layers, o)
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
	require.Equal(t, length, s.Len(), "tokens")
	return all
}

func (x *sessions) tokens(a, b int) []float32 { return x.hidden[a*x.cfg.Hidden : b*x.cfg.Hidden] }

// same demands the bits of the uninterrupted run for the tokens up to a length.
func (x *sessions) same(t testing.TB, what string, length int, got []pipeline.Appended) {
	t.Helper()
	for i := range got {
		n := len(got[i].Out)
		from := length*x.cfg.Hidden - n
		assert.False(t, n == 0 || !slices.Equal(got[i].Out, x.want[i].Out[from:from+n]),
			"%s: layer %d: another output", what, i)
		k := len(got[i].TopK)
		assert.False(t, k > 0 && !slices.Equal(got[i].TopK, x.want[i].TopK[length*x.cfg.TopK-k:length*x.cfg.TopK]),
			"%s: layer %d: other picks", what, i)
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
		require.NoError(t, st.SetInput(i, 0, x.tokens(at, at+n)))
	}
	return st
}

// TestSessions does everything to sessions that must not change their results, and demands that it
// does not. With VKMLA_TEST_FULL=1 it takes layers that share entries, picks and candidates, too,
// in both records.
func TestSessions(t *testing.T) {
	testSessions(t, &v4Sessions)
	for _, of := range []*sessionModel{&v41Sessions, &v41InV4} {
		t.Run(of.name, func(t *testing.T) {
			testkit.WithoutMatrices(t)
			if os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			testSessions(t, of)
		})
	}
}

func testSessions(t *testing.T, of *sessionModel) {
	x := newSessions(t, testkit.Device(t), of)
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"growth", x.growth}, {"fork", x.fork}, {"truncate", x.truncate}, {"cancel", x.cancel}, {"semaphores", x.semaphores},
		{"close behind a semaphore", x.closeBehind}, {"layers", x.byLayer}, {"budget", x.budget}, {"batch", x.batch},
		{"full", x.full}, {"save", x.save}, {"odd pages", func(t *testing.T) { x.inPages(t, of.odd) }}, {"concurrent", x.concurrent},
		{"around", x.around},
	} {
		t.Run(c.name, c.test)
	}
}

func (x *sessions) growth(t *testing.T) {
	o := sessionOptions()
	o.CacheBytes = 1 << 20
	e := x.engine(t, o)
	s, other := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	before, _ := e.Pages()
	first := x.run(t, s, sessionFork)
	x.run(t, other, sessionFork) // moves the pages of s
	x.same(t, "to the fork", sessionFork, first)
	x.rest(t, "the rest", s)
	after, _ := e.Pages()
	require.Greater(t, after[0], before[0], "pages before %v, after %v", before, after)
	assert.Greater(t, after[1], before[1], "pages before %v, after %v", before, after)
}

func (x *sessions) fork(t *testing.T) {
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, sessionFork)
	child := must[*pipeline.Session](t)(s.Fork())
	grand := must[*pipeline.Session](t)(child.Fork())
	assert.Equal(t, sessionFork, child.Len())
	assert.Equal(t, sessionFork, grand.Len())
	assert.ErrorIs(t, grand.Truncate(sessionFork-sessionOptions().Rewind-1), pipeline.ErrRewind,
		"truncated further than what it was forked from")
	// Other tokens of the parent, in a step of its own and in one with its child, and a
	// sibling that comes and goes meanwhile.
	extend(t, s, len(x.layers), x.tokens(0, 7))
	sibling := must[*pipeline.Session](t)(child.Fork())
	extend(t, sibling, len(x.layers), x.tokens(3, 4))
	assert.NoError(t, sibling.Close())
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 2}, pipeline.Chunk{Session: child, Tokens: 3}))
	assert.NoError(t, st.Abort())
	x.rest(t, "child", child)
	assert.NoError(t, errors.Join(s.Close(), child.Close()))
	// One goes on, in copies of pages that it had written to; then the other writes there.
	x.same(t, "before the last", sessionFork+1, x.run(t, grand, sessionFork+1))
	last := must[*pipeline.Session](t)(grand.Fork())
	x.same(t, "beside the last", sessionFork+2, x.run(t, grand, sessionFork+2))
	extend(t, last, len(x.layers), x.tokens(5, 8))
	assert.NoError(t, last.Close())
	x.rest(t, "grandchild", grand)
	assert.NoError(t, errors.Join(grand.Close(), grand.Close()))
	all, free := e.Pages()
	assert.Equal(t, free, all, "of %v pages %v are free", all, free)
}

func (x *sessions) truncate(t *testing.T) {
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, sessionFork)
	extend(t, s, len(x.layers), x.tokens(11, 11+18))
	assert.ErrorIs(t, s.Truncate(sessionFork-3), pipeline.ErrRewind)
	for _, n := range []int{-1, s.Len() + 1} {
		assert.ErrorIs(t, s.Truncate(n), vk.ErrArgument, "%v", n)
	}
	require.NoError(t, s.Truncate(sessionFork))
	require.Equal(t, sessionFork, s.Len())
	x.rest(t, "truncated", s)
	require.NoError(t, s.Truncate(0))
	require.Equal(t, 0, s.Len())
	all, free := e.Pages()
	assert.Equal(t, free, all, "of %v pages %v are free", all, free)
	extend(t, s, len(x.layers), x.tokens(2, 5))
	assert.NoError(t, errors.Join(s.Truncate(1), s.Truncate(0)), "a session that was empty in between")
	x.rest(t, "from the beginning", s)
}

func (x *sessions) cancel(t *testing.T) {
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, sessionFork)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := e.Begin(cancelled, pipeline.Chunk{Session: s, Tokens: 1})
	assert.ErrorIs(t, err, context.Canceled)
	for name, leave := range map[string]func(st *pipeline.Step){
		"before it ran": func(*pipeline.Step) {},
		"after it ran": func(st *pipeline.Step) {
			assert.NoError(t, st.Run(t.Context()))
		},
		"while it runs": func(st *pipeline.Step) {
			assert.NoError(t, st.Submit())
			assert.ErrorIs(t, st.Commit(), vk.ErrBusy, "commit")
			assert.ErrorIs(t, st.SetInput(0, 0, x.tokens(0, 33)), vk.ErrBusy, "input")
		},
		"by its context": func(st *pipeline.Step) {
			assert.ErrorIs(t, interrupted(st, cancelled), context.Canceled)
			assert.ErrorIs(t, st.Commit(), vk.ErrClosed, "commit")
		},
		"between layers": func(st *pipeline.Step) {
			assert.NoError(t, st.RunLayer(t.Context(), 1))
			assert.ErrorIs(t, st.Commit(), vk.ErrArgument, "commit")
		},
	} {
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 33}))
		for i := range x.layers {
			require.NoError(t, st.SetInput(i, 0, x.tokens(5, 5+33)))
		}
		for what, err := range map[string]error{"close": s.Close(), "truncate": s.Truncate(0), "fork": failure(s.Fork()), "advance": s.Advance(t.Context(), 1)} {
			assert.ErrorIs(t, err, pipeline.ErrInStep, "%s in a step", what)
		}
		leave(st)
		assert.NoError(t, errors.Join(st.Abort(), st.Abort()))
		assert.Equal(t, sessionFork, s.Len(), "aborted %s: tokens", name)
		first, end := st.Rows(0)
		assert.Equal(t, 0, first)
		assert.Equal(t, 0, end)
	}
	waiting, stop := context.WithCancel(t.Context())
	st := x.begin(t, e, s, 1)
	done := make(chan error)
	go func() { done <- failure(e.Begin(waiting, pipeline.Chunk{Session: s, Tokens: 1})) }()
	stop()
	assert.ErrorIs(t, <-done, context.Canceled, "a step while another is in progress")
	assert.NoError(t, st.Abort())
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
		assert.NoError(t, errors.Join(e.Prepare(t.Context(), 40), e.Prepare(t.Context(), 1)))
		if shared { // Append goes layer by layer
			x.same(t, "append", sessionFork, x.run(t, s, sessionFork))
		} else {
			x.run(t, s, sessionFork)
		}
		const n = 1
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
		assert.ErrorIs(t, st.SubmitLayer(len(x.layers)), vk.ErrArgument)
		got := make([]pipeline.Appended, len(x.layers))
		for _, i := range x.backwards() {
			require.NoError(t, st.Input(i).Rows(0, n).Upload(t.Context(), bf16(x.tokens(sessionFork, sessionFork+n))))
			require.NoError(t, st.RunLayer(t.Context(), i))
			got[i].Out = floats(testkit.Download[uint16](t, st.Output(i).Rows(0, n)))
			if picks := st.TopK(i); !picks.IsZero() {
				got[i].TopK = testkit.Download[int32](t, picks.Rows(0, n))
			}
		}
		assert.ErrorIs(t, st.ReadOutput(0, 0, got[0].Out), vk.ErrArgument,
			"outputs in host memory of inputs on the device")
		err := st.Submit()
		assert.Equal(t, errors.Is(err, vk.ErrArgument), shared, "%v", err)
		assert.NoError(t, errors.Join(st.Wait(t.Context()), st.Commit()))
		assert.True(t, st.Input(-1).IsZero() && st.Output(9).IsZero() && st.TopK(1).IsZero() &&
			st.TopK(9).IsZero() && st.Size() == 1, "tensors of layers that there are not")
		x.same(t, "one by one", sessionFork+n, got)
		x.rest(t, "after layers one by one", s)
		m := e.Memory()
		assert.False(t, m.Weights == 0 || m.Caches == 0 || m.Tables == 0 || m.Steps == 0 || m.Hidden == 0 ||
			m.Total() < m.Caches+m.Steps, "memory %+v", m)
	}
}

// backwards lists layers from the last to the first, but those that others take from before these.
func (x *sessions) backwards() (order []int) {
	var add func(i int)
	add = func(i int) {
		for _, from := range x.cfg.Layers[i].From() {
			if from != i && !slices.Contains(order, from) {
				add(from)
			}
		}
		if !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	for i := range slices.Backward(x.layers) {
		add(i)
	}
	return order
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
				require.NoError(t, st.SetInput(i, k, x.tokens(at[k], at[k]+c.Tokens)))
				require.False(t, !(i == len(x.layers)-1 && k == 1) && !errors.Is(st.Submit(), vk.ErrArgument),
					"submitted without all inputs")
			}
		}
		require.NoError(t, st.Run(t.Context()))
		for i := range x.layers {
			for _, k := range []int{turned, 1 - turned} {
				out := make([]float32, chunks[k].Tokens*x.cfg.Hidden)
				require.NoError(t, st.ReadOutput(i, k, out))
				if err := distance(out, x.want[i].Out[at[k]*x.cfg.Hidden:][:len(out)]); !(err < 0.025) {
					t.Errorf("layer %d, %d tokens: %.4f from what the session gives alone", i, chunks[k].Tokens, err)
				}
				all[turned] = append(all[turned], out)
			}
		}
		assert.NoError(t, st.Abort())
	}
	assert.True(t, slices.EqualFunc(all[0], all[1], slices.Equal), "the order of chunks matters")
	x.rest(t, "after steps with another", a)
}

// full fills the caches, which are just large enough for one session to get to its end.
func (x *sessions) full(t *testing.T) {
	o := sessionOptions()
	if o.CacheBytes, o.MaxCacheBytes = 0, 2<<20; x.of != &v4Sessions {
		o.MaxCacheBytes = 1 << 20
	}
	for ; ; o.MaxCacheBytes += 1 << 19 {
		e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), x.dev, x.cfg, x.layers, o))
		err := must[*pipeline.Session](t)(e.Open()).Advance(t.Context(), sessionTokens)
		assert.NoError(t, e.Close())
		if err == nil {
			break
		}
		require.ErrorIs(t, err, cache.ErrPoolFull)
		require.LessOrEqual(t, o.MaxCacheBytes, uint64(64<<20))
	}
	e := x.engine(t, o)
	s := must[*pipeline.Session](t)(e.Open())
	x.run(t, s, 120)
	var others []*pipeline.Session
	refused := 0
	for range 3 {
		hog := must[*pipeline.Session](t)(e.Open())
		others = append(others, hog)
		for err := error(nil); err == nil && hog.Len() < sessionTokens; {
			if err = hog.Advance(t.Context(), 1); err != nil {
				require.ErrorIs(t, err, cache.ErrPoolFull)
				refused++
			}
		}
	}
	require.Positive(t, refused, "the caches do not become full")
	before, _ := e.Pages()
	_, err := e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 40})
	assert.ErrorIs(t, err, cache.ErrPoolFull)
	assert.Equal(t, 120, s.Len())
	after, _ := e.Pages()
	assert.Equal(t, before, after, "pages, then")
	assert.LessOrEqual(t, e.Memory().Caches, o.MaxCacheBytes, "bytes, at most")
	for _, hog := range others {
		assert.NoError(t, hog.Close())
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
	require.NoError(t, errors.Join(s.Save(t.Context(), &saved), s.Save(t.Context(), &again)))
	require.True(t, bytes.Equal(saved.Bytes(), again.Bytes()))
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
	require.NoError(t, errors.Join(same.Save(t.Context(), &short), back.Save(t.Context(), &again), same.Close()),
		"saved again it is not what a session has that ran there")
	assert.False(t, !bytes.Equal(short.Bytes(), again.Bytes()) || short.Len() >= saved.Len(),
		"saved again it is not what a session has that ran there")
	assert.ErrorIs(t, back.Truncate(sessionFork-1), pipeline.ErrRewind)
	x.run(t, other, 120)
	x.rest(t, "restored", back)

	assert.NoError(t, errors.Join(s.Close(), fork.Close(), noise.Close()))
	before, _ := e.Pages()
	data := saved.Bytes()
	for _, n := range []int{0, 7, 150, 300, len(data) / 2, len(data) - 1} {
		_, err := e.Restore(t.Context(), bytes.NewReader(data[:n]))
		assert.ErrorIs(t, err, pipeline.ErrSnapshot, "%d bytes", n)
	}
	for at := 0; at < len(data); at += 1 + at*3/2 {
		bad := bytes.Clone(data)
		bad[at] ^= 0x40
		_, err := e.Restore(t.Context(), bytes.NewReader(bad))
		assert.False(t, !errors.Is(err, pipeline.ErrSnapshot) && !errors.Is(err, pipeline.ErrSequenceFull),
			"byte %d: %v", at, err)
	}
	if o.Keys = cache.IndexKeyMXFP4; x.of.records == model.RecordsV41 {
		o.Keys = cache.IndexKeyFP8
	}
	_, err := x.engine(t, o).Restore(t.Context(), bytes.NewReader(data))
	assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	after, free := e.Pages()
	assert.Equal(t, before, after, "of %v pages %v are free", after, free)
	assert.Equal(t, free, after, "of %v pages %v are free", after, free)
	broken := errors.New("no more")
	_, err = e.Restore(t.Context(), readerFunc(func([]byte) (int, error) { return 0, broken }))
	assert.ErrorIs(t, err, broken)
	full := must[*pipeline.Session](t)(e.Restore(t.Context(), bytes.NewReader(data)))
	again.Reset()
	require.NoError(t, full.Save(t.Context(), &again), "saved again it is not the same")
	assert.True(t, bytes.Equal(data, again.Bytes()), "saved again it is not the same")
	assert.ErrorIs(t, full.Save(t.Context(), writerFunc(func([]byte) (int, error) { return 0, broken })), broken)
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
			assert.NoError(t, errors.Join(s.Save(t.Context(), &saved), s.Close()))
			back, err := e.Restore(t.Context(), strings.NewReader(saved.String()))
			assert.True(t, err == nil && back.Len() == sessionFork+4, "%v", err)
		})
	}
	wait.Wait()
}
