package prefix_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/vk"
)

// memory is a store that counts, waits and fails as it is told.
type memory struct {
	mu         sync.Mutex
	objects    map[string][]byte
	gets, puts map[string]int
	asked      int
	before     func(ctx context.Context) error // each call
}

func newMemory() *memory {
	return &memory{objects: map[string][]byte{}, gets: map[string]int{}, puts: map[string]int{}}
}

func (m *memory) enter(ctx context.Context) error {
	m.mu.Lock()
	before := m.before
	m.mu.Unlock()
	if before != nil {
		return before(ctx)
	}
	return ctx.Err()
}

// set says what comes before each call. Calls whose results are not waited for may still be on
// their way.
func (m *memory) set(before func(context.Context) error) {
	m.mu.Lock()
	m.before = before
	m.mu.Unlock()
}

func (m *memory) Get(ctx context.Context, name string, most int) ([]byte, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets[name]++
	data, ok := m.objects[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("get: %w", fs.ErrNotExist)
	case len(data) > most:
		return nil, prefix.ErrDamaged
	}
	return bytes.Clone(data), nil
}

func (m *memory) Has(ctx context.Context, name string) (bool, error) {
	if err := m.enter(ctx); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	_, ok := m.objects[name]
	return ok, nil
}

func (m *memory) Put(ctx context.Context, name string, data []byte) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.puts[name]++
	m.objects[name] = bytes.Clone(data)
	return nil
}

// gated is a memory that gives nothing before its gate is closed.
type gated struct {
	*memory
	gate chan struct{}
}

func (g gated) Get(ctx context.Context, name string, most int) ([]byte, error) {
	<-g.gate
	return g.memory.Get(ctx, name, most)
}

// both are two sequences with the same first 300 tokens, in an engine that can go back to any
// length.
type both struct {
	*world
	e                    *pipeline.Engine
	a, b                 []int32
	computedA, computedB *pipeline.Session
	rows                 [][]float32    // what the layers gave for each token of the first
	pages                map[string]int // of an engine that restores
}

// newBoth computes two sequences of `most` tokens that share the first `shared`.
func newBoth(t *testing.T, cfg model.Config, pages map[string]int, most, shared int) *both {
	x := &both{world: newWorld(t, cfg, fakemodel.BF16), a: random(1, most), pages: pages}
	x.b = append(slices.Clone(x.a[:shared]), random(2, most-shared)...)
	x.e = x.engine(t, "")
	x.computedA = testkit.Must[*pipeline.Session](t)(x.e.Open())
	x.rows = x.run(t, x.computedA, x.a[:shared])
	x.computedB = testkit.Must[*pipeline.Session](t)(x.computedA.Fork())
	x.rows = append(x.rows, x.run(t, x.computedA, x.a[shared:])...)
	x.run(t, x.computedB, x.b[shared:])
	return x
}

// TestKeeperV41 restores prompts of layers that share and of one that drafts, among them such of
// which a group of two is half full.
func TestKeeperV41(t *testing.T) {
	testkit.WithoutMatrices(t)
	full, most, shared := os.Getenv("VKMLA_TEST_FULL") == "1", 140, 70
	var pages map[string]int // others take kernels of their own
	if full {
		most, shared = 400, 300
		pages = map[string]int{"window": 48, "ratio2": 32, "ratio2.state": 3, "ratio1": 80, "draft": 7}
	}
	x := newBoth(t, fakemodel.TinyV41().WithDrafts(1), pages, most, shared)
	for _, c := range []struct {
		name string
		test func(*testing.T, *both)
	}{{"bits", bits}, {"spans", spans}, {"damaged", damaged}, {"parts", parts}} {
		if c.name == "bits" || full {
			t.Run(c.name, func(t *testing.T) { c.test(t, x) })
		}
	}
}

// TestKeeper is one test for the sake of its model and sequences.
func TestKeeper(t *testing.T) {
	testkit.WithoutMatrices(t)
	x := newBoth(t, fakemodel.Tiny(4, 0, 128), fakemodel.VLLMPages(), 400, 300)
	for name, test := range map[string]func(*testing.T, *both){"bits": bits, "spans": spans, "damaged": damaged, "trust": trust, "parts": parts,
		"slow": slow, "once": once, "refuses": refuses} {
		t.Run(name, func(t *testing.T) { test(t, x) })
	}
}

// parts keeps a state where two prompts part, so that a third one has what they share.
func parts(t *testing.T, x *both) {
	store := folder(t, t.TempDir())
	require.NoError(t, keeper(t, x.e, store, prefix.Options{}).Keep(t.Context(), x.computedA, x.a))
	open := func(k *prefix.Keeper, tokens []int32) int {
		s, n, err := k.Open(t.Context(), tokens)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		return n
	}
	second := keeper(t, x.e, store, prefix.Options{})
	assert.Zero(t, second.Parting(x.b), "before the store was asked")
	assert.Zero(t, open(second, x.b), "spans without a state")
	assert.Equal(t, 256, second.Parting(x.b))
	require.NoError(t, second.KeepBlocks(t.Context(), x.computedB, x.b[:256]))
	assert.Zero(t, second.Parting(x.b), "the state is there")
	third := keeper(t, x.e, store, prefix.Options{})
	c := append(slices.Clone(x.a[:280]), random(3, 60)...)
	assert.Equal(t, 256, open(third, c))
	assert.Zero(t, third.Parting(c))
	for _, tokens := range [][]int32{random(4, 300), x.a[:1], nil} {
		open(third, tokens)
		assert.Zero(t, third.Parting(tokens), "nothing is shared")
	}
}

func (x *both) engine(t *testing.T, identity string) *pipeline.Engine {
	return x.world.engine(t, pipeline.EngineOptions{MaxTokens: 400, MaxSessions: 10, MaxStep: 128, Rewind: 400, Invariant: true,
		Identity: identity})
}

// remembered is all that a session knows of its first n tokens.
func (x *both) remembered(t *testing.T, s *pipeline.Session, n int) (all []byte) {
	t.Helper()
	require.NoError(t, x.e.SaveSpans(t.Context(), s, []int{0, n}, true, func(_ int, data []byte) error { all = data; return nil }))
	return all
}

// kept is a store with tokens of the first sequence.
func (x *both) kept(t *testing.T, n int) *memory {
	t.Helper()
	m := newMemory()
	require.NoError(t, keeper(t, x.e, m, prefix.Options{}).Keep(t.Context(), x.computedA, x.a[:n]))
	return m
}

// opens demands that a prompt is opened with `had` tokens, and with what a session remembers that
// computed them.
func (x *both) opens(t *testing.T, k *prefix.Keeper, tokens []int32, had int, what string) {
	t.Helper()
	s, n, err := k.Open(t.Context(), tokens)
	require.NoError(t, err, what)
	assert.Equal(t, []int{had, had}, []int{n, s.Len()}, "tokens, %s", what)
	if n > 0 {
		of := x.computedA
		if n > 300 && tokens[300] == x.b[300] && tokens[301] == x.b[301] {
			of = x.computedB
		}
		assert.True(t, bytes.Equal(x.remembered(t, of, n), x.remembered(t, s, n)), "it remembers something else: %s", what)
	}
	require.NoError(t, s.Close())
}

// spans holds what is stored: a longer prompt adds its spans, one that parts shares those before,
// and states are where they were kept.
func spans(t *testing.T, x *both) {
	m := newMemory()
	k := keeper(t, x.e, m, prefix.Options{})
	require.NoError(t, k.Keep(t.Context(), x.computedA, x.a[:150]))
	assert.Len(t, m.objects, 1+2, "a span, two states")
	require.NoError(t, k.KeepBlocks(t.Context(), x.computedA, x.a))
	assert.Len(t, m.objects, 3+2+1, "two spans and a state more")
	for range 2 { // by a keeper that knows, and one that does not
		x.opens(t, k, x.a, 384, "longer")
		x.opens(t, k, x.a[:150], 149, "the same")
		x.opens(t, k, x.a[:149], 128, "one token less")
		x.opens(t, k, x.a[:129], 128, "a token behind a block")
		x.opens(t, k, x.a[:128], 0, "a block's end")
		x.opens(t, k, x.b, 128, "parting in the third block")
		x.opens(t, k, x.b[1:], 0, "another one")
		x.opens(t, k, x.a[:1], 0, "one token")
		x.opens(t, k, nil, 0, "none")
		k = keeper(t, x.e, m, prefix.Options{})
	}
	require.NoError(t, k.Keep(t.Context(), x.computedB, x.b))
	assert.Len(t, m.objects, 6+1+2, "block 2 of the other prompt, two states")
	x.opens(t, k, x.b, 399, "the other one")
	for name, n := range m.puts {
		assert.Equal(t, 1, n, name)
	}
	stats := k.Stats()
	assert.Positive(t, stats.Stored)
	assert.Zero(t, stats.Failed+stats.Damaged)
}

// damaged alters each object in each way. Then a prompt is opened with fewer tokens, never with
// other ones, and who computes and keeps it again repairs the store.
func damaged(t *testing.T, x *both) {
	good := x.kept(t, 300)
	names := slices.Sorted(maps.Keys(good.objects))
	require.Len(t, names, 4)
	ways := map[string]func(data []byte, next string) []byte{
		"empty":  func([]byte, string) []byte { return nil },
		"cut":    func(data []byte, _ string) []byte { return data[:len(data)-1] },
		"longer": func(data []byte, _ string) []byte { return append(data, 0) },
		"flipped": func(data []byte, _ string) []byte {
			data[len(data)/2] ^= 4
			return data
		},
		"another": func(_ []byte, next string) []byte { return good.objects[next] },
		"gone":    nil,
	}
	for way, alter := range ways {
		for i, name := range names {
			m := newMemory()
			maps.Copy(m.objects, good.objects)
			if delete(m.objects, name); alter != nil {
				m.objects[name] = alter(bytes.Clone(good.objects[name]), names[(i+1)%len(names)])
			}
			k := keeper(t, x.e, m, prefix.Options{})
			s, n, err := k.Open(t.Context(), x.a[:300])
			require.NoError(t, err)
			assert.Contains(t, []int{0, 256, 299}, n, "%s, object %d", way, i)
			if n > 0 {
				assert.True(t, bytes.Equal(x.remembered(t, x.computedA, n), x.remembered(t, s, n)), "%s, object %d", way, i)
			}
			require.NoError(t, s.Close())
			require.NoError(t, k.Keep(t.Context(), x.computedA, x.a[:300]))
			x.opens(t, k, x.a[:300], 299, "repaired")
			if n < 299 {
				assert.True(t, maps.EqualFunc(good.objects, m.objects, bytes.Equal), "%s, object %d: repaired", way, i)
			}
		}
	}
}

// trust holds that keepers of other engines and with other keys see nothing.
func trust(t *testing.T, x *both) {
	m := x.kept(t, 300)
	other := x.engine(t, "other experts")
	x.opens(t, keeper(t, other, m, prefix.Options{}), x.a, 0, "another engine")
	keyed := prefix.Options{Key: []byte("secret")}
	x.opens(t, keeper(t, x.e, m, keyed), x.a[:300], 0, "another key")
	require.NoError(t, keeper(t, x.e, m, keyed).Keep(t.Context(), x.computedA, x.a[:300]))
	assert.Len(t, m.objects, 8)
	x.opens(t, keeper(t, x.e, m, keyed), x.a[:300], 299, "the key")
	assert.ErrorIs(t, keeper(t, other, newMemory(), prefix.Options{}).Keep(t.Context(), x.computedA, x.a), vk.ErrArgument,
		"another engine's session")
}

// slow bounds what a store costs that does not answer, with or without heed to contexts.
func slow(t *testing.T, x *both) {
	tokens := x.a[:300]
	m := x.kept(t, 300)
	never := make(chan struct{})
	defer close(never)
	const timeout = 100 * time.Millisecond
	for what, before := range map[string]func(context.Context) error{
		"waits for the context": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"hangs":                 func(context.Context) error { <-never; return errors.New("late") },
	} {
		m.set(before)
		var log bytes.Buffer
		k := keeper(t, x.e, m, prefix.Options{Timeout: timeout, Log: slog.New(slog.NewTextHandler(&log, nil))})
		began := time.Now()
		x.opens(t, k, tokens, 0, what)
		assert.Less(t, time.Since(began), 15*time.Minute, what)
		assert.GreaterOrEqual(t, k.Rests().Sub(began), 2*timeout, "it waited, and lets the store rest for as long")
		assert.ErrorIs(t, k.Keep(t.Context(), x.computedA, tokens), context.DeadlineExceeded)
		assert.Positive(t, k.Stats().Failed)
		assert.Equal(t, 1, strings.Count(log.String(), "\n"), "Open says what it passes over, Keep returns it: %s", &log)
		ctx, leave := context.WithCancel(t.Context())
		k = keeper(t, x.e, m, prefix.Options{Timeout: time.Hour})
		time.AfterFunc(20*time.Millisecond, leave)
		_, _, err := k.Open(ctx, tokens)
		assert.ErrorIs(t, err, context.Canceled)
	}
	good := x.kept(t, 300)
	k := keeper(t, x.e, good, prefix.Options{})
	k.Rest(time.Now().Add(time.Hour))
	asked := good.asked
	x.opens(t, k, tokens, 0, "the store rests")
	assert.Empty(t, good.gets, "calls of a store that rests")
	assert.Equal(t, asked, good.asked, "calls of a store that rests")
	k.Rest(time.Now())
	x.opens(t, k, tokens, 299, "the store has rested")
	broken := errors.New("no route to the store")
	m.set(func(context.Context) error { return broken })
	k = keeper(t, x.e, m, prefix.Options{})
	x.opens(t, k, tokens, 0, "broken")
	assert.ErrorIs(t, k.Keep(t.Context(), x.computedA, tokens), broken)
	m.set(nil)
	x.opens(t, k, tokens, 299, "there again")
}

// once lets many open and keep one prompt at the same time: each object is loaded once, and
// stored once.
func once(t *testing.T, x *both) {
	tokens := x.a[:300]
	m := x.kept(t, 300)
	const users = 4
	gate := make(chan struct{})
	k := keeper(t, x.e, gated{m, gate}, prefix.Options{})
	wanted := func(by int) { // two spans and a state
		t.Helper()
		assert.Eventually(t, func() bool { return slices.Equal(k.Waiting(), []int{by, by, by}) }, 15*time.Minute, time.Millisecond)
	}
	var first, group sync.WaitGroup
	leaving, leave := context.WithCancel(t.Context())
	first.Go(func() { // who comes first and leaves spoils nothing
		_, _, err := k.Open(leaving, tokens)
		assert.ErrorIs(t, err, context.Canceled)
	})
	wanted(1)
	for range users {
		group.Go(func() {
			s, n, err := k.Open(t.Context(), tokens)
			if assert.NoError(t, err) {
				assert.Equal(t, 299, n)
				assert.NoError(t, s.Close())
			}
		})
	}
	wanted(1 + users)
	leave()
	first.Wait()
	wanted(users)
	close(gate)
	group.Wait()
	assert.Len(t, m.gets, 3, "two spans, a state")
	for name, n := range m.gets {
		assert.Equal(t, 1, n, name)
	}

	m = newMemory()
	started := make(chan struct{}, 100)
	gate = make(chan struct{})
	k = keeper(t, x.e, m, prefix.Options{})
	m.set(func(ctx context.Context) error { started <- struct{}{}; <-gate; return ctx.Err() })
	s := x.computedA
	for range users {
		group.Go(func() { assert.NoError(t, k.Keep(t.Context(), s, tokens)) })
	}
	for range users {
		<-started
	}
	close(gate)
	group.Wait()
	assert.Len(t, m.objects, 4)
	for name, n := range m.puts {
		assert.Equal(t, 1, n, name)
	}
}

// refuses holds what cannot be kept.
func refuses(t *testing.T, x *both) {
	k := keeper(t, x.e, newMemory(), prefix.Options{})
	s := testkit.Must[*pipeline.Session](t)(x.computedA.Fork())
	require.NoError(t, s.Truncate(299))
	assert.ErrorIs(t, k.Keep(t.Context(), s, x.a[:301]), vk.ErrArgument, "more than the session has")
	assert.ErrorIs(t, k.KeepBlocks(t.Context(), s, x.a[:300]), vk.ErrArgument, "more than the session has")
	assert.NoError(t, k.Keep(t.Context(), s, x.a[:300]), "all but the last")
	x.opens(t, k, x.a[:300], 299, "kept without the last")
	require.NoError(t, s.Close())
	for _, o := range []prefix.Options{{Timeout: -1}, {Parallel: -1}} {
		_, err := prefix.New(x.e, newMemory(), o)
		assert.ErrorIs(t, err, vk.ErrArgument)
	}
	_, err := prefix.New(nil, newMemory(), prefix.Options{})
	assert.ErrorIs(t, err, vk.ErrArgument)
	_, err = prefix.New(x.e, nil, prefix.Options{})
	assert.ErrorIs(t, err, vk.ErrArgument)

	put := func(int, []byte) error { return nil }
	for _, at := range [][]int{nil, {0}, {1, 0}, {-1, 2}, {0, 401}} {
		assert.ErrorIs(t, x.e.SaveSpans(t.Context(), x.computedA, at, false, put), vk.ErrArgument, "%d", at)
		_, err := x.e.RestoreSpans(t.Context(), at, func([]int) ([][]byte, error) { return nil, fs.ErrClosed })
		assert.Error(t, err, "%d", at)
		assert.NotErrorIs(t, err, fs.ErrClosed, "%d", at)
	}
	for _, spans := range [][][]byte{nil, {nil}, {nil, nil}} {
		_, err = x.e.RestoreSpans(t.Context(), []int{0, 9}, func([]int) ([][]byte, error) { return spans, nil })
		assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	}
}
