package pipeline_test

import (
	"context"
	"errors"
	"hash/maphash"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// hand has a step in progress, or none.
type hand struct {
	st     *pipeline.Step
	who    []*tracked
	tokens [][]int
	layer  int  // the next one
	flying bool // the layer before it was not waited for
	hashes [][]maphash.Hash
}

// randomSteps has two steps of an engine in progress, each at any place between its beginning and
// its end. Meanwhile sessions that are in neither come, go and take whole steps, caches grow and
// are full, and sessions that are in one are saved. VKMLA_TEST_FULL=1 goes on for longer.
func (x *sessions) randomSteps(t *testing.T) {
	operations := 380
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		operations = 20000
	}
	c := x.chance(t, 3)
	o := sessionOptions()
	o.CacheBytes, o.MaxCacheBytes, o.Steps, o.LayerByLayer = 1<<20, 9<<19, 3, true
	c.add(o)
	var hands [2]hand
	for range operations {
		h := &hands[c.rng.IntN(2)]
		switch n := c.rng.IntN(50); {
		case n < 9 && (len(c.open[0]) > 1 || h.st == nil):
			c.operation(0)
		case n == 9 && h.st != nil:
			c.save(h.who[0])
		case n == 10 && h.st != nil:
			c.refused(h.who[c.rng.IntN(len(h.who))].s)
		case n == 11 && h.st != nil: // the device may be in it
			c.allowed("abort", h.st.Abort())
			c.free(h)
		case h.st == nil:
			c.begin(h)
		default:
			c.goOn(h)
		}
	}
	for i := range hands {
		c.allowed("abort", hands[i].st.Abort())
		c.free(&hands[i])
	}
	assert.Positive(t, c.engines[0].Stats().Grown)
	assert.Positive(t, c.did["no begin"], "the caches were never full: %v", c.did)
	for len(c.open[0]) == 0 {
		c.operation(0)
	}
	c.end()
}

// begin begins a step of sessions that are in no other one.
func (c *chance) begin(h *hand) {
	if len(c.open[0]) == 0 {
		c.operation(0)
		return
	}
	who, chunks, tokens := c.plan(0, min(2, len(c.open[0])))
	if who == nil {
		return
	}
	st, err := c.engines[0].Begin(c.t.Context(), chunks...)
	if !c.allowed("begin", err, cache.ErrPoolFull) {
		if len(c.open[0]) > 2 { // somebody has to give up
			l := c.open[0][0]
			c.allowed("close", l.s.Close())
			c.open[0] = c.open[0][1:]
		}
		return
	}
	*h = hand{st: st, who: who, tokens: tokens, hashes: make([][]maphash.Hash, len(who))}
	c.open[0] = slices.DeleteFunc(c.open[0], func(l *tracked) bool { return slices.Contains(who, l) })
}

// goOn submits the next layer of a step, waits for it, or commits the step.
func (c *chance) goOn(h *hand) {
	var err error
	switch {
	case h.flying:
		if err = h.st.Wait(c.t.Context()); err == nil {
			err = c.read(h.st, h.layer-1, h.tokens, h.hashes)
		}
		h.flying = false
	case h.layer == len(c.layers):
		c.commit(0, h.st, h.who, h.tokens, sums(h.hashes))
		c.free(h)
	default:
		if err = c.input(h.st, h.layer, h.tokens); err == nil {
			err = h.st.SubmitLayer(h.layer)
		}
		h.layer, h.flying = h.layer+1, true
	}
	require.NoError(c.t, err)
}

// free lets others have the sessions of a step that has ended.
func (c *chance) free(h *hand) {
	c.open[0], *h = append(c.open[0], h.who...), hand{}
}

// refused demands that a session in a step cannot be in another one, and does not change.
func (c *chance) refused(s *pipeline.Session) {
	n := s.Len()
	for what, err := range map[string]error{"begin": failure(c.engines[0].Begin(c.t.Context(), pipeline.Chunk{Session: s, Tokens: 1})),
		"fork": failure(s.Fork()), "truncate": s.Truncate(0), "close": s.Close(), "advance": s.Advance(c.t.Context(), 1)} {
		require.ErrorIs(c.t, err, pipeline.ErrInStep, what)
	}
	assert.Equal(c.t, n, s.Len())
	c.did["refused"]++
}

// twoSteps has steps of two sessions in progress, of which the second makes the caches grow while
// the first is with the device. Each has the bits of an engine with one.
func (x *sessions) twoSteps(t *testing.T) {
	o := sessionOptions()
	o.Steps, o.CacheBytes = 2, 1<<20
	e := x.engine(t, o)
	a, b := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	got := [2][]pipeline.Appended{make([]pipeline.Appended, len(x.layers)), make([]pipeline.Appended, len(x.layers))}
	alone := uint64(0)
	at, grown := 0, uint64(0)
	for _, n := range sessionSteps {
		first := x.begin(t, e, a, n)
		require.NoError(t, first.SubmitLayer(0))
		if at == 0 {
			alone = e.Memory().Steps
		}
		before := e.Stats().Grown
		second := x.begin(t, e, b, n)
		if at == 0 {
			assert.Greater(t, e.Memory().Steps, alone, "a second step has memory of its own")
		}
		grown += e.Stats().Grown - before
		for i := range x.layers {
			require.NoError(t, second.SubmitLayer(i))
			if i+1 < len(x.layers) {
				require.NoError(t, first.SubmitLayer(i+1))
			}
		}
		assert.ErrorIs(t, first.Commit(), vk.ErrBusy)
		for k, st := range []*pipeline.Step{first, second} {
			require.NoError(t, st.Wait(t.Context()))
			for i := range x.layers {
				to := &got[k][i]
				to.Out = append(to.Out, make([]float32, n*x.cfg.Hidden)...)
				require.NoError(t, st.ReadOutput(i, 0, to.Out[at*x.cfg.Hidden:]))
				if !st.TopK(i).IsZero() {
					to.TopK = append(to.TopK, make([]int32, n*x.cfg.TopK)...)
					require.NoError(t, st.ReadTopK(i, 0, to.TopK[at*x.cfg.TopK:]))
				}
			}
		}
		require.NoError(t, errors.Join(second.Commit(), first.Commit()))
		at += n
	}
	assert.Positive(t, grown, "the caches grow beside a layer")
	for k := range got {
		x.same(t, "beside another step", sessionTokens, got[k])
	}
}

// TestTwoStepsWait demands that calls which exclude steps wait for both, and keep nobody from
// beginning the second meanwhile; and that a third step waits.
func TestTwoStepsWait(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0)})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 3, MaxStep: 2, Steps: 2})
	var chunks []pipeline.Chunk
	for range 3 {
		chunks = append(chunks, pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1})
	}
	ctx, stop := context.WithCancel(t.Context())
	ended, end := context.WithCancel(ctx)
	first := must[*pipeline.Step](t)(e.Begin(ctx, chunks[0]))
	var wait sync.WaitGroup
	for what, call := range map[string]func(context.Context) error{
		"record again": e.RecordAgain,
		"prepare":      func(ctx context.Context) error { return e.Prepare(ctx, 2) },
		"advance":      func(ctx context.Context) error { return chunks[2].Session.Advance(ctx, 1) },
	} {
		wait.Go(func() { assert.NoError(t, call(ctx), what) })
		wait.Go(func() { assert.ErrorIs(t, call(ended), context.Canceled, what) })
	}
	for range 100 { // whoever waits is in nobody's way
		st := must[*pipeline.Step](t)(e.Begin(ctx, chunks[1]))
		require.NoError(t, st.Abort())
	}
	second := must[*pipeline.Step](t)(e.Begin(ctx, chunks[1]))
	wait.Go(func() { assert.ErrorIs(t, failure(e.Begin(ended, chunks[2])), context.Canceled, "a third step") })
	end()
	assert.Equal(t, 0, chunks[2].Session.Len())
	require.NoError(t, errors.Join(first.ReuseInputs(), first.Run(ctx), first.Commit()))
	require.NoError(t, errors.Join(second.ReuseInputs(), second.Run(ctx), second.Commit()))
	wait.Wait()
	stop()
	assert.Equal(t, 1, chunks[2].Session.Len())

	for name, o := range map[string]pipeline.EngineOptions{
		"Steps: got -1, want at least 1":    {MaxTokens: 4, Steps: -1},
		"Steps: got 2, want 1 with Between": {MaxTokens: 4, Steps: 2, Between: func(*vk.Recorder, pipeline.Between) error { return nil }},
	} {
		says(t, failure(pipeline.NewEngine(t.Context(), dev, cfg, layers, o)), "pipeline: new engine: "+name)
	}
}

// TestTwoStepsGather has layers of two steps take turns at the memory for gathered rows, which they
// share.
func TestTwoStepsGather(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0, 4, 128)})))
	const n, length = 4, 600
	all := normals(2 * n * cfg.Hidden)
	var want [2][]float32
	for steps := 1; steps <= 2; steps++ {
		e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 1200, MaxSessions: 3, MaxStep: n, Steps: steps,
			Variant: "twopass-base", Workspace: 144 << 10, LayerByLayer: true})
		var list []*pipeline.Session
		for range 2 {
			s := must[*pipeline.Session](t)(e.Open())
			require.NoError(t, s.Advance(t.Context(), length))
			list = append(list, s)
		}
		begin := func(k int) *pipeline.Step {
			return must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: list[k], Tokens: n}))
		}
		submit := func(st *pipeline.Step, k, layer int) {
			assert.Positive(t, st.Pieces())
			require.NoError(t, errors.Join(st.SetInput(layer, 0, all[k*n*cfg.Hidden:][:n*cfg.Hidden]), st.SubmitLayer(layer)))
		}
		wait := func(st *pipeline.Step, layer int) []float32 {
			out := make([]float32, n*cfg.Hidden)
			require.NoError(t, errors.Join(st.Wait(t.Context()), st.ReadOutput(layer, 0, out)))
			return out
		}
		if steps == 1 {
			for k := range list {
				st := begin(k)
				for i := range layers {
					submit(st, k, i)
					want[k] = append(want[k], wait(st, i)...)
				}
				require.NoError(t, st.Commit())
			}
			continue
		}
		a, b := begin(0), begin(1)
		var got [2][]float32
		for i := range layers {
			submit(a, 0, i)
			submit(b, 1, i)
			got[0], got[1] = append(got[0], wait(a, i)...), append(got[1], wait(b, i)...)
		}
		require.NoError(t, errors.Join(a.Commit(), b.Commit()))
		assert.Equal(t, want, got)
		assert.NotEqual(t, want[0], want[1])
	}
}

// TestTwoStepsEnd demands that two steps in progress end with the engine, with the device, and
// each with its own context.
func TestTwoStepsEnd(t *testing.T) { eachModel(t, fakemodel.Tiny(0, 4), twoStepsEnd) }

func twoStepsEnd(t *testing.T, cfg model.Config, records model.Records) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg})))
	in := normals(cfg.Hidden)
	var want []float32
	for name, end := range map[string]func(e *pipeline.Engine){
		"close":   func(e *pipeline.Engine) { assert.NoError(t, e.Close()) },
		"loss":    func(e *pipeline.Engine) { e.Lose() },
		"context": nil,
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 2, MaxStep: 2, Steps: 2,
				LayerByLayer: true, Records: records})
			var list []*pipeline.Step
			var open []*pipeline.Session
			for range 2 {
				s := must[*pipeline.Session](t)(e.Open())
				st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
				require.NoError(t, errors.Join(st.SetInput(0, 0, in), st.SubmitLayer(0)))
				list, open = append(list, st), append(open, s)
			}
			if end != nil {
				var wait sync.WaitGroup
				for _, st := range list {
					wait.Go(func() { _ = st.Wait(ctx) })
				}
				end(e)
				wait.Wait()
				for _, st := range list {
					assert.Error(t, errors.Join(st.Wait(ctx), st.SubmitLayer(1)))
					assert.Error(t, st.Commit())
				}
				assert.Error(t, failure(e.Begin(ctx, pipeline.Chunk{Session: open[0], Tokens: 1})))
				return
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			for err := error(nil); err == nil; { // the device may finish before the wait begins
				if err = list[0].Wait(ended); err == nil {
					require.NoError(t, list[0].SubmitLayer(0))
				} else {
					require.ErrorIs(t, err, context.Canceled)
				}
			}
			again := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: open[0], Tokens: 1}))
			for _, st := range []*pipeline.Step{list[1], again} {
				for i := range layers {
					require.NoError(t, errors.Join(st.Wait(ctx), st.SetInput(i, 0, in), st.RunLayer(ctx, i)))
				}
				out := make([]float32, cfg.Hidden)
				require.NoError(t, errors.Join(st.ReadOutput(len(layers)-1, 0, out), st.Commit()))
				if want == nil {
					want = out
				}
				assert.Equal(t, want, out)
			}
		})
	}
}
