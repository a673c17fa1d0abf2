//go:build linux

package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/faults"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// asks returns how often a fence was waited for or looked at.
func asks() int {
	return interposer.Seen(slices.Index(faults.Calls, "vkGetFenceStatus")) + interposer.Seen(slices.Index(faults.Calls, "vkWaitForFences"))
}

// On a device that hangs a call ends with its context. Meanwhile those that need no device get
// their turn: they look, open, fork, truncate and close sessions, but not the one that grows.
func TestHungEngine(t *testing.T) {
	each(t, hungEngine)
}

func hungEngine(t *testing.T, fake *fake) {
	d := open(t, vk.DeviceOptions{Staging: true}) // which submits to transfer
	l := begun(t, fake, d)
	s := l.open()
	l.append(s, 21, 0)
	var saved bytes.Buffer
	require.NoError(t, s.Save(context.Background(), &saved))
	fork, err := s.Fork()
	require.NoError(t, err)
	l.append(fork, 1, 0)
	want := l.out[len(l.out)-len(l.layers):]

	bounded := map[string]func(context.Context) error{
		"save": func(ctx context.Context) error { return s.Save(ctx, &bytes.Buffer{}) },
		"restore": func(ctx context.Context) error {
			_, err := l.e.Restore(ctx, bytes.NewReader(saved.Bytes()))
			return err
		},
		"append, pages to copy": func(ctx context.Context) error {
			_, err := s.Append(ctx, l.hidden(s.Len(), 1, 0))
			return err
		},
		"append, another size": func(ctx context.Context) error {
			_, err := s.Append(ctx, l.hidden(s.Len(), 9, 0))
			return err
		},
		"advance, growing": func(ctx context.Context) error { // it gets tokens until the caches grow
			x, err := s.Fork()
			require.NoError(t, err)
			return errors.Join(probe.Advance(ctx, x, 400), x.Close())
		},
		"new engine": func(ctx context.Context) error {
			_, err := pipeline.NewEngine(ctx, d, l.cfg, l.layers, pipeline.EngineOptions{MaxTokens: 64, Records: fake.records})
			return err
		},
		"upload": func(ctx context.Context) error {
			c, err := model.Open(l.model.path, model.CheckpointOptions{})
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Upload(ctx, d, nil)
			return err
		},
	}
	for name, call := range bounded {
		t.Run(name, func(t *testing.T) {
			defer interposer.Mend()
			interposer.Hang()
			asked := asks()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			for asks() == asked {
				time.Sleep(time.Millisecond)
			}
			beside := make(chan error)
			go func() { beside <- l.beside(s, fork) }()
			assert.NoError(t, inTime(t, beside), "those that need no device")
			cancel()
			assert.ErrorIs(t, inTime(t, done), context.Canceled)
		})
	}
	l.out = nil
	l.append(s, 1, 0)
	l.same(want)
	require.NoError(t, fork.Close())
	l.close()
}

// Nor does anybody wait for an engine that closes while the device is busy.
func TestHungEngineClose(t *testing.T) { each(t, hungEngineClose) }

func hungEngineClose(t *testing.T, fake *fake) {
	l := begun(t, fake, open(t, vk.DeviceOptions{}))
	s := l.open()
	st := l.begin(context.Background(), s, 1, 0)
	interposer.Hang()
	require.NoError(t, st.Submit())
	closed := make(chan error, 1)
	go func() { closed <- l.e.Close() }()
	looked := make(chan error)
	go func() {
		_, err := l.e.Open()
		for ; !errors.Is(err, vk.ErrClosed); _, err = l.e.Open() { // until Close has begun
			time.Sleep(time.Millisecond)
		}
		_, _ = l.e.Memory(), s.Len()
		looked <- err
	}()
	assert.ErrorIs(t, inTime(t, looked), vk.ErrClosed)
	interposer.Mend()
	assert.NoError(t, <-closed)
	l.close()
}

// An engine that is closed just when a layer of a new size is there keeps nothing of it. The layer
// is one that has memory of its own: its index heads are fewer than a kernel's rows.
func TestCloseBesideNewSize(t *testing.T) {
	m := fakemodel.New(fakemodel.Options{Config: fakemodel.Tiny(4), Storage: fakemodel.FP8, Seed: 5})
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	d := open(t, vk.DeviceOptions{})
	l := life{t: t, model: &fake{path: dir}, dev: d}
	l.openDevice()
	inUse, late := d.MemoryInUse(), 0
	for rounds := 0; rounds < 20 || late == 0 && rounds < 1000; rounds++ {
		l.openEngine()
		e, before := l.e, asks()
		interposer.Hang()
		prepared, closed := make(chan error, 1), make(chan error, 1)
		go func() { prepared <- e.Prepare(context.Background(), 3) }()
		for asks() == before {
			time.Sleep(time.Millisecond)
		}
		go func() { closed <- e.Close() }()
		for range 4 { // so that neither has the engine's lock at once
			go func() {
				for e.Memory().Caches > 0 {
				}
			}()
		}
		interposer.Mend()
		if err := <-prepared; err != nil {
			assert.ErrorIs(t, err, vk.ErrClosed)
			late++
		}
		assert.NoError(t, <-closed)
		require.Equal(t, inUse, d.MemoryInUse())
	}
	assert.Positive(t, late)
	l.close()
}

// divided returns a life with an engine whose steps go in as many parts as can be, and a session of
// 21 tokens.
func divided(t *testing.T, d *vk.Device, model *fake) (*life, *pipeline.Session) {
	l := &life{t: t, model: model, dev: d}
	l.openDevice()
	var err error
	l.e, err = pipeline.NewEngine(context.Background(), d, l.cfg, l.layers,
		pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 2, Records: model.records})
	require.NoError(t, err)
	probe.SetBudget(l.e, 1)
	s := l.open()
	l.append(s, 21, 0)
	return l, s
}

// A layer that the device did not get whole fails its step, whatever was submitted after it, and
// the step has its bits when it is tried again. The session's last row is of a step of the same
// size, so that what runs without the metadata of its own step overwrites it.
func TestLayerBrokenOff(t *testing.T) {
	reset, rng := slices.Index(faults.Calls, "vkResetFences"), chance(t)
	each(t, func(t *testing.T, model *fake) {
		l, s := divided(t, open(t, vk.DeviceOptions{}), model)
		calls := 0 // of the last step
		step := func(fault func()) [][]float32 {
			fork, err := s.Fork()
			require.NoError(t, err)
			l.append(fork, 1, 0)
			l.out = nil
			fault()
			before := interposer.Seen(reset)
			l.around(fork, func() {})
			calls = interposer.Seen(reset) - before
			interposer.Mend()
			require.NoError(t, fork.Close())
			return l.out
		}
		step(func() {}) // which records and measures
		want := step(func() {})
		const inMetadata = 5 // a place where the step's metadata is not made yet
		n := calls
		for _, at := range append(places(rng, n, n), inMetadata) {
			l.failed = nil
			step(func() { interposer.Fail(reset, at, faults.OutOfHostMemory, false) })
			assert.Len(t, l.failed, 1, "place %d of %d", at, n)
			l.same(want)
		}
		require.NoError(t, s.Close())
		l.close()
	})
}

// beside does all that needs no device while a call for a session waits for it.
func (l *life) beside(busy, other *pipeline.Session) error {
	_, _ = l.e.Memory(), l.e.Stats().Longest
	if n := busy.Len(); n != 21 {
		return fmt.Errorf("%d tokens, want 21", n)
	}
	fork, err := other.Fork()
	if err != nil {
		return err
	}
	err = errors.Join(fork.Truncate(20), other.Truncate(22), fork.Close(), busy.Truncate(21))
	if errors.Is(err, pipeline.ErrInStep) {
		err = nil
	}
	fresh, openErr := l.e.Open()
	return errors.Join(err, openErr, fresh.Truncate(0), fresh.Close())
}

// A step that is given up gets no more of the device than the two parts that it has, and the next
// one has the bits that it would have had.
func TestCancelledStep(t *testing.T) { each(t, cancelledStep) }

func cancelledStep(t *testing.T, fake *fake) {
	l, s := divided(t, open(t, vk.DeviceOptions{}), fake)
	fork, err := s.Fork()
	require.NoError(t, err)
	l.append(fork, 5, 0)
	want := l.out[len(l.out)-len(l.layers):]
	require.NoError(t, fork.Close())

	submit := slices.Index(faults.Calls, "vkQueueSubmit")
	for range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		st := l.begin(ctx, s, 5, 0)
		interposer.Hang()
		before := interposer.Seen(submit)
		require.NoError(t, st.Submit())
		cancel()
		assert.ErrorIs(t, st.Wait(ctx), context.Canceled)
		interposer.Mend()
		require.NoError(t, l.e.Prepare(context.Background(), 1), "waits for what the device has")
		assert.LessOrEqual(t, interposer.Seen(submit)-before, 2)
	}
	l.out = nil
	l.append(s, 5, 0)
	l.same(want)
	l.close()
}
