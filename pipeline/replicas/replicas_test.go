package replicas_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/vk"
)

func arguments(t *testing.T, w *world) {
	e := []*pipeline.Engine{w.engine(t, 0, pipeline.EngineOptions{}), w.engine(t, 1, pipeline.EngineOptions{})}
	other := w.engine(t, 1, pipeline.EngineOptions{Identity: "another model"})
	for name, list := range map[string][]replicas.Replica{
		"none": nil, "engine": {{Device: w.devs[0]}}, "device": {{Engine: e[0]}},
		"engine twice": {{Engine: e[0], Device: w.devs[0]}, {Engine: e[0], Device: w.devs[1]}},
		"device twice": {{Engine: e[0], Device: w.devs[0]}, {Engine: e[1], Device: w.devs[0]}},
		"fingerprints": {{Engine: e[0], Device: w.devs[0]}, {Engine: other, Device: w.devs[1]}},
	} {
		_, err := replicas.New(list, replicas.Options{})
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	good := []replicas.Replica{
		{Engine: e[0], Device: w.devs[0], MaxCacheBytes: 64 << 20}, {Engine: e[1], Device: w.devs[1], MaxCacheBytes: 64 << 20},
	}
	for name, o := range map[string]replicas.Options{"Lead": {Lead: -1}, "Rewind": {Rewind: -1},
		"Timeout": {Store: must[*prefix.Folder](t)(prefix.OpenFolder(t.TempDir(), 0)), Prefix: prefix.Options{Timeout: -1}}} {
		_, err := replicas.New(good, o)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	g := must[*replicas.Group](t)(replicas.New(good, replicas.Options{}))
	foreign := opened(t, w.group(t, pipeline.EngineOptions{}, replicas.Options{}), sequence(1, 3), 0, 0)
	s := opened(t, g, sequence(1, 3), 0, 0)
	run := func(context.Context, replicas.Part) error { return nil }
	one := []int32{1}
	for name, chunks := range map[string][]replicas.Chunk{"none": nil, "nil": {{Tokens: one}}, "foreign": {{Session: foreign, Tokens: one}},
		"no tokens": {{Session: s}}, "twice": {{Session: s, Tokens: one}, {Session: s, Tokens: one}}} {
		assert.ErrorIs(t, g.Step(t.Context(), run, chunks...), vk.ErrArgument, name)
	}
	assert.ErrorIs(t, g.Step(t.Context(), nil, replicas.Chunk{Session: s, Tokens: one}), vk.ErrArgument)
	assert.ErrorIs(t, s.Move(t.Context(), 2), vk.ErrArgument)
	_, err := g.Relieve(t.Context(), -1)
	assert.ErrorIs(t, err, vk.ErrArgument)
	assert.ErrorIs(t, s.Keep(t.Context(), one), vk.ErrArgument, "without a store")
	_, err = g.Restore(t.Context(), nil, nil)
	assert.ErrorIs(t, err, vk.ErrArgument)
	assert.Zero(t, s.Len())
	assert.NoError(t, g.Err())
}

// Sessions go where the most room is for one, or to what they have in common with others.
func open(t *testing.T, w *world) {
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 8, MaxCacheBytes: 8 << 20, Rewind: 6}, replicas.Options{})
	a, b := sequence(1, 60), sequence(2, 60)
	x := opened(t, g, a, 0, 0)
	y := opened(t, g, b, 0, 1)
	w.same(t, x, w.extend(t, g, x, a[:40]))
	w.same(t, y, w.extend(t, g, y, b[:50]))
	opened(t, g, sequence(3, 5), 0, 0) // which has held less so far
	z := opened(t, g, b, 50, 1)
	w.same(t, z, w.extend(t, g, z, b[50:]))
	opened(t, g, b[:47], 46, 1)                                // four tokens are left out of y
	opened(t, g, append(slices.Clone(a[:36]), b...), 36, 0)    // those after it are others
	opened(t, g, append(slices.Clone(a[:33]), b[1:]...), 0, 0) // too many to be left out
	opened(t, g, append(slices.Clone(b[:45]), a[40:]...), 45, 1)
	loads := g.Loads()
	assert.Equal(t, []int{4, 4, 40 + 36, 50 + 60 + 46 + 45}, []int{loads[0].Sessions, loads[1].Sessions, loads[0].Tokens, loads[1].Tokens})
	assert.Greater(t, loads[1].Held, uint64(0))
	assert.Equal(t, uint64(8<<20), loads[0].Held+loads[0].Free)
}

// Where the replica of a prefix has no room, the prefix is copied; where none has, an error says
// so.
func room(t *testing.T, w *world) {
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 2, Rewind: 6}, replicas.Options{})
	a := sequence(4, 60)
	x := opened(t, g, a, 0, 0)
	w.extend(t, g, x, a[:37])
	y := opened(t, g, a, 37, 0)
	z := opened(t, g, a[:36], 35, 1)
	w.same(t, z, w.extend(t, g, z, a[35:]))
	assert.ErrorIs(t, z.Truncate(34), pipeline.ErrRewind, "a copy goes back to none")
	w.same(t, y, w.extend(t, g, y, a[37:]))
	opened(t, g, sequence(5, 4), 0, 1)
	_, _, err := g.Open(t.Context(), a)
	assert.ErrorIs(t, err, pipeline.ErrTooManySessions)
	dropped(t, x)
	opened(t, g, a, 59, 0)
}

// Lead spreads sessions that begin alike.
func lead(t *testing.T, w *world) {
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 8}, replicas.Options{Lead: 1})
	a := sequence(6, 60)
	x := opened(t, g, a, 0, 0)
	w.extend(t, g, x, a[:37])
	var at []int
	for range 5 {
		s, n, err := g.Open(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, 37, n)
		at = append(at, s.Replica())
		w.same(t, s, w.extend(t, g, s, a[37:40]))
		require.NoError(t, s.Truncate(0))
	}
	slices.Sort(at)
	assert.Equal(t, []int{0, 0, 1, 1, 1}, at)
}

// What the store has goes to any replica, but not what an open session has more of.
func store(t *testing.T, w *world) {
	folder := must[*prefix.Folder](t)(prefix.OpenFolder(t.TempDir(), 0))
	o := pipeline.EngineOptions{MaxSessions: 4, Rewind: prefix.Block}
	g := w.group(t, o, replicas.Options{Store: folder})
	a := sequence(7, 200)
	x := opened(t, g, a, 0, 0)
	w.extend(t, g, x, a[:150])
	require.NoError(t, x.Keep(t.Context(), a[:150]))
	dropped(t, x)
	y := opened(t, g, a[:150], 149, 0)
	z := opened(t, g, a, 149, 0) // from y
	u := opened(t, g, append(slices.Clone(a[:130]), sequence(8, 10)...), prefix.Block, 1)
	dropped(t, y, z, u)
	opened(t, g, sequence(9, 20), 0, 0)
	v := opened(t, g, a[:140], prefix.Block, 1)
	w.same(t, v, w.extend(t, g, v, a[prefix.Block:140]))
	again := w.group(t, o, replicas.Options{Store: folder})
	s := opened(t, again, a[:150], 149, 0)
	w.same(t, s, w.extend(t, again, s, a[149:]))
}

// Sessions that move give the same bits, and go back as far as before.
func moves(t *testing.T, w *world) {
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 3, Rewind: 9}, replicas.Options{})
	a := sequence(10, 90)
	x := opened(t, g, a, 0, 0)
	w.extend(t, g, x, a[:50])
	require.NoError(t, x.Move(t.Context(), 1))
	require.NoError(t, x.Move(t.Context(), 1), "where it is")
	assert.Equal(t, []int{1, 50}, []int{x.Replica(), x.Len()})
	w.same(t, x, w.extend(t, g, x, a[50:80]))
	require.NoError(t, x.Truncate(72))
	require.NoError(t, x.Move(t.Context(), 0))
	w.same(t, x, w.extend(t, g, x, a[72:]))
	loads := g.Loads()
	assert.Zero(t, loads[1].Held, "the other replica has its pages still")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, x.Move(ended, 1), context.Canceled)
	for i := range 3 {
		y, _, err := g.Open(t.Context(), sequence(uint64(20+i), 2))
		require.NoError(t, err)
		require.NoError(t, y.Move(t.Context(), 1))
	}
	assert.ErrorIs(t, x.Move(t.Context(), 1), pipeline.ErrTooManySessions)
	assert.Equal(t, 0, x.Replica())
	require.NoError(t, x.Truncate(85))
	w.same(t, x, w.extend(t, g, x, a[85:]))
}

// A replica that is full is relieved of its longest session that is in no step.
func full(t *testing.T, w *world) {
	const end = 64
	o := pipeline.EngineOptions{MaxTokens: longest, MaxStep: 16, MaxSessions: 6, CacheBytes: 400 << 10}
	lengths := []int{end + 1}
	if w.cfg.PlainQueries { // whose steps take more than its sessions hold
		lengths = append(lengths, end+1)
	}
	plan := must[pipeline.EngineMemory](t)(o.Estimate(t.Context(), w.devs[0], w.cfg, w.layers[0], lengths...))
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 6, MaxCacheBytes: plan.Caches, CacheBytes: plan.Caches}, replicas.Options{})
	var list []*replicas.Session
	for i := range 5 {
		s, _, err := g.Open(t.Context(), sequence(uint64(30+i), 2))
		require.NoError(t, err)
		require.NoError(t, s.Move(t.Context(), 0))
		list = append(list, s)
	}
	gave := map[*replicas.Session][][]float32{}
	fill := func() (last *replicas.Session, err error) {
		for n := 16; n <= end; n += 16 {
			for i, s := range list {
				if s.Len() < n && err == nil {
					last = s
					rows, failed := w.step(t.Context(), g, replicas.Chunk{Session: s, Tokens: sequence(uint64(30+i), n)[n-16:]})
					if err = failed; err == nil {
						gave[s] = append(gave[s], rows[0]...)
					}
				}
			}
		}
		return last, err
	}
	s, err := fill()
	require.ErrorIs(t, err, cache.ErrPoolFull)
	var failed *replicas.StepError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, []int{0, 1}, []int{failed.Failed[0].Replica, len(failed.Failed[0].Chunks)})
	before := s.Len()
	moved, err := g.Relieve(t.Context(), 0)
	require.NoError(t, err)
	assert.Equal(t, 1, moved.Replica())
	assert.GreaterOrEqual(t, moved.Len(), before)
	for range 2 {
		if _, err = fill(); errors.Is(err, cache.ErrPoolFull) {
			_, err = g.Relieve(t.Context(), 0)
		}
		require.NoError(t, err)
	}
	_, err = fill()
	require.NoError(t, err)
	for _, s := range list {
		require.Len(t, gave[s], end)
		w.same(t, s, gave[s])
	}
	loads := g.Loads()
	assert.Greater(t, loads[0].Sessions, 1)
	assert.Greater(t, loads[1].Sessions, 0)
	for range 6 - loads[1].Sessions {
		x, _, err := g.Open(t.Context(), sequence(90, 2))
		require.NoError(t, err)
		require.NoError(t, x.Move(t.Context(), 1))
	}
	_, err = g.Relieve(t.Context(), 0)
	assert.ErrorIs(t, err, cache.ErrPoolFull)
	assert.ErrorIs(t, err, pipeline.ErrTooManySessions, "why no session can move")
}

// What fails on one replica is done on the others.
func stepErrors(t *testing.T, w *world) {
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 3}, replicas.Options{})
	a, b := sequence(40, 30), sequence(41, 30)
	x, y := opened(t, g, a, 0, 0), opened(t, g, b, 0, 1)
	chunks := []replicas.Chunk{{Session: x, Tokens: a[:5]}, {Session: y, Tokens: b[:6]}}
	rows := make([][][]float32, 2)
	through := w.through(chunks, rows)
	err := g.Step(t.Context(), func(ctx context.Context, p replicas.Part) error {
		return errors.Join(through(ctx, p), map[int]error{0: nil, 1: errTest}[p.Replica])
	}, chunks...)
	require.ErrorIs(t, err, errTest)
	var failed *replicas.StepError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 1)
	assert.Equal(t, 1, failed.Failed[0].Replica)
	assert.Equal(t, []int{1}, failed.Failed[0].Chunks)
	assert.Contains(t, err.Error(), "replica 1")
	assert.Equal(t, []int{5, 0, 5, 0}, []int{x.Len(), y.Len(), len(x.Tokens()), len(y.Tokens())})
	w.same(t, x, rows[0])

	// In a step nothing changes a session; a step that wants it waits, as long as its context says.
	inStep, goOn := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- g.Step(t.Context(), func(ctx context.Context, p replicas.Part) error {
			close(inStep)
			<-goOn
			return errTest
		}, replicas.Chunk{Session: x, Tokens: a[5:6]})
	}()
	<-inStep
	_, err = x.Fork()
	for _, err := range []error{err, x.Truncate(0), x.Close(), x.Move(t.Context(), 1)} {
		assert.ErrorIs(t, err, pipeline.ErrInStep)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = w.step(short, g, replicas.Chunk{Session: y, Tokens: b[:1]}, replicas.Chunk{Session: x, Tokens: a[5:6]})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = g.Open(short, a)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	w.same(t, y, w.extend(t, g, y, b)) // the other replica does not wait
	close(goOn)
	assert.ErrorIs(t, <-done, errTest)
	w.same(t, x, w.extend(t, g, x, a[5:]))
}

// Snapshots are those of package pipeline.
func snapshots(t *testing.T, w *world) {
	g := w.group(t, pipeline.EngineOptions{MaxSessions: 2, Rewind: 4}, replicas.Options{})
	a := sequence(50, 60)
	x := opened(t, g, a, 0, 0)
	w.extend(t, g, x, a[:41])
	var data bytes.Buffer
	require.NoError(t, x.Save(t.Context(), &data))
	for i, want := range []int{1, 0, 1} {
		r := bytes.NewReader(data.Bytes())
		y, err := g.Restore(t.Context(), a[:41], r)
		require.NoError(t, err)
		require.Equal(t, want, y.Replica(), "restored %d", i)
		if i == 2 {
			require.NoError(t, y.Truncate(38))
			w.same(t, y, w.extend(t, g, y, a[38:]))
		}
	}
	_, err := g.Restore(t.Context(), a[:41], bytes.NewReader(data.Bytes()))
	assert.ErrorIs(t, err, pipeline.ErrTooManySessions)
	dropped(t, x)
	_, err = g.Restore(t.Context(), a[:40], bytes.NewReader(data.Bytes()))
	assert.ErrorIs(t, err, vk.ErrArgument, "another number of tokens")
	_, err = g.Restore(t.Context(), a[:41], bytes.NewReader(data.Bytes()[:100]))
	assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	assert.Equal(t, 1, g.Loads()[0].Sessions)
}

// A replica whose engine is closed takes none of the others' sessions with it.
func closed(t *testing.T, w *world) {
	var list []replicas.Replica
	for i, d := range w.devs {
		e := w.engine(t, i, pipeline.EngineOptions{MaxSessions: 4})
		list = append(list, replicas.Replica{Engine: e, Device: d, MaxCacheBytes: 64 << 20})
	}
	g := must[*replicas.Group](t)(replicas.New(list, replicas.Options{}))
	a := sequence(60, 40)
	x, y := opened(t, g, a, 0, 0), opened(t, g, sequence(61, 9), 0, 1)
	w.extend(t, g, x, a[:20])
	require.NoError(t, list[0].Engine.Close())
	_, err := w.step(t.Context(), g, replicas.Chunk{Session: x, Tokens: a[20:21]}, replicas.Chunk{Session: y, Tokens: a[:7]})
	assert.ErrorIs(t, err, vk.ErrClosed)
	assert.Equal(t, 7, y.Len())
	assert.ErrorIs(t, g.Loads()[0].Err, vk.ErrClosed)
	assert.ErrorIs(t, x.Move(t.Context(), 1), vk.ErrClosed)
	z := opened(t, g, a[:20], 7, 1)
	w.same(t, z, w.extend(t, g, z, x.Tokens()[7:]))
	require.NoError(t, list[1].Engine.Close())
	_, _, err = g.Open(t.Context(), a)
	assert.ErrorIs(t, err, vk.ErrClosed)
	dropped(t, x, y, z)
	assert.ErrorIs(t, x.Err(), vk.ErrClosed)
}
