package pipeline_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestStepExcludes demands that calls which exclude a step wait until it has ended, or their
// context has.
func TestStepExcludes(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(0)})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 3, MaxStep: 2})
	s, other := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	ctx := t.Context()
	ended, end := context.WithCancel(ctx)
	st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
	var given, waiting sync.WaitGroup
	done := make(chan string, 5)
	for what, call := range map[string]func(context.Context) error{
		"prepare": func(ctx context.Context) error { return e.Prepare(ctx, 2) },
		"advance": func(ctx context.Context) error { return other.Advance(ctx, 1) },
		"save":    func(ctx context.Context) error { return other.Save(ctx, io.Discard) },
		"begin": func(ctx context.Context) error {
			st, err := e.Begin(ctx, pipeline.Chunk{Session: other, Tokens: 1})
			return errors.Join(err, st.Abort())
		},
	} {
		given.Go(func() { assert.ErrorIs(t, call(ended), context.Canceled, what) })
		waiting.Go(func() {
			assert.NoError(t, call(ctx), what)
			done <- what
		})
	}
	end()
	given.Wait()
	assert.Empty(t, done, "calls that did not wait")
	assert.Zero(t, other.Len())
	require.NoError(t, errors.Join(st.ReuseInputs(), st.Run(ctx), st.Commit()))
	waiting.Wait()
	assert.Equal(t, []int{1, 1}, []int{s.Len(), other.Len()})
}

// TestStepEnds demands that a step ends with its engine, its device, or the context of a wait, and
// that another takes its tokens with the same bits.
func TestStepEnds(t *testing.T) { eachModel(t, fakemodel.Tiny(0, 4), stepEnds) }

func stepEnds(t *testing.T, cfg model.Config, records model.Records) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg})))
	in := normals(cfg.Hidden)
	for name, end := range map[string]func(e *pipeline.Engine){
		"close": func(e *pipeline.Engine) { // by several goroutines
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { assert.NoError(t, e.Close()) })
			}
			all.Wait()
		},
		"loss":    func(e *pipeline.Engine) { e.Lose() },
		"context": nil,
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 2, MaxStep: 2,
				LayerByLayer: true, Records: records})
			s := must[*pipeline.Session](t)(e.Open())
			begin := func() *pipeline.Step {
				st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
				require.NoError(t, errors.Join(st.SetInput(0, 0, in), st.SubmitLayer(0)))
				return st
			}
			st := begin()
			if end != nil {
				var wait sync.WaitGroup
				for range 2 {
					wait.Go(func() { _ = st.Wait(ctx) })
				}
				end(e)
				wait.Wait()
				assert.Error(t, errors.Join(st.Wait(ctx), st.SubmitLayer(1)))
				assert.Error(t, st.Commit())
				assert.Error(t, failure(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1})))
				return
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			for err := error(nil); err == nil; { // the device may finish before the wait begins
				if err = st.Wait(ended); err == nil {
					require.NoError(t, st.SubmitLayer(0))
				} else {
					require.ErrorIs(t, err, context.Canceled)
				}
			}
			assert.Zero(t, s.Len())
			var outs [2][]float32
			for k := range outs {
				st := begin()
				for i := range layers {
					require.NoError(t, errors.Join(st.Wait(ctx), st.SetInput(i, 0, in), st.RunLayer(ctx, i)))
				}
				outs[k] = make([]float32, cfg.Hidden)
				require.NoError(t, errors.Join(st.ReadOutput(len(layers)-1, 0, outs[k]), st.Abort()))
			}
			assert.Equal(t, outs[0], outs[1])
		})
	}
}
