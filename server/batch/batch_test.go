package batch

import (
	"context"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	weights "github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

const vocab = 50

// fake is a model whose next token follows from all tokens before it. It has room for a number of
// tokens and sequences.
type fake struct {
	t    *testing.T
	room int
	slow time.Duration
	goOn chan struct{} // not nil: what a step waits for
	bad  int32         // not 0: logits of a sequence with this token are none
	errs []error       // of the next steps

	mu    sync.Mutex
	taken int // of room, by others
	known map[*model.Sequence][]int32
	sizes []int
}

func (f *fake) NewSequence() (*model.Sequence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &model.Sequence{}
	f.known[s] = nil
	return s, nil
}

func next(tokens []int32) (sum int32) {
	for i, id := range tokens {
		sum += id * int32(i+1)
	}
	return sum%(vocab-1) + 1
}

// Step keeps sequences until others take their place: it knows no Close.
func (f *fake) Step(ctx context.Context, chunks ...model.Chunk) (logits [][]float32, err error) {
	if time.Sleep(f.slow); f.goOn != nil {
		select {
		case <-f.goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) > 0 {
		err, f.errs = f.errs[0], f.errs[1:]
		return nil, err
	}
	total, step := f.taken, 0
	for _, c := range chunks {
		total, step = total+len(f.known[c.Sequence])+len(c.Tokens), step+len(c.Tokens)
	}
	if total > f.room {
		return nil, cache.ErrPoolFull
	}
	f.sizes = append(f.sizes, step)
	for _, c := range chunks {
		before := len(f.known[c.Sequence])
		all := append(f.known[c.Sequence], c.Tokens...)
		f.known[c.Sequence] = all
		for _, at := range c.Logits {
			l := make([]float32, vocab)
			l[next(all[:before+at+1])] = 3
			if f.bad != 0 && slices.Contains(all[:before+at+1], f.bad) {
				l[7] = float32(math.NaN())
			}
			logits = append(logits, l)
		}
	}
	return logits, ctx.Err()
}

func start(t *testing.T, f *fake, o Options) *Scheduler {
	f.t, f.known = t, map[*model.Sequence][]int32{}
	o.Vocab, o.Log, o.Metrics = vocab, slog.New(slog.NewTextHandler(io.Discard, nil)), NewMetrics(prometheus.NewRegistry())
	s := New(f, o)
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// all reads an answer to its end.
func all(ctx context.Context, a *Answer) (ids []int32, reason Reason, err error) {
	for reason == "" {
		var tokens []Token
		if tokens, reason, err = a.Next(ctx); err != nil {
			return ids, reason, err
		}
		for _, t := range tokens {
			ids = append(ids, t.ID)
		}
	}
	return ids, reason, nil
}

// expected continues a prompt.
func expected(prompt []int32, n int) []int32 {
	tokens := slices.Clone(prompt)
	for range n {
		tokens = append(tokens, next(tokens))
	}
	return tokens[len(prompt):]
}

// TestMany answers many requests at once: each as it would be alone, in steps of bounded size,
// also where memory is short.
func TestMany(t *testing.T) {
	for _, room := range []int{1 << 20, 150} {
		f := &fake{room: room}
		s := start(t, f, Options{MaxTokens: 100, MaxSessions: 8, MaxStep: 16})
		var group sync.WaitGroup
		for i := range 24 {
			group.Go(func() {
				var prompt []int32
				for k := range 1 + i*3 {
					prompt = append(prompt, int32((k*7+i)%vocab))
				}
				a, err := s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: 9})
				if !assert.NoError(t, err) {
					return
				}
				ids, reason, err := all(t.Context(), a)
				assert.NoError(t, err)
				assert.Equal(t, Length, reason)
				assert.Equal(t, expected(prompt, 9), ids, "request %d, room for %d", i, room)
			})
		}
		group.Wait()
		assert.LessOrEqual(t, slices.Max(f.sizes), 16)
	}
}

// shelf is a store that keeps sequences in the fake's memory. Opening waits.
type shelf struct {
	f    *fake
	wait chan struct{}
	full int // how often there is no memory
	part int // where others go on otherwise

	mu   sync.Mutex
	kept [][]int32
}

func (s *shelf) Open(ctx context.Context, _ string, tokens []int32) (*model.Sequence, int, error) {
	select {
	case <-s.wait:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full > 0 {
		s.full--
		return nil, 0, cache.ErrPoolFull
	}
	q, err := s.f.NewSequence()
	for n := len(tokens) - 1; n > 0 && err == nil; n-- {
		if slices.ContainsFunc(s.kept, func(k []int32) bool { return slices.Equal(k, tokens[:n]) }) {
			s.f.mu.Lock()
			defer s.f.mu.Unlock()
			s.f.known[q] = slices.Clone(tokens[:n])
			return q, n, nil
		}
	}
	return q, 0, err
}

func (s *shelf) Parting(string, []int32) int { return s.part }

func (s *shelf) Keep(_ *model.Sequence, _ string, tokens []int32, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end {
		tokens = tokens[:len(tokens)-1]
	}
	s.kept = append(s.kept, slices.Clone(tokens))
}

// TestPrefixes takes the beginnings of sequences from a store: answers stay the same, one that
// waits for the store holds up no other, and one without memory waits for others.
func TestPrefixes(t *testing.T) {
	f, k := &fake{room: 1 << 20}, &shelf{wait: make(chan struct{}), full: 1, part: 37}
	k.f = f
	s := start(t, f, Options{MaxTokens: 200, MaxSessions: 3, MaxStep: 16, Prefixes: k, KeepEvery: 50})
	prompt := make([]int32, 70)
	for i := range prompt {
		prompt[i] = int32(i % 7)
	}
	submit := func(prompt []int32, n int, echo bool) *Answer {
		a, err := s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: n, Echo: echo})
		require.NoError(t, err)
		return a
	}
	ends := func(a *Answer, prompt []int32, n, cached int) {
		t.Helper()
		ids, _, err := all(t.Context(), a)
		require.NoError(t, err)
		assert.Equal(t, expected(prompt, n), ids[len(ids)-n:])
		assert.Equal(t, cached, a.CachedTokens())
	}
	leaving, leave := context.WithCancel(t.Context())
	left, err := s.Submit(leaving, Request{Prompt: prompt, MaxTokens: 1})
	require.NoError(t, err)
	waiting := submit(prompt, 40, false)
	ends(submit([]int32{3, 1, 4}, 100, true), []int32{3, 1, 4}, 100, 0) // echoes are computed whole
	leave()
	_, _, err = all(t.Context(), left)
	assert.ErrorIs(t, err, context.Canceled)
	busy := submit([]int32{2, 7}, 150, true) // the one without memory can wait for its end
	close(k.wait)
	ends(waiting, prompt, 40, 0)
	ends(busy, []int32{2, 7}, 150, 0)
	ends(submit(prompt, 40, false), prompt, 40, 69)
	longer := append(slices.Clone(prompt), expected(prompt, 39)...)
	ends(submit(append(longer, 5), 3, false), append(longer, 5), 3, 109)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range []int{37, 69, 100, 109} { // where others part, before the prompt's end, after 100, at the answer's end
		assert.True(t, slices.ContainsFunc(k.kept, func(tokens []int32) bool { return len(tokens) == n }), "kept at %d", n)
	}
}

// TestNumbers ends a request whose logits are not finite with an error, and keeps nothing of it,
// also where its prompt would be kept before its end. Others go on.
func TestNumbers(t *testing.T) {
	f, k := &fake{room: 1 << 20, bad: 49}, &shelf{wait: make(chan struct{}), part: 5}
	k.f = f
	close(k.wait)
	s := start(t, f, Options{MaxTokens: 200, MaxSessions: 3, MaxStep: 16, Prefixes: k, KeepEvery: 10})
	prompt := append([]int32{49}, make([]int32, 60)...)
	bad, err := s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: 5})
	require.NoError(t, err)
	good, err := s.Submit(t.Context(), Request{Prompt: []int32{1, 2}, MaxTokens: 5})
	require.NoError(t, err)
	_, _, err = all(t.Context(), bad)
	assert.ErrorIs(t, err, ErrNumbers)
	ids, _, err := all(t.Context(), good)
	require.NoError(t, err)
	assert.Equal(t, expected([]int32{1, 2}, 5), ids)
	assert.Equal(t, 1.0, testutil.ToFloat64(s.o.Metrics.nonfinite))
	require.NoError(t, s.Close(t.Context()))
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, tokens := range k.kept {
		assert.NotContains(t, tokens, int32(49), "kept")
	}
}

// TestStepErrors holds that a step that starved is begun again, and that changed files of the model
// cost the requests of a step, not those that come later.
func TestStepErrors(t *testing.T) {
	f := &fake{room: 1 << 20, errs: []error{vk.ErrStarved, vk.ErrStarved}}
	s := start(t, f, Options{MaxTokens: 200, MaxSessions: 3, MaxStep: 16})
	ask := func() error {
		a, err := s.Submit(t.Context(), Request{Prompt: []int32{1, 2}, MaxTokens: 5})
		require.NoError(t, err)
		ids, _, err := all(t.Context(), a)
		if err == nil {
			assert.Equal(t, expected([]int32{1, 2}, 5), ids)
		}
		return err
	}
	assert.NoError(t, ask())
	f.mu.Lock()
	f.errs = []error{&weights.CheckpointError{}}
	f.mu.Unlock()
	assert.ErrorIs(t, ask(), weights.ErrCheckpoint)
	assert.NoError(t, ask())
	assert.NoError(t, s.Err())
}

// TestChanged holds what penalties and biases make of logits.
func TestChanged(t *testing.T) {
	d := distribution{logits: []float32{4, -2, 1, 3}}
	all := []int32{0, 1, 3, 3} // the last two are the answer's
	for want, r := range map[[4]float32]Request{
		{4, -2, 1, 3}:     {},
		{4, -2, 1, 2}:     {Presence: 1},
		{4, -2, 1, 2.5}:   {Frequency: 0.25},
		{2, -4, 1, 1.5}:   {Repetition: 2},
		{4, 8, 1, 3}:      {Bias: map[int32]float64{1: 10}},
		{4, -2, 1, -0.25}: {Presence: 0.25, Frequency: 0.5, Bias: map[int32]float64{3: -2}},
	} {
		r.Prompt = all[:2]
		assert.Equal(t, want[:], d.changed(&r, all).logits, "%+v", r)
	}
	assert.Equal(t, []float32{4, -2, 1, 3}, d.logits, "the model's own")
}

// TestEcho scores a prompt without and with an answer.
func TestEcho(t *testing.T) {
	s := start(t, &fake{room: 1000}, Options{MaxTokens: 100, MaxSessions: 2, MaxStep: 4})
	for _, n := range []int{0, 2} {
		prompt := []int32{3, 1, 4, 1, 5, 9}
		a, err := s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: n, Echo: true, Logprobs: true, Top: 2})
		require.NoError(t, err)
		var tokens []Token
		for reason := Reason(""); reason == ""; {
			var more []Token
			more, reason, err = a.Next(t.Context())
			require.NoError(t, err)
			tokens = append(tokens, more...)
		}
		require.Len(t, tokens, len(prompt)+n)
		for i, x := range tokens {
			assert.Equal(t, i < len(prompt), x.Prompt)
			if i < len(prompt) {
				assert.Equal(t, prompt[i], x.ID)
			}
			if i > 0 {
				assert.Equal(t, next(append(slices.Clone(prompt), expected(prompt, n)...)[:i]), x.Top[0].ID, "after %d tokens", i)
			}
		}
		assert.True(t, tokens[0].First)
	}
}

// TestOpeningHoldsMemory lets a request that runs alone wait for one that is being loaded, whose
// memory it lacks.
func TestOpeningHoldsMemory(t *testing.T) {
	f, k := &fake{room: 300, goOn: make(chan struct{})}, &shelf{wait: make(chan struct{})}
	k.f = f
	s := start(t, f, Options{MaxTokens: 200, MaxSessions: 3, MaxStep: 16, Prefixes: k})
	ask := func(prompt []int32, n int, echo bool) *Answer {
		a, err := s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: n, Echo: echo})
		require.NoError(t, err)
		return a
	}
	alone, loaded := ask([]int32{2, 7}, 150, true), ask([]int32{3, 1}, 5, false)
	f.goOn <- struct{}{} // one step, after which the second is taken from the queue
	locked := func(l sync.Locker, what func() bool) func() bool {
		return func() bool {
			l.Lock()
			defer l.Unlock()
			return what()
		}
	}
	require.Eventually(t, locked(&s.mu, func() bool { return s.opening == 1 && len(s.waiting) == 0 }), time.Minute, time.Millisecond)
	take := func(n int) { locked(&f.mu, func() bool { f.taken = n; return true })() }
	take(300)
	close(f.goOn)
	given := locked(&alone.mu, func() bool { return alone.err != nil })
	back := locked(&s.mu, func() bool { return len(s.waiting) == 1 })
	require.Eventually(t, func() bool { return given() || back() }, time.Minute, time.Millisecond)
	take(0)
	close(k.wait)
	echo := append([]int32{2, 7}, expected([]int32{2, 7}, 150)...)
	for a, want := range map[*Answer][]int32{alone: echo, loaded: expected([]int32{3, 1}, 5)} {
		ids, _, err := all(t.Context(), a)
		require.NoError(t, err)
		assert.Equal(t, want, ids)
	}
}

// TestEnds holds what ends requests: the client, a stop token, too little memory, closing.
func TestEnds(t *testing.T) {
	f := &fake{room: 60, slow: time.Millisecond, goOn: make(chan struct{})}
	s := start(t, f, Options{MaxTokens: 1000, MaxSessions: 2, MaxStep: 32})
	prompt := []int32{1, 2, 3}
	ctx, leave := context.WithCancel(t.Context())
	a, err := s.Submit(ctx, Request{Prompt: prompt, MaxTokens: 900})
	require.NoError(t, err)
	f.goOn <- struct{}{}
	_, _, err = a.Next(t.Context())
	require.NoError(t, err)
	leave()
	close(f.goOn)
	_, _, err = all(t.Context(), a)
	assert.ErrorIs(t, err, context.Canceled)

	stop := expected(prompt, 3)[2]
	a, err = s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: 20, Stop: []int32{stop}})
	require.NoError(t, err)
	ids, reason, err := all(t.Context(), a)
	require.NoError(t, err)
	assert.Equal(t, Stopped, reason)
	assert.Equal(t, stop, ids[len(ids)-1])

	a, err = s.Submit(t.Context(), Request{Prompt: make([]int32, 100), MaxTokens: 1})
	require.NoError(t, err)
	_, _, err = all(t.Context(), a)
	assert.ErrorIs(t, err, ErrMemory)

	for _, r := range []Request{{}, {Prompt: []int32{vocab}}, {Prompt: prompt, MaxTokens: 998},
		{Prompt: prompt, MaxTokens: math.MaxInt}, {Prompt: prompt, MaxTokens: -1}, {Prompt: prompt, Stop: []int32{vocab}}} {
		_, err = s.Submit(t.Context(), r)
		assert.ErrorIs(t, err, ErrRequest)
	}
	a, err = s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: 30})
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()), "closing waits")
	ids, _, err = all(t.Context(), a)
	assert.NoError(t, err)
	assert.Len(t, ids, 30)
	_, err = s.Submit(t.Context(), Request{Prompt: prompt})
	assert.ErrorIs(t, err, ErrClosing)
}

// TestCloseWarming ends at once where nothing but a size of steps is taken.
func TestCloseWarming(t *testing.T) {
	s := start(t, &fake{room: 60, goOn: make(chan struct{})}, Options{MaxTokens: 50, MaxSessions: 2, MaxStep: 4, Warm: []int{4}})
	assert.NoError(t, s.Close(t.Context()))
}

// TestPlan holds that a long prompt leaves room for a short one.
func TestPlan(t *testing.T) {
	with := func(left int) *Answer { return &Answer{all: make([]int32, left)} }
	assert.Equal(t, []int{53, 1, 10}, plan([]*Answer{with(900), with(1), with(10)}, 64))
	assert.Equal(t, []int{21, 21, 22}, plan([]*Answer{with(90), with(90), with(90)}, 64))
}

// summed is the distribution of finite logits, with their total.
func summed(logits []float32) distribution {
	d, _ := newDistribution(logits)
	d.sum()
	return d
}

// TestFinite holds that a number that is none is seen in every part of a vocabulary.
func TestFinite(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	logits := random(rng, "usual", 2*samplePart+7)
	d, finite := newDistribution(logits)
	assert.True(t, finite)
	assert.Equal(t, float64(slices.Max(logits)), d.most)
	for _, at := range []int{0, 3, samplePart - 1, samplePart + rng.IntN(samplePart), len(logits) - 1} {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			some := slices.Clone(logits)
			some[at] = float32(bad)
			_, finite := newDistribution(some)
			assert.False(t, finite, "%g at %d", bad, at)
		}
	}
}

// TestInfinite holds that a token whose logit a penalty made infinite is drawn.
func TestInfinite(t *testing.T) {
	d, _ := newDistribution([]float32{1, 3e38, 2})
	for _, r := range []Request{{Temperature: 1}, {Temperature: 1, TopK: 2}, {}} {
		r.Repetition, r.Prompt = .1, []int32{1}
		assert.Equal(t, int32(1), d.changed(&r, r.Prompt).draw(&r, 5), "%+v", r)
	}
}

// TestSample draws by the position alone, about as often as probabilities say.
func TestSample(t *testing.T) {
	d := summed([]float32{0, 1, 3, 3, -1e9})
	assert.Equal(t, int32(2), d.sample(0, 1, 1), "the smaller of two")
	assert.Equal(t, []Candidate{{2, d.logprob(2)}, {3, d.logprob(3)}, {1, d.logprob(1)}}, d.top(3))
	assert.Empty(t, d.top(0))
	counts := make([]int, 5)
	for i := range 20000 {
		id := d.sample(1, 7, i)
		assert.Equal(t, id, d.sample(1, 7, i))
		counts[id]++
	}
	assert.InDelta(t, .4553, float64(counts[3])/20000, .02)
	assert.Zero(t, counts[4])
}

func TestWeight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		logit, top, temperature := float32(-40*rng.Float64()), 20*rng.Float64()*rng.Float64(), .1+rng.Float64()
		want := math.Exp((float64(logit) - top) / temperature)
		require.InDelta(t, want, weight(logit, top, temperature), 0x1p-34*want, "%g below %g at %g", logit, top, temperature)
	}
	assert.Equal(t, 1., weight(3, 3, .1))
	assert.Zero(t, weight(-1e9, 3, 1))
	assert.Zero(t, weight(float32(math.Inf(-1)), 3, 1))
}

// TestSampleParts draws from a vocabulary of several parts, one without a token to draw.
func TestSampleParts(t *testing.T) {
	at := map[int]float64{7: 1, samplePart - 1: 1, samplePart: 2, 3*samplePart + 4: 4}
	logits := slices.Repeat([]float32{-1e9}, 3*samplePart+5)
	for id, p := range at {
		logits[id] = float32(math.Log(p))
	}
	d, counts := summed(logits), map[int]float64{}
	const draws = 500
	for i := range draws {
		counts[int(d.sample(1, 3, i))]++
	}
	assert.Len(t, counts, len(at))
	for id, p := range at {
		assert.InDelta(t, math.Log(p/8), d.logprob(int32(id)), 1e-6)
		assert.InDelta(t, p/8, counts[id]/draws, .07, "token %d", id)
	}
}
