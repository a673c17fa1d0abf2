package pipeline_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestRestore restores sessions where they have less room than where they were saved. It refuses
// older formats, and headers that promise pages that do not follow.
func TestRestore(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	const tokens, rewind = 3000, 2000
	long := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 8192, Rewind: rewind})
	s := must[*pipeline.Session](t)(long.Open())
	var saved bytes.Buffer
	if err := errors.Join(s.Advance(t.Context(), tokens), s.Save(t.Context(), &saved)); err != nil {
		t.Fatal(err)
	}
	short := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 8192, Rewind: 100})
	back, err := short.Restore(t.Context(), bytes.NewReader(saved.Bytes()))
	if err != nil || back.Len() != tokens {
		t.Fatal(err)
	}
	if err := back.Truncate(tokens - 101); !errors.Is(err, pipeline.ErrRewind) {
		t.Errorf("truncated too far: %v", err)
	}
	if err := errors.Join(back.Truncate(tokens-100), back.Advance(t.Context(), 200), back.Close()); err != nil {
		t.Error(err)
	}
	if all, free := short.Pages(); all != free {
		t.Errorf("of %v pages %v are free", all, free)
	}
	// The length and the number of pages of a session of half a million tokens, and no page.
	const length, first, beyond, end = 48, 72 + 24, 72 + 32, 72 + 48
	most := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 1 << 19, Rewind: 1 << 19})
	header := bytes.Clone(saved.Bytes()[:end])
	binary.LittleEndian.PutUint64(header[length:], 1<<19)
	binary.LittleEndian.PutUint64(header[first:], 0)
	binary.LittleEndian.PutUint64(header[beyond:], 1<<19/64)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = most.Restore(t.Context(), bytes.NewReader(header))
	if runtime.ReadMemStats(&after); !errors.Is(err, pipeline.ErrSnapshot) || after.TotalAlloc-before.TotalAlloc > 8<<20 {
		t.Errorf("a header alone: %v, and %d bytes allocated", err, after.TotalAlloc-before.TotalAlloc)
	}
	older := bytes.Clone(saved.Bytes())
	older[8] = 1 // the version
	_, err = short.Restore(t.Context(), bytes.NewReader(older))
	require.ErrorIs(t, err, pipeline.ErrSnapshotVersion)
	require.ErrorIs(t, err, pipeline.ErrSnapshot)
	require.ErrorContains(t, err, "version 1, this package reads version 2")
	if _, err := short.Restore(t.Context(), nil); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("no reader: %v", err)
	}
	if err := s.Save(t.Context(), nil); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("no writer: %v", err)
	}
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
		if err := pool.Upload(ctx, bytes.Repeat([]byte{byte(i), 5, 7}, int(pool.Bytes()))[:pool.Bytes()]); err != nil {
			t.Fatal(err)
		}
	}
	var want, got bytes.Buffer
	if err := errors.Join(s.Advance(ctx, length), s.Save(ctx, &want)); err != nil {
		t.Fatal(err)
	}
	hidden := slices.Repeat([][]float32{filled(cfg.Hidden, float32(1))}, len(layers))
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
	if err != nil || calls < len(changes) || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("saved in %d pieces: %v, or other bytes", calls, err)
	}
	if all, free := e.Pages(); free[0] != all[0]-1 {
		t.Errorf("of %v pages %v are free", all, free)
	}
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
	if err := errors.Join(err, <-stopped); err != nil {
		t.Fatal(err)
	}
	got.Reset()
	if err := back.Save(ctx, &got); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Error("restored beside steps and saved again it is not the same", err)
	}
	short := writerFunc(func(data []byte) (int, error) { return len(data) / 2, nil })
	if err := back.Save(ctx, short); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a writer that takes half: %v", err)
	}
}
