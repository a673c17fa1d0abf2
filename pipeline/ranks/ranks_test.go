package ranks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/ranks"
	"github.com/vkmla/vkmla/vk"
)

func arguments(t *testing.T, w *world) {
	ctx, o := t.Context(), options()
	three := must[*vk.Device](t)(w.devs[0].Adapter().Open(vk.DeviceOptions{}))
	defer three.Close()
	for name, f := range map[string]func() (*ranks.Engine, error){
		"one device": func() (*ranks.Engine, error) { return ranks.New(ctx, w.dir, w.devs[:1], model.CheckpointOptions{}, o) },
		"nil device": func() (*ranks.Engine, error) {
			return ranks.New(ctx, w.dir, []*vk.Device{w.devs[0], nil}, model.CheckpointOptions{}, o)
		},
		"device twice": func() (*ranks.Engine, error) {
			return ranks.New(ctx, w.dir, []*vk.Device{three, three}, model.CheckpointOptions{}, o)
		},
		"a cut group": func() (*ranks.Engine, error) {
			return ranks.New(ctx, w.dir, append(w.devs[:2:2], three), model.CheckpointOptions{}, o)
		},
		"a rank": func() (*ranks.Engine, error) {
			return ranks.New(ctx, w.dir, w.devs, model.CheckpointOptions{Ranks: 2}, o)
		},
		"engine ranks": func() (*ranks.Engine, error) {
			return ranks.New(ctx, w.dir, w.devs, model.CheckpointOptions{}, pipeline.EngineOptions{MaxTokens: 4, Ranks: 2})
		},
		"between": func() (*ranks.Engine, error) {
			return ranks.New(ctx, w.dir, w.devs, model.CheckpointOptions{}, pipeline.EngineOptions{MaxTokens: 4,
				Between: func(*vk.Recorder, pipeline.Between) error { return nil }})
		},
		"tokens": func() (*ranks.Engine, error) {
			return ranks.New(ctx, w.dir, w.devs, model.CheckpointOptions{}, pipeline.EngineOptions{})
		},
	} {
		_, err := f()
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	_, err := w.ranks.Begin(ctx)
	assert.ErrorIs(t, err, vk.ErrArgument, "no chunks")
	_, err = w.ranks.Begin(ctx, ranks.Chunk{Tokens: 1})
	assert.ErrorIs(t, err, vk.ErrArgument, "no session")
	_, err = w.ranks.Restore(ctx, nil)
	assert.ErrorIs(t, err, vk.ErrArgument, "no reader")
	s := must[*ranks.Session](t)(w.ranks.Open())
	st := must[*ranks.Step](t)(w.ranks.Begin(ctx, ranks.Chunk{Session: s, Tokens: 1}))
	assert.ErrorIs(t, st.RunLayer(ctx, 7), vk.ErrArgument)
	assert.ErrorIs(t, st.SetInput(0, 0, nil), vk.ErrArgument)
	assert.ErrorIs(t, st.ReadOutput(0, 0, make([]float32, w.cfg.Hidden)), vk.ErrArgument, "a layer that has not run")
	assert.ErrorIs(t, st.Commit(), vk.ErrArgument, "a layer that has not run")
	require.NoError(t, st.Abort(), "it went on until here")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "twice")
}

// Layers that take from one that is not among those of the ranks are refused.
func layers(t *testing.T, w *world) {
	cfg := w.cfg
	for i := range cfg.Layers {
		from := slices.Min(cfg.Layers[i].From())
		if from == i {
			continue
		}
		list := []int{}
		for n := range i + 1 {
			if n != from {
				list = append(list, n)
			}
		}
		_, err := ranks.New(t.Context(), w.dir, w.devs, model.CheckpointOptions{Layers: list}, options())
		assert.ErrorIs(t, err, vk.ErrArgument, "layer %d without %d", i, from)
		assert.ErrorContains(t, err, fmt.Sprintf("want layer %d in front of it", from))
	}
}

// mostMiss bounds the ranks' distance from one engine, |y - y'| / |y| of a layer's outputs. Both
// round a sum in f32 to bf16, so they differ where it lies near the middle of two numbers: by at
// most the rounding itself, 2^-9 of a value each. What is rounded before, the attention's outputs
// and those of wo_a, may differ in the same way once more each, and where they do the error spreads
// over the outputs: 3 * 2^-9 if all did. Measured are 0.0001 on lavapipe, November 2026.
const mostMiss = 3.0 / 512

// Ranks give what one engine gives, but for the rounding of sums; the sum is that of the f32 values
// of the ranks, in their order, rounded once.
func sums(t *testing.T, w *world) {
	a, b := must[*ranks.Session](t)(w.ranks.Open()), must[*pipeline.Session](t)(w.whole.Open())
	w.a, w.b = a, b
	worst := 0.0
	for _, n := range []int{32, 1, 32, 32, 32, 1} { // a group of C128A is complete in between
		got, want := w.extend(t, a, n), w.alone(t, b, n)
		require.Equal(t, len(want), len(got))
		size := n * w.cfg.Hidden
		for l := range w.whole.Layers() {
			miss := distance(got[l*size:][:size], want[l*size:][:size])
			worst = max(worst, miss)
			assert.LessOrEqual(t, miss, mostMiss, "layer %d, %d tokens at %d", l, n, b.Len()-n)
		}
	}
	t.Logf("the ranks miss one engine by %.2g", worst)

	st := must[*ranks.Step](t)(w.ranks.Begin(t.Context(), ranks.Chunk{Session: a, Tokens: 1}))
	defer st.Abort()
	require.NoError(t, st.SetInput(0, 0, w.states(0, 1)))
	require.NoError(t, st.RunLayer(t.Context(), 0))
	n := w.cfg.Hidden
	got, bits, parts := make([]float32, n), make([]uint16, n), [][]float32{make([]float32, n), make([]float32, n)}
	require.NoError(t, st.ReadOutput(0, 0, got))
	require.NoError(t, st.ReadOutputBF16(0, 0, bits))
	for i, x := range st.Steps() {
		require.NoError(t, x.ReadOutput(0, 0, parts[i]))
		assert.Greater(t, distance(parts[i], got), 0.3, "rank %d alone is all", i)
	}
	for i, v := range got {
		want := numfmt.BF16Encode(parts[0][i] + parts[1][i])
		require.Equal(t, []uint16{want, want}, []uint16{numfmt.BF16Encode(v), bits[i]}, "value %d", i)
	}
}

// distance is |x - y| / |y|.
func distance(x, y []float32) float64 {
	var miss, all float64
	for i, v := range y {
		d := float64(x[i]) - float64(v)
		miss, all = miss+d*d, all+float64(v)*float64(v)
	}
	return math.Sqrt(miss / all)
}

// All ranks have the same pages, those of an engine with the whole model, and a session passes
// between the two.
func pages(t *testing.T, w *world) {
	ctx, a, b := t.Context(), w.a, w.b
	require.Equal(t, a.Len(), b.Len())
	want := saved(t, func(ctx context.Context, to *bytes.Buffer) error { return b.Save(ctx, to) })
	for i, x := range a.On() {
		got := saved(t, func(ctx context.Context, to *bytes.Buffer) error { return x.Save(ctx, to) })
		assert.True(t, bytes.Equal(want, got), "rank %d", i)
	}
	next := w.extend(t, a, 1)
	require.NoError(t, a.Close())
	c := must[*ranks.Session](t)(w.ranks.Restore(ctx, bytes.NewReader(want)))
	assert.Equal(t, b.Len(), c.Len())
	assert.Equal(t, next, w.extend(t, c, 1))
	var data bytes.Buffer
	require.NoError(t, c.Save(ctx, &data))
	d := must[*pipeline.Session](t)(w.whole.Restore(ctx, &data))
	assert.Equal(t, b.Len()+1, d.Len())
	_, err := w.ranks.Restore(ctx, bytes.NewReader(want[:90]))
	assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	for _, x := range []interface{ Close() error }{b, c, d} {
		require.NoError(t, x.Close())
	}
}

// Sessions are forked, truncated and run beside each other with the same bits.
func sessions(t *testing.T, w *world) {
	a := must[*ranks.Session](t)(w.ranks.Open())
	w.extend(t, a, 32)
	b := must[*ranks.Session](t)(a.Fork())
	both := must[[][]float32](t)(w.step(t.Context(), 4, a, b))
	assert.Equal(t, both[0], both[1])
	require.NoError(t, b.Truncate(32))
	c := must[*ranks.Session](t)(a.Fork())
	again := must[[][]float32](t)(w.step(t.Context(), 4, b, c))
	assert.Equal(t, both[0], again[0], "in a step of the same size")
	_, err := w.ranks.Open()
	assert.ErrorIs(t, err, pipeline.ErrTooManySessions)
	assert.ErrorIs(t, b.Truncate(3), pipeline.ErrRewind)
	assert.Equal(t, []int{36, 36}, []int{a.On()[0].Len(), a.On()[1].Len()})
	for _, s := range []*ranks.Session{a, b, c} {
		require.NoError(t, s.Close())
	}
}

// A step that fails on one rank ends on all, and leaves the sessions as they were.
func aborts(t *testing.T, w *world) {
	a := must[*ranks.Session](t)(w.ranks.Open())
	w.extend(t, a, 32)
	ctx, cancel := context.WithCancel(t.Context())
	st := must[*ranks.Step](t)(w.ranks.Begin(ctx, ranks.Chunk{Session: a, Tokens: 1}))
	require.NoError(t, st.SetInput(0, 0, w.states(9, 10)))
	_, err := a.Fork()
	for _, err := range []error{err, a.Truncate(0), a.Close()} {
		assert.ErrorIs(t, err, pipeline.ErrInStep)
	}
	cancel()
	assert.ErrorIs(t, st.RunLayer(ctx, 0), context.Canceled)
	for _, x := range st.Steps() {
		assert.ErrorIs(t, x.Commit(), vk.ErrClosed)
	}
	assert.ErrorIs(t, st.Commit(), vk.ErrClosed)
	assert.Equal(t, 32, a.Len())
	b := must[*ranks.Session](t)(a.Fork())
	assert.Equal(t, w.extend(t, a, 1), w.extend(t, b, 1))
	_, err = w.ranks.Begin(t.Context(), ranks.Chunk{Session: a, Tokens: tokens})
	assert.ErrorIs(t, err, pipeline.ErrSequenceFull)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// While a step has begun on some ranks, or ended on some, a session changes on none.
func begins(t *testing.T, w *world) {
	a := must[*ranks.Session](t)(w.ranks.Open())
	w.extend(t, a, 32)
	first := must[*pipeline.Step](t)(w.ranks.Engines()[0].Begin(t.Context(), pipeline.Chunk{Session: a.On()[0], Tokens: 1}))
	assert.ErrorIs(t, a.Close(), pipeline.ErrInStep, "begun on the first rank")
	require.NoError(t, first.Abort())
	w.extend(t, a, 1)

	st := must[*ranks.Step](t)(w.ranks.Begin(t.Context(), ranks.Chunk{Session: a, Tokens: 1}))
	require.NoError(t, st.Steps()[0].Abort(), "ended on the first rank")
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := w.ranks.Begin(short, ranks.Chunk{Session: a, Tokens: 1})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorIs(t, a.Truncate(20), pipeline.ErrInStep)
	assert.Equal(t, []int{33, 33}, []int{a.On()[0].Len(), a.On()[1].Len()})
	require.NoError(t, errors.Join(st.Abort(), st.Abort(), a.Truncate(20)))
	assert.Equal(t, []int{20, 20}, []int{a.On()[0].Len(), a.On()[1].Len()})
	require.NoError(t, a.Close())
}

// Steps, forks and truncations from several goroutines keep the ranks together.
func beside(t *testing.T, w *world) {
	a := must[*ranks.Session](t)(w.ranks.Open())
	w.extend(t, a, 32)
	var group, steps sync.WaitGroup
	done := make(chan struct{})
	steps.Go(func() {
		for range 12 {
			if _, err := w.step(t.Context(), 1, a); err != nil {
				t.Error(err)
			}
		}
	})
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if f, err := a.Fork(); err == nil {
					assert.Equal(t, f.On()[0].Len(), f.On()[1].Len())
					assert.NoError(t, f.Close())
				} else {
					assert.ErrorIs(t, err, pipeline.ErrInStep)
				}
				if err := a.Truncate(a.Len()); err != nil && !errors.Is(err, pipeline.ErrRewind) { // steps ended since Len
					assert.ErrorIs(t, err, pipeline.ErrInStep)
				}
			}
		})
	}
	steps.Wait()
	close(done)
	group.Wait()
	n := a.On()[0].Len() // 44, less the steps that ended between Len and Truncate
	assert.Equal(t, n, a.On()[1].Len())
	assert.GreaterOrEqual(t, n, 32)
	f := must[*ranks.Session](t)(a.Fork())
	assert.Equal(t, w.extend(t, a, 1), w.extend(t, f, 1), "both go on")
	require.NoError(t, f.Close())
	require.NoError(t, a.Close())
}

func closed(t *testing.T, w *world) {
	a := must[*ranks.Session](t)(w.ranks.Open())
	require.NoError(t, w.ranks.Engines()[1].Close())
	_, err := w.step(t.Context(), 1, a)
	assert.ErrorIs(t, err, vk.ErrClosed, "one rank is closed")
	assert.Contains(t, err.Error(), "rank 1")
	assert.Zero(t, a.Len())
	require.NoError(t, w.ranks.Close())
	require.NoError(t, w.ranks.Close(), "twice")
	_, err = w.ranks.Open()
	assert.ErrorIs(t, err, vk.ErrClosed)
}
