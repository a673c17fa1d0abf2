package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

func TestStepErrors(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	o := pipeline.EngineOptions{MaxTokens: 30, MaxSessions: 2, MaxStep: 8}
	picks := o
	picks.KeepTopK = true
	e, other := engine(t, dev, cfg, layers, o), engine(t, dev, cfg, layers, picks)
	s, closed := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	require.NoError(t, errors.Join(s.Advance(t.Context(), 28), closed.Close()))
	require.NoError(t, (*pipeline.Step)(nil).Abort())
	_, err := closed.Append(t.Context(), [][]float32{nil})
	assert.ErrorIs(t, err, vk.ErrClosed, "no tokens for a closed session")
	b, foreign := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(other.Open())
	for name, c := range map[string]struct {
		chunks []pipeline.Chunk
		want   error
	}{
		"none": {nil, vk.ErrArgument}, "no tokens": {[]pipeline.Chunk{{Session: s}}, vk.ErrArgument},
		"foreign": {[]pipeline.Chunk{{Session: foreign, Tokens: 1}}, vk.ErrArgument},
		"twice":   {[]pipeline.Chunk{{Session: s, Tokens: 1}, {Session: s, Tokens: 1}}, vk.ErrArgument},
		"many":    {[]pipeline.Chunk{{Session: s, Tokens: 1}, {Session: b, Tokens: 8}}, vk.ErrArgument},
		"long":    {[]pipeline.Chunk{{Session: b, Tokens: 1}, {Session: s, Tokens: 3}}, pipeline.ErrSequenceFull},
		"closed":  {[]pipeline.Chunk{{Session: closed, Tokens: 1}}, vk.ErrClosed},
	} {
		st, err := e.Begin(t.Context(), c.chunks...)
		assert.Nil(t, st, name)
		assert.ErrorIs(t, err, c.want, name)
	}
	err = failure(e.Begin(t.Context(), pipeline.Chunk{Session: b, Tokens: 1}, pipeline.Chunk{Session: s, Tokens: 3}))
	assert.Equal(t, "pipeline: begin step: chunks[1]: the sequence is full: 28 tokens and 3 more, of at most 30", err.Error(),
		"%v", err)
	says(t, failure(e.Begin(t.Context(), pipeline.Chunk{})), "pipeline: begin step: chunks[0]: got a nil session, want a session of this engine")
	for n, want := range map[int]error{-1: vk.ErrArgument, 3: pipeline.ErrSequenceFull} {
		assert.ErrorIs(t, s.Advance(t.Context(), n), want, "%d", n)
	}
	for _, n := range []int{0, 9} {
		assert.ErrorIs(t, e.Prepare(t.Context(), n), vk.ErrArgument)
	}
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 2}))
	values := make([]float32, 2*cfg.Hidden)
	for name, err := range map[string]error{"layer": st.SetInput(1, 0, values), "chunk": st.SetInput(0, 1, values), "values": st.SetInput(0, 0, values[1:]),
		"not run": st.ReadOutput(0, 0, values), "no picks": st.ReadTopK(0, 0, nil)} {
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	for name, err := range map[string]error{"close": s.Close(), "truncate": s.Truncate(0), "fork": failure(s.Fork()), "advance": s.Advance(t.Context(), 1)} {
		assert.ErrorIs(t, err, pipeline.ErrInStep, "%s in a step", name)
	}
	assert.ErrorIs(t, st.SubmitLayer(1), vk.ErrArgument)
	assert.True(t, st.Input(-1).IsZero() && st.Output(9).IsZero() && st.TopK(0).IsZero() && st.TopK(9).IsZero(), "no such layers")
	says(t, st.Commit(), "pipeline: commit step: layers: got layer 0 not run, want all of them run")
	assert.NoError(t, errors.Join(setBits(st, 0, 0, make([]uint16, 2*cfg.Hidden)), st.Submit()))
	for name, err := range map[string]error{"commit": st.Commit(), "input": st.SetInput(0, 0, values)} {
		assert.ErrorIs(t, err, vk.ErrBusy, "%s while it runs", name)
	}
	assert.NoError(t, errors.Join(st.Wait(t.Context()), st.ReadOutput(0, 0, values)))
	says(t, st.ReadTopK(0, 0, make([]int32, 2*e.TopK())), "pipeline: read top-k: EngineOptions.KeepTopK: got false, want true, for picks to be kept")
	require.NoError(t, st.Commit())
	assert.Equal(t, 30, s.Len())
	_, end := st.Rows(0)
	assert.Zero(t, end, "rows of a step that has ended")
	for name, err := range map[string]error{"run": st.Run(t.Context()), "layer": st.RunLayer(t.Context(), 0), "input": st.SetInput(0, 0, values), "commit": st.Commit()} {
		assert.ErrorIs(t, err, vk.ErrClosed, "%s after the step", name)
	}
	assert.NoError(t, s.Truncate(0))
	st = must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}, pipeline.Chunk{Session: b, Tokens: 1}))
	assert.NoError(t, st.SetInput(0, 0, values[:cfg.Hidden]))
	says(t, st.Submit(), "pipeline: submit step: inputs: got none for layer 0, chunk 1, want all or none from host memory")
	st.Abort()
	st = must[*pipeline.Step](t)(other.Begin(t.Context(), pipeline.Chunk{Session: foreign, Tokens: 1}))
	says(t, st.ReadTopK(0, 0, make([]int32, e.TopK())), "pipeline: read top-k: layer: got 0, of kind window, want one with an indexer")
	st.Abort()
	e.Lose()
	for name, err := range map[string]error{"begin": failure(e.Begin(t.Context(), pipeline.Chunk{Session: b, Tokens: 1})), "open": failure(e.Open()), "truncate": s.Truncate(0)} {
		assert.ErrorIs(t, err, vk.ErrDeviceLost, "%s on a lost device", name)
	}
}

// says demands an error about an argument with this text.
func says(t *testing.T, err error, want string) {
	t.Helper()
	require.ErrorIs(t, err, vk.ErrArgument)
	assert.Equal(t, want, err.Error())
}

// A device that is lost in whatever call ends the step, so that no other goroutine waits
// for its end.
func TestStepOnLostDevice(t *testing.T) { eachModel(t, fakemodel.Config(0), stepOnLostDevice) }

func stepOnLostDevice(t *testing.T, cfg model.Config, records model.Records) {
	testkit.WithoutMatrices(t)
	lost := false
	dev := device(t, vk.DeviceOptions{Staging: true, MemoryHook: func(uint64) error {
		if lost {
			return vk.ErrDeviceLost
		}
		return nil
	}})
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg})))
	e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, cfg, layers, options{MaxTokens: 4, Records: records}))
	defer e.Close()
	s := must[*pipeline.Session](t)(e.Open())
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
	began := make(chan error)
	go func() { began <- failure(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1})) }()
	lost = true
	assert.ErrorIs(t, st.SetInput(0, 0, make([]float32, cfg.Hidden)), vk.ErrDeviceLost, "input")
	assert.ErrorIs(t, <-began, vk.ErrDeviceLost, "another step")
	assert.NoError(t, errors.Join(st.Abort(), s.Close()))
}

// The n-th allocation of a step that needs new memory fails, for every n: the session is
// as it was, and goes on as if nothing had been.
func TestStepOutOfMemory(t *testing.T) { eachModel(t, fakemodel.Config(4, 128), stepOutOfMemory) }

func stepOutOfMemory(t *testing.T, cfg model.Config, records model.Records) {
	left := -1
	dev := device(t, vk.DeviceOptions{Staging: true, MemoryHook: failing(&left)})
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg})))
	hidden := normalsOf(rand.New(rand.NewPCG(1, 4)), 50*cfg.Hidden)
	var want []pipeline.Appended
	for n := -1; ; n++ {
		e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, cfg, layers, options{MaxTokens: 50, MaxStep: 33, CacheBytes: 1 << 20,
			Records: records}))
		s := must[*pipeline.Session](t)(e.Open())
		extend(t, s, len(layers), hidden[:cfg.Hidden])
		left = n
		_, err := s.Append(t.Context(), slices.Repeat([][]float32{hidden[cfg.Hidden : 34*cfg.Hidden]}, len(layers)))
		finished := left >= 0
		left = -1
		require.False(t, n >= 0 && !finished && (!errors.Is(err, errFull) || s.Len() != 1) ||
			(n < 0 || finished) && err != nil, "allocation %d: %v, %d tokens", n, err, s.Len())
		if err != nil {
			extend(t, s, len(layers), hidden[cfg.Hidden:34*cfg.Hidden])
		}
		got := extend(t, s, len(layers), hidden[34*cfg.Hidden:])
		if want == nil {
			want = got
		}
		for i := range got {
			assert.True(t, slices.Equal(got[i].Out, want[i].Out),
				"allocation %d: layer %d gives something else afterwards", n, i)
		}
		assert.NoError(t, e.Close())
		if finished {
			assert.GreaterOrEqual(t, n, 6, "only %d allocations", n)
			break
		}
	}
}

// TestEngineRanks demands that the outputs of two ranks add up to those of one, but for
// the rounding of the sum to bf16.
func TestEngineRanks(t *testing.T) {
	dev := testkit.Device(t)
	m := fake(t, fakemodel.Options{})
	const tokens = 40
	var hidden []float32
	var rest [][]float32 // of each layer, what the ranks leave of the whole
	for _, o := range []model.CheckpointOptions{{}, {Ranks: 2}, {Ranks: 2, Rank: 1}} {
		c, layers := opened(t, dev, m, o)
		if hidden == nil {
			hidden = normals(tokens * c.Config.Hidden)
		}
		e := engine(t, dev, c.Config, layers, options{MaxTokens: tokens, MaxStep: 33})
		for i, got := range division(t, e, c.Config.Hidden, tokens, hidden) {
			if o.Ranks == 0 {
				rest = append(rest, got.Out)
				continue
			}
			for k := range got.Out {
				rest[i][k] -= got.Out[k]
			}
		}
	}
	for i, list := range rest {
		n := 0.0
		for _, v := range list {
			n += float64(v) * float64(v) / float64(len(list))
		}
		assert.Less(t, n, 1e-4, "layer %d: the ranks miss the whole by %g a value, squared", i, n)
	}
}

// looks is a context that ends when it is looked at often enough.
type looks struct {
	context.Context
	left int
}

func (l *looks) Err() error {
	if l.left--; l.left < 0 {
		return context.Canceled
	}
	return nil
}

// The n-th look at a context finds that it ended, for every n and whatever is going on:
// caches grow, pages are copied for a fork, its table is brought to the device, a snapshot
// is read or written. Sessions stay as they are, and go on as if nothing had been. Layers of
// DeepSeek-V4.1 are looked at three times as often: some n are left out unless VKMLA_TEST_FULL=1.
func TestContextEnds(t *testing.T) {
	testkit.WithoutMatrices(t)
	eachModel(t, fakemodel.Config(0, 0), contextEnds)
}

func contextEnds(t *testing.T, c model.Config, records model.Records) {
	dev, rng, further := testkit.Device(t), rand.New(rand.NewPCG(testkit.Seed(t), 46)), 1
	if c.Records == model.RecordsV41 && os.Getenv("VKMLA_TEST_FULL") != "1" {
		further = 24
	}
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c})))
	const length = 638 // two tokens before a page ends
	o := pipeline.EngineOptions{MaxTokens: 700, MaxSessions: 3, MaxStep: 8, Rewind: 700, Records: records}
	tokens := func(first, n int) [][]float32 {
		all := make([]float32, n*cfg.Hidden)
		for i := range all {
			all[i] = float32((first*31+i*i)%17) - 8
		}
		return slices.Repeat([][]float32{all}, len(layers))
	}
	var snapshot bytes.Buffer
	e := engine(t, dev, cfg, layers, o)
	s := must[*pipeline.Session](t)(e.Open())
	err := s.Advance(t.Context(), length-cfg.Window-8)
	if err == nil {
		_, err = s.Append(t.Context(), tokens(0, cfg.Window+8))
	}
	err = errors.Join(err, s.Save(t.Context(), &snapshot))
	require.NoError(t, err)
	pages, free := e.Pages()
	o.CacheBytes = e.PageBytes(pages) - e.PageBytes(free)
	var want []pipeline.Appended // of the sessions afterwards
	for name, do := range map[string]func(ctx context.Context, e *pipeline.Engine, s, fork *pipeline.Session) error{
		"begin": func(ctx context.Context, e *pipeline.Engine, s, fork *pipeline.Session) error {
			st, err := e.Begin(ctx, pipeline.Chunk{Session: fork, Tokens: 6}, pipeline.Chunk{Session: s, Tokens: 2})
			return errors.Join(err, st.Abort())
		},
		"advance": func(ctx context.Context, _ *pipeline.Engine, s, fork *pipeline.Session) error {
			return errors.Join(s.Advance(ctx, 10), s.Truncate(length))
		},
		"save": func(ctx context.Context, _ *pipeline.Engine, s, _ *pipeline.Session) error {
			return s.Save(ctx, &bytes.Buffer{})
		},
		"restore": func(ctx context.Context, e *pipeline.Engine, _, _ *pipeline.Session) error {
			back, err := e.Restore(ctx, bytes.NewReader(snapshot.Bytes()))
			if err == nil {
				err = back.Close()
			}
			return err
		},
	} {
		ended := true
		for n := 0; ended; n += 1 + rng.IntN(further) {
			e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, cfg, layers, o))
			s := must[*pipeline.Session](t)(e.Restore(t.Context(), bytes.NewReader(snapshot.Bytes())))
			fork := must[*pipeline.Session](t)(s.Fork())
			err := do(&looks{t.Context(), n}, e, s, fork)
			ended = err != nil
			require.False(t, ended && !errors.Is(err, context.Canceled), "%s, look %d: %v", name, n, err)
			var all []pipeline.Appended
			for i, f := range []*pipeline.Session{s, fork} {
				var again bytes.Buffer
				require.NoError(t, f.Save(t.Context(), &again), "%s, look %d: session %d has other pages", name, n, i)
				assert.True(t, bytes.Equal(again.Bytes(), snapshot.Bytes()),
					"%s, look %d: session %d has other pages", name, n, i)
			}
			for i, f := range []*pipeline.Session{s, fork, s} {
				all = append(all, must[[]pipeline.Appended](t)(f.Append(t.Context(), tokens(60+i, 3)))...)
			}
			if want == nil {
				want = all
			}
			for i := range all {
				if !slices.Equal(all[i].Out, want[i].Out) {
					t.Errorf("%s, look %d: session %d gives something else afterwards", name, n, i/len(layers))
				}
			}
			err = errors.Join(s.Close(), fork.Close())
			if all, free := e.Pages(); err != nil || all != free {
				t.Errorf("%s, look %d: of %v pages %v are free, %v", name, n, all, free, err)
			}
			assert.NoError(t, e.Close())
			assert.False(t, !ended && n < 3, "%s: only %d looks at a context", name, n)
		}
	}
}

// A step for a fork is given up before the page that the two share is copied. Once both sessions
// are closed, nothing holds that page for the copy.
func TestContextEndsBeforeCopies(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0)})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 2, MaxStep: 1})
	require.NoError(t, e.Prepare(t.Context(), 1))
	ended := 0
	for n := range 8 {
		s := must[*pipeline.Session](t)(e.Open())
		require.NoError(t, s.Advance(t.Context(), 10))
		fork := must[*pipeline.Session](t)(s.Fork())
		st, err := e.Begin(&looks{t.Context(), n}, pipeline.Chunk{Session: fork, Tokens: 1})
		if err != nil {
			ended++
		}
		require.NoError(t, errors.Join(st.Abort(), fork.Close(), s.Close()))
		assert.Zero(t, e.Memory().Held, "look %d", n)
	}
	assert.Greater(t, ended, 1)
}
