package pipeline_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

// TestSessionTables runs steps of random sessions between forks, truncations and aborted steps.
// Most steps change no table. After each step the tables are right, on the device too.
func TestSessionTables(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4, 0, 128), Storage: fakemodel.FP8})))
	for name, pages := range map[string]map[string]int{"usual": nil, "vLLM's": fakemodel.VLLMPages(), "odd": oddPages} {
		t.Run(name, func(t *testing.T) {
			o := pipeline.EngineOptions{MaxTokens: 900, MaxSessions: 4, MaxStep: 100, Rewind: 20, CacheBytes: 64 << 20, LayerByLayer: true}
			randomTables(t, engine(t, dev, fakemodel.Paged(cfg, pages), layers, o), o)
		})
	}
}

func randomTables(t *testing.T, e *pipeline.Engine, o pipeline.EngineOptions) {
	ctx, rng := t.Context(), rand.New(rand.NewPCG(3, 4))
	all := []*pipeline.Session{must[*pipeline.Session](t)(e.Open())}
	for range 400 {
		i := rng.IntN(len(all))
		s := all[i]
		switch n := s.Len(); rng.IntN(20) {
		case 0:
			if len(all) < o.MaxSessions {
				all = append(all, must[*pipeline.Session](t)(s.Fork()))
			}
		case 1:
			if len(all) > 1 {
				require.NoError(t, s.Close())
				all = slices.Delete(all, i, i+1)
			}
		case 2:
			_ = s.Truncate(n - rng.IntN(o.Rewind)) // not below what there was after a fork, or none
		case 3:
			require.NoError(t, s.Advance(ctx, rng.IntN(min(70, o.MaxTokens-n)+1)))
		}
		tableStep(t, e, all, rng)
	}
	for _, s := range all {
		require.NoError(t, s.Close())
	}
	pages, free := e.Pages()
	assert.Equal(t, free, pages, "of pages, are free")
}

// tableStep runs a step of some sessions, mostly of a token each, and checks their tables, or
// aborts it.
func tableStep(t *testing.T, e *pipeline.Engine, all []*pipeline.Session, rng *rand.Rand) {
	t.Helper()
	var chunks []pipeline.Chunk
	var from []int
	for _, s := range all {
		n := 1
		switch rng.IntN(32) {
		case 0:
			n += rng.IntN(9)
		case 1:
			n += rng.IntN(40)
		}
		if s.Len()+n > 900 {
			require.NoError(t, s.Truncate(0))
		}
		if rng.IntN(4) > 0 {
			chunks, from = append(chunks, pipeline.Chunk{Session: s, Tokens: n}), append(from, s.Len())
		}
	}
	if len(chunks) == 0 {
		return
	}
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), chunks...))
	given := rng.IntN(12)
	if given > 0 {
		require.NoError(t, st.Prologue(t.Context()))
	}
	if given < 2 { // before the device has it, and after
		require.NoError(t, st.Abort())
		return
	}
	require.NoError(t, st.Commit())
	for i, c := range chunks {
		if err := c.Session.CheckTables(t.Context(), from[i]); err != nil {
			t.Fatalf("%d tokens after %d: %v", c.Tokens, from[i], err)
		}
	}
}

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
