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
)

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
