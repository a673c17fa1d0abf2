package prefix_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
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
	if m.before != nil {
		return m.before(ctx)
	}
	return ctx.Err()
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

// least is an engine of a layer with a window only.
func least(t testing.TB, identity string) (*world, *pipeline.Engine) {
	t.Helper()
	testkit.WithoutMatrices(t)
	cfg := fakemodel.Config(0)
	cfg.Hidden, cfg.Heads, cfg.Groups, cfg.QRank, cfg.ORank = 8, 1, 1, 16, 16
	w := newWorld(t, cfg, fakemodel.BF16)
	return w, w.engine(t, pipeline.EngineOptions{MaxTokens: 1000, MaxSessions: 8, MaxStep: 128, Rewind: prefix.Block, Identity: identity})
}

// computed is a session that has computed tokens.
func (w *world) computed(t testing.TB, e *pipeline.Engine, tokens []int32) *pipeline.Session {
	t.Helper()
	s := testkit.Must[*pipeline.Session](t)(e.Open())
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	if len(tokens) > 0 {
		w.run(t, s, tokens)
	}
	return s
}

// kept is a store with a prompt.
func (w *world) kept(t testing.TB, e *pipeline.Engine, tokens []int32) *memory {
	t.Helper()
	m := newMemory()
	require.NoError(t, keeper(t, e, m, prefix.Options{}).Keep(t.Context(), w.computed(t, e, tokens), tokens))
	return m
}

// saved is all that a session remembers.
func saved(t testing.TB, s *pipeline.Session) []byte {
	t.Helper()
	var data bytes.Buffer
	require.NoError(t, s.Save(t.Context(), &data))
	return data.Bytes()
}

// opens demands that a prompt is opened with so many tokens, and with what a session remembers that
// computed them.
func (w *world) opens(t testing.TB, e *pipeline.Engine, k *prefix.Keeper, tokens []int32, had int, what string) {
	t.Helper()
	s, n, err := k.Open(t.Context(), tokens)
	require.NoError(t, err, what)
	defer s.Close()
	assert.Equal(t, had, n, "tokens, %s", what)
	r := w.computed(t, e, tokens[:n])
	rest := tokens[n:]
	assert.Equal(t, w.run(t, r, rest), w.run(t, s, rest), what)
	require.NoError(t, r.Close())
}

// TestSpans holds what is stored: a longer prompt adds its spans, one that parts shares those
// before, and states are where they were kept.
func TestSpans(t *testing.T) {
	w, e := least(t, "")
	m, a := newMemory(), random(1, 700)
	k := keeper(t, e, m, prefix.Options{})
	s := w.computed(t, e, a[:300])
	require.NoError(t, k.Keep(t.Context(), s, a[:300]))
	assert.Len(t, m.objects, 2+2, "two spans, two states")
	w.run(t, s, a[300:600])
	require.NoError(t, k.KeepBlocks(t.Context(), s, a[:600]))
	assert.Len(t, m.objects, 4+2+1, "two spans and a state more")
	for name, n := range m.puts {
		assert.Equal(t, 1, n, name)
	}
	b := append(slices.Clone(a[:400]), random(2, 200)...)
	for range 2 { // by a keeper that knows, and one that does not
		w.opens(t, e, k, a, 512, "longer")
		w.opens(t, e, k, a[:300], 299, "the same")
		w.opens(t, e, k, a[:299], 256, "one token less")
		w.opens(t, e, k, a[:257], 256, "a token behind a block")
		w.opens(t, e, k, a[:256], 0, "a block's end")
		w.opens(t, e, k, b, 256, "parting in the fourth block")
		w.opens(t, e, k, b[1:], 0, "another one")
		for _, n := range []int{0, 1} {
			s, had, err := k.Open(t.Context(), a[:n])
			require.NoError(t, err)
			assert.Zero(t, had+s.Len())
			require.NoError(t, s.Close())
		}
		k = keeper(t, e, m, prefix.Options{})
	}
	// The store of two keepers: what is there is not stored again, damage is.
	r := w.computed(t, e, b)
	require.NoError(t, k.Keep(t.Context(), r, b))
	for name, n := range m.puts {
		assert.Equal(t, 1, n, name)
	}
	assert.Len(t, m.objects, 7+2+2, "blocks 3 and 4 of the other prompt, two states")
	stats := k.Stats()
	assert.Positive(t, stats.Stored)
	assert.Zero(t, stats.Failed+stats.Damaged)
}

// TestDamaged alters each object in each way. Then a prompt is opened with fewer tokens, never with
// other ones, and who computes and keeps it again repairs the store.
func TestDamaged(t *testing.T) {
	w, e := least(t, "")
	tokens := random(3, 400)
	good := w.kept(t, e, tokens)
	names := slices.Sorted(maps.Keys(good.objects))
	require.Len(t, names, 5)
	ways := map[string]func(m *memory, name string){
		"gone":  func(m *memory, name string) { delete(m.objects, name) },
		"empty": func(m *memory, name string) { m.objects[name] = nil },
		"cut":   func(m *memory, name string) { m.objects[name] = m.objects[name][:len(m.objects[name])-1] },
		"longer": func(m *memory, name string) {
			m.objects[name] = append(bytes.Clone(m.objects[name]), 0)
		},
		"flipped": func(m *memory, name string) {
			data := bytes.Clone(m.objects[name])
			data[len(data)/2] ^= 4
			m.objects[name] = data
		},
		"another": func(m *memory, name string) {
			m.objects[name] = m.objects[names[(slices.Index(names, name)+1)%len(names)]]
		},
	}
	for way, do := range ways {
		for i, name := range names {
			m := newMemory()
			maps.Copy(m.objects, good.objects)
			do(m, name)
			k := keeper(t, e, m, prefix.Options{})
			s, n, err := k.Open(t.Context(), tokens)
			require.NoError(t, err)
			assert.Contains(t, []int{0, 384, 399}, n, "%s, object %d", way, i)
			r := w.computed(t, e, tokens[:n])
			if n > 0 {
				assert.Equal(t, saved(t, r), saved(t, s), "%s, object %d", way, i)
			}
			require.NoError(t, errors.Join(s.Close(), r.Close()))
			whole := w.computed(t, e, tokens)
			require.NoError(t, k.Keep(t.Context(), whole, tokens))
			require.NoError(t, whole.Close())
			w.opens(t, e, k, tokens, 399, "repaired")
			if n < 399 {
				assert.Equal(t, good.objects, m.objects, "%s, object %d: repaired", way, i)
			}
		}
	}
}

// TestTrust holds that keepers of other engines and with other keys see nothing, and that nobody
// without the key makes what they take.
func TestTrust(t *testing.T) {
	w, e := least(t, "")
	_, other := least(t, "other experts")
	tokens := random(4, 300)
	m := w.kept(t, e, tokens)
	w.opens(t, other, keeper(t, other, m, prefix.Options{}), tokens, 0, "another engine")
	keyed := prefix.Options{Key: []byte("secret")}
	w.opens(t, e, keeper(t, e, m, keyed), tokens, 0, "another key")
	require.NoError(t, keeper(t, e, m, keyed).Keep(t.Context(), w.computed(t, e, tokens), tokens))
	assert.Len(t, m.objects, 8)
	w.opens(t, e, keeper(t, e, m, keyed), tokens, 299, "the key")

	s := w.computed(t, other, tokens)
	assert.ErrorIs(t, keeper(t, e, m, prefix.Options{}).Keep(t.Context(), s, random(5, 300)), vk.ErrArgument, "another engine's session")
}

// TestSlow bounds what a store costs that does not answer, with or without heed to contexts.
func TestSlow(t *testing.T) {
	w, e := least(t, "")
	tokens := random(6, 300)
	m := w.kept(t, e, tokens)
	never := make(chan struct{})
	defer close(never)
	calls := 0
	for what, before := range map[string]func(context.Context) error{
		"waits for the context": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"hangs":                 func(context.Context) error { <-never; return errors.New("late") },
	} {
		m.before = func(ctx context.Context) error {
			m.mu.Lock()
			calls++
			m.mu.Unlock()
			return before(ctx)
		}
		k := keeper(t, e, m, prefix.Options{Timeout: 100 * time.Millisecond})
		began := time.Now()
		w.opens(t, e, k, tokens, 0, what)
		assert.Less(t, time.Since(began), 5*time.Second, what)
		m.mu.Lock()
		asked := calls
		m.mu.Unlock()
		w.opens(t, e, k, tokens, 0, "the store rests")
		m.mu.Lock()
		assert.Equal(t, asked, calls, "calls of a store that rests")
		m.mu.Unlock()
		assert.ErrorIs(t, k.Keep(t.Context(), w.computed(t, e, tokens), tokens), context.DeadlineExceeded)
		assert.Positive(t, k.Stats().Failed)
		ctx, leave := context.WithCancel(t.Context())
		k = keeper(t, e, m, prefix.Options{Timeout: time.Hour})
		time.AfterFunc(20*time.Millisecond, leave)
		_, _, err := k.Open(ctx, tokens)
		assert.ErrorIs(t, err, context.Canceled)
	}
	broken := errors.New("no route to the store")
	m.before = func(context.Context) error { return broken }
	k := keeper(t, e, m, prefix.Options{})
	w.opens(t, e, k, tokens, 0, "broken")
	assert.ErrorIs(t, k.Keep(t.Context(), w.computed(t, e, tokens), tokens), broken)
	m.before = nil
	w.opens(t, e, k, tokens, 299, "there again")
}

// TestOnce lets many open and keep one prompt at the same time: each object is loaded once, and
// stored once.
func TestOnce(t *testing.T) {
	w, e := least(t, "")
	tokens := random(7, 300)
	m := w.kept(t, e, tokens)
	const users = 4
	gate := make(chan struct{})
	m.before = func(ctx context.Context) error { <-gate; return ctx.Err() }
	k := keeper(t, e, m, prefix.Options{})
	var group sync.WaitGroup
	leaving, leave := context.WithCancel(t.Context())
	group.Go(func() { // who comes first and leaves spoils nothing
		_, _, err := k.Open(leaving, tokens)
		assert.ErrorIs(t, err, context.Canceled)
	})
	for range users {
		group.Go(func() {
			s, n, err := k.Open(t.Context(), tokens)
			if assert.NoError(t, err) {
				assert.Equal(t, 299, n)
				assert.NoError(t, s.Close())
			}
		})
	}
	time.Sleep(20 * time.Millisecond) // all are about to ask whether there is a state
	leave()
	close(gate)
	group.Wait()
	assert.Len(t, m.gets, 3, "two spans, a state")
	for name, n := range m.gets {
		assert.Equal(t, 1, n, name)
	}

	m = newMemory()
	started := make(chan struct{}, 100)
	gate = make(chan struct{})
	k = keeper(t, e, m, prefix.Options{})
	m.before = func(ctx context.Context) error { started <- struct{}{}; <-gate; return ctx.Err() }
	s := w.computed(t, e, tokens)
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

// TestKeepRefuses holds what cannot be kept.
func TestKeepRefuses(t *testing.T) {
	w, e := least(t, "")
	tokens := random(8, 400)
	k := keeper(t, e, newMemory(), prefix.Options{})
	s := w.computed(t, e, tokens[:299])
	assert.ErrorIs(t, k.Keep(t.Context(), s, tokens[:301]), vk.ErrArgument, "more than the session has")
	assert.ErrorIs(t, k.KeepBlocks(t.Context(), s, tokens[:300]), vk.ErrArgument, "more than the session has")
	assert.ErrorIs(t, k.KeepBlocks(t.Context(), w.computed(t, e, tokens), tokens[:200]), pipeline.ErrRewind)
	assert.NoError(t, k.Keep(t.Context(), s, tokens[:300]), "all but the last")
	w.opens(t, e, k, tokens[:300], 299, "kept without the last")
	for _, o := range []prefix.Options{{Timeout: -1}, {Parallel: -1}} {
		_, err := prefix.New(e, newMemory(), o)
		assert.ErrorIs(t, err, vk.ErrArgument)
	}
	_, err := prefix.New(nil, newMemory(), prefix.Options{})
	assert.ErrorIs(t, err, vk.ErrArgument)
	_, err = prefix.New(e, nil, prefix.Options{})
	assert.ErrorIs(t, err, vk.ErrArgument)
}
