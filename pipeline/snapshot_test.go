package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestRestore restores sessions where they have less room than where they were saved, and after
// they were cut, and refuses older formats.
func TestRestore(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	const tokens, rewind = 3000, 2000
	long := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 8192, Rewind: rewind})
	s := must[*pipeline.Session](t)(long.Open())
	var saved bytes.Buffer
	require.NoError(t, errors.Join(s.Advance(t.Context(), tokens), s.Save(t.Context(), &saved)))
	short := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 8192, Rewind: 100})
	back, err := short.Restore(t.Context(), bytes.NewReader(saved.Bytes()))
	require.NoError(t, err)
	require.Equal(t, tokens, back.Len())
	assert.ErrorIs(t, back.Truncate(tokens-101), pipeline.ErrRewind, "truncated too far")
	assert.NoError(t, errors.Join(back.Truncate(tokens-100), back.Advance(t.Context(), 200), back.Close()))
	all, free := short.Pages()
	assert.Equal(t, free, all, "of %v pages %v are free", all, free)
	var cut bytes.Buffer
	require.NoError(t, errors.Join(s.Truncate(tokens-rewind+500), s.Save(t.Context(), &cut), s.Close()))
	again := must[*pipeline.Session](t)(long.Restore(t.Context(), &cut))
	assert.ErrorIs(t, again.Truncate(tokens-rewind-1), pipeline.ErrRewind, "pages were gone when it was saved")
	assert.NoError(t, again.Truncate(tokens-rewind))
	older := bytes.Clone(saved.Bytes())
	older[8] = 1 // the version
	_, err = short.Restore(t.Context(), bytes.NewReader(older))
	require.ErrorIs(t, err, pipeline.ErrSnapshotVersion)
	require.ErrorIs(t, err, pipeline.ErrSnapshot)
	require.ErrorContains(t, err, "version 1, this package reads version 4")
}

// TestSaveBesideSteps demands that a slow reader of a snapshot does not delay steps, that steps and
// changes to the session do not change the snapshot, and that a session can be restored beside
// steps.
func TestSaveBesideSteps(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	layers = append(layers, layers...)
	const length = 8192 - 30 // a page is not full
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 8192, MaxSessions: 3, MaxStep: 4, Rewind: 8192})
	ctx := t.Context()
	s, other := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	for i := range layers {
		pool := e.Caches(i).Window.Pool
		require.NoError(t, pool.Upload(ctx, bytes.Repeat([]byte{byte(i), 5, 7}, int(pool.Bytes()))[:pool.Bytes()]))
	}
	var want, got bytes.Buffer
	require.NoError(t, errors.Join(s.Advance(ctx, length), s.Save(ctx, &want)))
	hidden := slices.Repeat([][]float32{slices.Repeat([]float32{1}, cfg.Hidden)}, len(layers))
	step := func(s *pipeline.Session) error { return failure(s.Append(ctx, hidden)) }
	changes := []func() error{
		func() error { return step(s) },
		func() error { return errors.Join(s.Truncate(77), step(s), s.Truncate(0), step(s)) },
		func() error { return s.Close() },
	}
	calls := 0
	err := s.Save(ctx, writerFunc(func(data []byte) (int, error) {
		err := step(other)
		if calls < len(changes) {
			err = errors.Join(err, changes[calls]())
		}
		calls++
		got.Write(data)
		return len(data), err
	}))
	require.NoError(t, err, "saved in %d pieces, or other bytes", calls)
	assert.False(t, calls < len(changes) || !bytes.Equal(got.Bytes(), want.Bytes()),
		"saved in %d pieces, or other bytes", calls)
	all, free := e.Pages()
	assert.Equal(t, all[0]-1, free[0], "of %v pages %v are free", all, free)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for err := error(nil); ; err = errors.Join(err, other.Truncate(0), step(other)) {
			select {
			case <-stop:
				stopped <- err
				return
			default:
			}
		}
	}()
	back, err := e.Restore(ctx, bytes.NewReader(want.Bytes()))
	close(stop)
	require.NoError(t, errors.Join(err, <-stopped))
	got.Reset()
	require.NoError(t, back.Save(ctx, &got), "restored beside steps and saved again it is not the same")
	assert.True(t, bytes.Equal(got.Bytes(), want.Bytes()), "restored beside steps and saved again it is not the same")
	short := writerFunc(func(data []byte) (int, error) { return len(data) / 2, nil })
	assert.ErrorIs(t, back.Save(ctx, short), io.ErrShortWrite, "a writer that takes half")
}

// TestRestoreRefuses holds what a snapshot is refused for, besides damage.
func TestRestoreRefuses(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, o := small()
	save := func(e *pipeline.Engine) []byte {
		s := must[*pipeline.Session](t)(e.Open())
		var data bytes.Buffer
		require.NoError(t, errors.Join(s.Advance(t.Context(), 200), s.Save(t.Context(), &data), s.Close()))
		return data.Bytes()
	}
	_, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg})))
	e := engine(t, dev, cfg, layers, o)
	data := save(e)
	restore := func(e *pipeline.Engine, data []byte) error {
		return failure(e.Restore(t.Context(), bytes.NewReader(data)))
	}

	// The same layer with other weights, and from elsewhere.
	_, others := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg, Seed: 1})))
	foreign := engine(t, dev, cfg, others, o)
	err := restore(foreign, data)
	assert.ErrorIs(t, err, pipeline.ErrSnapshotModel)
	assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	assert.ErrorContains(t, err, ": other weights")
	unknown := *layers[0]
	unknown.Identity = model.Identity{}
	handmade := engine(t, dev, cfg, []*model.DeviceLayer{&unknown}, o)
	assert.ErrorContains(t, restore(handmade, data), ": other weights")
	assert.NoError(t, restore(handmade, save(handmade)))
	named := o
	named.Identity = "experts of May"
	assert.ErrorContains(t, restore(engine(t, dev, cfg, layers, named), data), ": other weights")
	short := cfg
	short.Window = 64
	assert.ErrorContains(t, restore(engine(t, dev, short, layers, o), data), ": another configuration or other layers")
	exact := o
	exact.Invariant = true
	assert.ErrorContains(t, restore(engine(t, dev, cfg, layers, exact), data), ": other formats of caches or activations")

	// What follows the snapshot.
	behind := append(bytes.Clone(data), data...)
	err = restore(e, behind)
	assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	assert.ErrorContains(t, err, "goes on behind its end")
	r := bytes.NewReader(behind)
	for range 2 {
		s, err := e.Restore(t.Context(), io.LimitReader(r, int64(len(data))))
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
	broken := errors.New("no more")
	err = failure(e.Restore(t.Context(), io.MultiReader(bytes.NewReader(data), readerFunc(func([]byte) (int, error) { return 0, broken }))))
	assert.ErrorIs(t, err, broken)
	assert.NotErrorIs(t, err, pipeline.ErrSnapshot)

	// A context that ends while r is read.
	ctx, end := context.WithCancel(t.Context())
	half := io.MultiReader(bytes.NewReader(data[:1000]), readerFunc(func(p []byte) (int, error) { end(); return copy(p, data[1000:]), nil }))
	assert.ErrorIs(t, failure(e.Restore(ctx, half)), context.Canceled)
}

// TestSnapshotPanics lets writers and readers panic at every call: nothing is held afterwards, and
// steps go on.
func TestSnapshotPanics(t *testing.T) {
	e, dir := smallEngine(t)
	s := must[*pipeline.Session](t)(e.Open())
	require.NoError(t, s.Advance(t.Context(), 300))
	var saved bytes.Buffer
	require.NoError(t, s.Save(t.Context(), &saved))
	held := func() uint64 { return e.Memory().Held }
	before, files := held(), entries(t, dir)
	for calls := range 4 {
		left := calls
		fail := func() {
			if left--; left < 0 {
				panic("over")
			}
		}
		w := writerFunc(func(p []byte) (int, error) { fail(); return len(p), nil })
		data := saved.Bytes()
		r := readerFunc(func(p []byte) (int, error) {
			fail()
			n := copy(p, data)
			data = data[n:]
			return n, nil
		})
		if calls < 2 { // the slots and the checksum
			assert.PanicsWithValue(t, "over", func() { s.Save(t.Context(), w) })
		}
		left = calls
		assert.PanicsWithValue(t, "over", func() { e.Restore(t.Context(), r) })
		assert.Equal(t, before, held(), "bytes held")
		extend(t, s, e.Layers(), slices.Repeat([]float32{1}, 8))
		require.NoError(t, s.Truncate(300))
	}
	assert.Equal(t, files, entries(t, dir))
	for range 2 { // no row is lost
		other := must[*pipeline.Session](t)(e.Open())
		defer other.Close()
	}
	require.NoError(t, s.Close())
}

// TestSnapshotMemory bounds what reading a snapshot allocates by what arrives, whatever its header
// promises.
func TestSnapshotMemory(t *testing.T) {
	cfg, o := small()
	o.MaxTokens, o.Rewind = 1<<19, 1<<19
	e := must[*pipeline.Engine](t)(pipeline.WithoutDevice(cfg, []*model.DeviceLayer{{}}, o))
	form := &snapshotForm{e.Fingerprint(), uint64(o.MaxTokens), []snapshotPool{windowPool}}
	head := form.head(form.maxTokens, 0)
	for _, n := range []int{0, 5 << 20, 40<<20 + 1} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := e.ReadSnapshot(io.MultiReader(bytes.NewReader(head), io.LimitReader(zeros{}, int64(n))))
		runtime.ReadMemStats(&after)
		assert.ErrorIs(t, err, pipeline.ErrSnapshot)
		assert.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(n+(2<<20)), "bytes allocated for %d", n)
	}
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// small is a model of one small layer, and what its sessions are saved with.
func small() (model.Config, pipeline.EngineOptions) {
	cfg := fakemodel.Config(0)
	cfg.Hidden, cfg.Heads, cfg.Groups, cfg.QRank, cfg.ORank = 8, 1, 1, 16, 16
	return cfg, pipeline.EngineOptions{MaxTokens: 1 << 14, Rewind: 1 << 10, MaxSessions: 3}
}

// smallEngine makes an engine of the small model, which is written to a folder.
func smallEngine(t *testing.T) (e *pipeline.Engine, dir string) {
	t.Helper()
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, o := small()
	dir = written(t, fake(t, fakemodel.Options{Config: cfg}))
	_, layers := uploaded(t, dev, dir)
	return engine(t, dev, cfg, layers, o), dir
}

// entries are the names of a folder's files.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(dir)) {
		names = append(names, e.Name())
	}
	return names
}

// TestSaveFile saves to files, refuses what are none, and leaves no file where it fails.
// TestReplaceKilled of internal/files kills processes that do so.
func TestSaveFile(t *testing.T) {
	e, _ := smallEngine(t)
	s := must[*pipeline.Session](t)(e.Open())
	require.NoError(t, s.Advance(t.Context(), 300))
	dir := t.TempDir()
	path := filepath.Join(dir, "session")
	require.NoError(t, s.SaveFile(t.Context(), path))
	var want bytes.Buffer
	require.NoError(t, s.Save(t.Context(), &want))
	assert.True(t, bytes.Equal(want.Bytes(), must[[]byte](t)(os.ReadFile(path))))
	back := must[*pipeline.Session](t)(e.RestoreFile(t.Context(), path))
	assert.Equal(t, 300, back.Len())
	assert.NoError(t, back.Close())

	ended, end := context.WithCancel(t.Context())
	end()
	assert.ErrorIs(t, s.SaveFile(ended, path), context.Canceled)
	assert.ErrorIs(t, failure(e.RestoreFile(ended, path)), context.Canceled)
	assert.ErrorIs(t, s.SaveFile(t.Context(), dir), fs.ErrInvalid)
	assert.ErrorIs(t, failure(e.RestoreFile(t.Context(), dir)), fs.ErrInvalid)
	assert.ErrorIs(t, s.SaveFile(t.Context(), filepath.Join(dir, "none", "session")), fs.ErrNotExist)
	assert.ErrorIs(t, failure(e.RestoreFile(t.Context(), filepath.Join(dir, "none"))), fs.ErrNotExist)
	bad := filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(bad, want.Bytes()[:1000], 0o600))
	err := failure(e.RestoreFile(t.Context(), bad))
	assert.ErrorIs(t, err, pipeline.ErrSnapshot)
	assert.ErrorContains(t, err, bad)
	assert.Equal(t, []string{"bad", "session"}, entries(t, dir))
	assert.True(t, bytes.Equal(want.Bytes(), must[[]byte](t)(os.ReadFile(path))))
	require.NoError(t, s.Close())
	err = s.SaveFile(t.Context(), path)
	assert.ErrorIs(t, err, vk.ErrClosed)
	assert.True(t, strings.Count(err.Error(), "save session") == 1, "%v", err)
	assert.Equal(t, []string{"bad", "session"}, entries(t, dir))
}
