package pipeline_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// gates are semaphores that others signal, and that steps signal.
type gates struct {
	from, to *vk.Semaphore
	value    uint64
}

func (x *sessions) gates(t *testing.T) *gates {
	g := &gates{from: must[*vk.Semaphore](t)(x.dev.NewSemaphore(false)), to: must[*vk.Semaphore](t)(x.dev.NewSemaphore(false))}
	t.Cleanup(func() { assert.NoError(t, errors.Join(g.from.Close(), g.to.Close())) })
	return g
}

// next returns what the next submission waits for and signals.
func (g *gates) next() vk.Sync {
	g.value++
	return vk.Sync{Wait: []vk.At{{Semaphore: g.from, Value: g.value}}, Signal: []vk.At{{Semaphore: g.to, Value: g.value}}}
}

// shut demands that nothing was signalled since the last time that it was open.
func (g *gates) shut(t *testing.T) {
	t.Helper()
	v, err := g.to.Value()
	require.NoError(t, err)
	assert.Equal(t, g.value-1, v)
}

// open signals, and waits for the answer.
func (g *gates) open(t *testing.T) {
	t.Helper()
	g.shut(t)
	require.NoError(t, errors.Join(g.from.Signal(g.value), g.to.Wait(t.Context(), g.value)))
}

// TestStepSemaphores has steps and layers begin when another has signalled, and demands the bits of
// steps that wait for nothing. Steps that are given up while they wait leave the session as it was,
// and nothing is signalled.
func TestStepSemaphores(t *testing.T) {
	testkit.WithoutMatrices(t)
	x := newModel(t, testkit.Device(t), &v4Sessions)
	const n = 40
	for _, layers := range []bool{false, true} {
		o := sessionOptions()
		o.LayerByLayer = layers
		e, g := x.engine(t, o), x.gates(t)
		s := must[*pipeline.Session](t)(e.Open())
		extend(t, s, len(x.layers), x.tokens(0, n))
		plain := must[*pipeline.Session](t)(s.Fork())
		want := extend(t, plain, len(x.layers), x.tokens(n, 2*n))
		for name, leave := range map[string]func(*pipeline.Step) error{
			"by its context": func(st *pipeline.Step) error {
				short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				assert.ErrorIs(t, st.Wait(short), context.DeadlineExceeded)
				return nil
			},
			"aborted": (*pipeline.Step).Abort,
		} {
			st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 33}))
			x.setAll(t, st, 5, 33, layers)
			require.NoError(t, submit(st, layers, g.next()))
			assert.NoError(t, leave(st))
			assert.ErrorIs(t, st.Commit(), vk.ErrClosed)
			assert.Equal(t, n, s.Len(), name)
			g.shut(t)
			g.value--
		}
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
		got := make([]float32, n*x.cfg.Hidden)
		for i := range x.layers {
			if layers {
				require.NoError(t, st.SetInput(i, 0, x.tokens(n, 2*n)))
				require.NoError(t, st.SubmitLayer(i, g.next()))
				g.open(t)
				require.NoError(t, errors.Join(st.Wait(t.Context()), st.ReadOutput(i, 0, got)))
				sameBits(t, want[i].Out, got, "layer %d", i)
			}
		}
		if !layers {
			x.setAll(t, st, n, n, layers)
			require.NoError(t, st.Submit(g.next()))
			g.open(t)
			require.NoError(t, st.Wait(t.Context()))
			for i := range x.layers {
				require.NoError(t, st.ReadOutput(i, 0, got))
				sameBits(t, want[i].Out, got, "layer %d", i)
			}
		}
		require.NoError(t, st.Commit())
		want = extend(t, plain, len(x.layers), x.tokens(2*n, 3*n))
		sameBits(t, want, extend(t, s, len(x.layers), x.tokens(2*n, 3*n)), "after steps that waited")
		st = must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
		x.setAll(t, st, 0, 1, layers)
		require.NoError(t, submit(st, layers, g.next()))
		began := time.Now()
		assert.NoError(t, e.Close(), "while a step waits")
		assert.Less(t, time.Since(began), 15*time.Minute)
		assert.ErrorIs(t, st.Wait(t.Context()), vk.ErrClosed)
	}
}

// TestCloseAfterSemaphore closes an engine while a step waits for a semaphore, and other calls for
// the step.
func TestCloseAfterSemaphore(t *testing.T) {
	testkit.WithoutMatrices(t)
	x := newModel(t, testkit.Device(t), &v4Sessions)
	e, g := x.engine(t, sessionOptions()), x.gates(t)
	a, b := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	st := x.begin(t, e, a, 40)
	require.NoError(t, st.SubmitLayer(0, g.next()))
	calls := []func() error{
		func() error { return failure(e.Begin(t.Context(), pipeline.Chunk{Session: b, Tokens: 40})) },
		func() error { return b.Save(t.Context(), io.Discard) },
		func() error { return e.SetTiming(t.Context(), pipeline.TimingOff) },
		func() error { return st.Wait(t.Context()) },
	}
	ended := make(chan error, len(calls))
	for _, call := range calls {
		go func() { ended <- call() }()
	}
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, e.Close(), "while all wait")
	for range calls {
		assert.ErrorIs(t, <-ended, vk.ErrClosed)
	}
}

// setAll gives a step n tokens as inputs of all layers, or of the first.
func (x *sessions) setAll(t *testing.T, st *pipeline.Step, at, n int, first bool) {
	t.Helper()
	for i := range x.layers {
		require.NoError(t, st.SetInput(i, 0, x.tokens(at, at+n)))
		if first {
			return
		}
	}
}

// submit submits a step, or its first layer.
func submit(st *pipeline.Step, first bool, on vk.Sync) error {
	if first {
		return st.SubmitLayer(0, on)
	}
	return st.Submit(on)
}
