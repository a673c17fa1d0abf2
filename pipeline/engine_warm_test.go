package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestWarm demands that steps of no size record or compile anything once an engine is warm: layer
// by layer or as a whole, with inputs on the device and in host memory, with rows gathered in one
// piece or in several.
func TestWarm(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0, 4, 128)})))
	for name, o := range map[string]pipeline.EngineOptions{
		"whole":    {MaxTokens: 3, MaxSessions: 2, MaxStep: 4},
		"layers":   {MaxTokens: 40, MaxSessions: 2, MaxStep: 3, LayerByLayer: true},
		"unbudged": {MaxTokens: 40, MaxStep: 3},
		"between": {MaxTokens: 40, MaxStep: 3, Between: func(rec *vk.Recorder, at pipeline.Between) error {
			if at.Layer == 0 || at.Layer == 3 {
				return nil
			}
			return rec.Copy(at.Input.View(), at.Output.View())
		}},
		"gathered": {MaxTokens: 1200, MaxSessions: 3, MaxStep: 4, Variant: "twopass-base"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if name == "gathered" {
				pipeline.GatherIn(t, 144<<10)
			}
			e := engine(t, dev, cfg, layers, o)
			if e.SetBudget(time.Hour); name == "unbudged" { // other programs' turns shall not decide
				e.SetBudget(-1)
			}
			require.NoError(t, e.Warm(ctx))
			want := must[pipeline.EngineMemory](t)(o.Estimate(ctx, dev, cfg, layers))
			want.Caches = max(want.Caches, e.Memory().Caches) // they grew where one session does not take MaxStep tokens
			assert.Equal(t, want, e.Memory())
			given := len(layers)
			if o.Between != nil {
				given = 1
			}
			before, kernels := e.Stats(), len(dev.Kernels())
			assert.Positive(t, before.Recorded)
			assert.Positive(t, before.Recording)
			assert.Equal(t, pipeline.Stats{Recorded: before.Recorded, Recording: before.Recording, Longest: before.Longest,
				Grown: before.Grown, Growing: before.Growing}, before, "steps that nobody took")

			pieces := map[int]bool{}
			for _, host := range []bool{false, true} {
				for n := 1; n <= o.MaxStep; n++ {
					var chunks []pipeline.Chunk
					for left := n; left > 0; left -= min(left, o.MaxTokens) {
						s := must[*pipeline.Session](t)(e.Open())
						if o.MaxTokens-n > 10 {
							require.NoError(t, s.Advance(ctx, o.MaxTokens-n))
						}
						chunks = append(chunks, pipeline.Chunk{Session: s, Tokens: min(left, o.MaxTokens)})
					}
					st := must[*pipeline.Step](t)(e.Begin(ctx, chunks...))
					pieces[st.Pieces()] = true
					require.NoError(t, run(t, st, given, cfg.Hidden, o.LayerByLayer, host))
					require.NoError(t, st.Commit())
					for _, c := range chunks {
						require.NoError(t, c.Session.Close())
					}
				}
			}
			after := e.Stats()
			assert.Equal(t, before.Recorded, after.Recorded, "recordings")
			assert.Len(t, dev.Kernels(), kernels, "kernels")
			assert.Equal(t, before.Grown, after.Grown, "the test's caches grew")
			if name == "gathered" {
				assert.Greater(t, len(pieces), 1, "all steps had %v pieces", pieces)
			}
		})
	}
}

// run takes a step through all layers, with inputs on the device or from host memory.
func run(t *testing.T, st *pipeline.Step, given, hidden int, byLayer, host bool) error {
	t.Helper()
	ctx, err := t.Context(), error(nil)
	if !host {
		err = st.ReuseInputs()
	}
	set := func(layer int) {
		for chunk := 0; host && err == nil; chunk++ {
			first, end := st.Rows(chunk)
			if first == end {
				return
			}
			err = st.SetInput(layer, chunk, make([]float32, (end-first)*hidden))
		}
	}
	for i := range given {
		if set(i); byLayer && err == nil {
			err = st.RunLayer(ctx, i)
		}
	}
	if !byLayer && err == nil {
		err = st.Run(ctx)
	}
	return err
}

// asked is a context that tells when a wait for its end begins, once.
type asked struct {
	context.Context
	done chan struct{}
}

func (a asked) Done() <-chan struct{} {
	close(a.done)
	return a.Context.Done()
}

// TestStats demands that counters count.
func TestStats(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0, 4)})))
	ctx := t.Context()
	var text bytes.Buffer
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 4000, MaxSessions: 3, MaxStep: 8, CacheBytes: 3 << 19,
		MaxCacheBytes: 7 << 18, Logger: slog.New(slog.NewTextHandler(&text, nil))})
	assert.Equal(t, pipeline.Stats{}, e.Stats())
	a, b := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	input := make([]float32, 3*cfg.Hidden)
	for range 2 {
		st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: a, Tokens: 3}, pipeline.Chunk{Session: b, Tokens: 3}))
		for i := range layers {
			require.NoError(t, errors.Join(st.SetInput(i, 0, input), st.SetInput(i, 1, input)))
		}
		require.NoError(t, errors.Join(st.Run(ctx), st.Commit(), st.Abort()))
	}
	st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: a, Tokens: 1}))
	waited, asked := make(chan error), asked{ctx, make(chan struct{})}
	go func() {
		st, err := e.Begin(asked, pipeline.Chunk{Session: b, Tokens: 1})
		waited <- errors.Join(err, st.Abort())
	}()
	<-asked.done
	require.NoError(t, st.Abort())
	require.NoError(t, <-waited)
	s := e.Stats()
	assert.Positive(t, s.Waiting)
	assert.Positive(t, s.Running)
	assert.Positive(t, s.Recording)
	assert.Positive(t, s.Longest)
	s.Waiting, s.Running, s.Recording, s.Longest = 0, 0, 0, 0
	assert.Equal(t, pipeline.Stats{Sessions: 2, Steps: 2, Tokens: 12, Padding: 4, Aborted: 2, Waits: 1, Recorded: 2}, s)
	assert.Empty(t, text.String(), "nothing rare happened")

	require.NoError(t, a.Advance(ctx, 3000))
	s = e.Stats()
	assert.Positive(t, s.Grown)
	assert.Positive(t, s.Growing)
	assert.Contains(t, text.String(), `level=INFO msg="vkmla: caches grew" from_bytes=`)
	require.ErrorIs(t, b.Advance(ctx, 3900), cache.ErrPoolFull)
	assert.Equal(t, uint64(1), e.Stats().Full)
	text.Reset()
	e.Lose()
	assert.Contains(t, text.String(), `level=ERROR msg="vkmla: the device is lost"`)
}
