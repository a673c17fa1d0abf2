package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

// TestStepAllocations demands that a step allocates next to nothing, whatever the number of
// sessions: otherwise the garbage collector would delay some steps.
func TestStepAllocations(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, ctx := testkit.Device(t), t.Context()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 900, MaxSessions: 32, MaxStep: 32, CacheBytes: 64 << 20})
	var chunks []pipeline.Chunk
	for range 32 {
		chunks = append(chunks, pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1})
	}
	step := func() {
		st, err := e.Begin(ctx, chunks...)
		require.NoError(t, err)
		st.Pretend()
		require.NoError(t, st.Commit())
	}
	for range 200 {
		step()
	}
	n := testing.AllocsPerRun(500, step)
	assert.False(t, n > 3, "%v allocations a step", n)
}

// TestSessionLatePages demands that another session gets a page that a session would give back with
// its next step, if there is no other page.
func TestSessionLatePages(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, ctx := testkit.Device(t), t.Context()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	o := pipeline.EngineOptions{MaxTokens: 900, MaxSessions: 2}
	page := engine(t, dev, cfg, layers, o).PageBytes(pipeline.PageCounts{1})
	o.CacheBytes = 4 * page
	o.MaxCacheBytes = o.CacheBytes
	e := engine(t, dev, cfg, layers, o)
	a, b := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	step := func(s *pipeline.Session) {
		t.Helper()
		st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
		st.Pretend()
		require.NoError(t, st.Commit())
	}
	require.NoError(t, a.Advance(ctx, 5*64-10))
	for a.Len() < 5*64 { // the window of 128 tokens is in two pages of 64
		step(a)
	}
	for b.Len() < 2*64 {
		step(b)
	}
	pages, free := e.Pages()
	require.Equal(t, 4, pages[0], "%v pages, %v free", pages, free)
	assert.Equal(t, 0, free[0], "%v pages, %v free", pages, free)
}
