//go:build linux

package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// life is an engine with a layer of each kind, from its beginning to its end, and what it gives.
type life struct {
	t      *testing.T
	path   string // of the checkpoint
	dev    *vk.Device
	cfg    model.Config
	layers []*model.DeviceLayer
	e      *pipeline.Engine
	out    [][]float32 // of every append, one layer after the other
	saved  []byte
	failed []error // what was tried again
}

const lifeTokens = 180

// checkpoint writes the model of all lives.
func checkpoint(t *testing.T) string {
	m, err := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0, 4, 128), Storage: fakemodel.FP8, Seed: 5})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	return dir
}

// hidden are the inputs of so many tokens from one on, which depend on nothing but their positions.
func (l *life) hidden(at, n, salt int) [][]float32 {
	h := make([][]float32, len(l.layers))
	for i := range h {
		for k := range n {
			rng := rand.New(rand.NewPCG(uint64(i), uint64(at+k+1000*salt)))
			for range l.cfg.Hidden {
				h[i] = append(h[i], float32(rng.NormFloat64()))
			}
		}
	}
	return h
}

// lost is what ends a life: the device is gone.
type lost struct{ err error }

// try does something until it succeeds. Faults come once, so the second time has to; a lost device
// ends the life.
func (l *life) try(what string, f func() error) {
	for range 2 {
		err := f()
		if err == nil {
			return
		}
		if !typed(err) {
			l.t.Errorf("%s: error of no known kind: %v", what, err)
		}
		l.failed = append(l.failed, err)
		if errors.Is(err, vk.ErrDeviceLost) {
			panic(lost{err})
		}
	}
	l.t.Fatalf("%s fails again after one fault: %v", what, l.failed)
}

// typed reports whether an error matches one that callers can act on.
func typed(err error) bool {
	for _, kind := range []error{vk.ErrOutOfHostMemory, vk.ErrOutOfDeviceMemory, vk.ErrDeviceLost, vk.ErrDriver, cache.ErrPoolFull,
		vk.ErrNoDevice} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// append appends tokens to a session, and what is left of them after an error.
func (l *life) append(s *pipeline.Session, n, salt int) {
	at := s.Len()
	end, out := at+n, make([][]float32, len(l.layers))
	l.try("append", func() error {
		got, err := s.Append(context.Background(), l.hidden(s.Len(), end-s.Len(), salt))
		for i := range got {
			out[i] = append(out[i], got[i].Out...)
		}
		return err
	})
	require.Equal(l.t, end, s.Len())
	l.out = append(l.out, out...)
}

func (l *life) openDevice() {
	ctx := context.Background()
	c, err := model.Open(l.path, model.CheckpointOptions{})
	require.NoError(l.t, err)
	defer c.Close()
	l.cfg = c.Config
	l.try("upload", func() (err error) {
		l.layers, err = c.Upload(ctx, l.dev, nil)
		return err
	})
}

func (l *life) openEngine() {
	l.try("new engine", func() (err error) {
		l.e, err = pipeline.NewEngine(context.Background(), l.dev, l.cfg, l.layers,
			pipeline.EngineOptions{MaxTokens: 512, MaxSessions: 4, MaxStep: 16, CacheBytes: 1 << 20, Rewind: 8})
		return err
	})
}

// run lives: prompts, decode, forks, truncation, growth, saving and restoring.
func (l *life) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			x, ok := r.(lost)
			if !ok {
				panic(r)
			}
			err = x.err
		}
	}()
	ctx := context.Background()
	l.openDevice()
	l.openEngine()
	open := func(what string, f func() (*pipeline.Session, error)) (s *pipeline.Session) {
		l.try(what, func() (err error) {
			s, err = f()
			return err
		})
		return s
	}
	a := open("open", l.e.Open)
	l.append(a, 21, 0)
	b := open("fork", a.Fork)
	l.append(a, 1, 0)
	l.append(b, 3, 1)
	l.try("truncate", func() error { return b.Truncate(22) })
	l.append(b, 2, 2)
	l.append(a, lifeTokens-a.Len(), 0)
	l.try("save", func() error {
		var w bytes.Buffer
		err := a.Save(ctx, &w)
		if err == nil {
			l.saved = w.Bytes()
		}
		return err
	})
	l.restore()
	l.try("close session", b.Close)
	l.append(a, 1, 0)
	return nil
}

// restore continues what was saved.
func (l *life) restore() {
	var c *pipeline.Session
	l.try("restore", func() (err error) {
		c, err = l.e.Restore(context.Background(), bytes.NewReader(l.saved))
		return err
	})
	l.append(c, 2, 3)
	l.try("close session", c.Close)
}

// end closes everything but the device.
func (l *life) end() {
	_ = l.e.Close() // after a fault it may say what it was
	for _, w := range l.layers {
		_ = w.Close()
	}
	l.e, l.layers = nil, nil
}

// same demands the outputs of another life.
func (l *life) same(want [][]float32) {
	require.Len(l.t, l.out, len(want))
	for i := range want {
		require.Equal(l.t, len(want[i]), len(l.out[i]), "outputs %d", i)
		for k := range want[i] {
			if l.out[i][k] != want[i][k] {
				l.t.Fatalf("outputs %d: number %d is %v, without a fault %v", i, k, l.out[i][k], want[i][k])
			}
		}
	}
}

// all reports whether every place where a fault can come is tried.
func all() bool { return os.Getenv("VKMLA_TEST_FAULTS") == "all" }

// kinds are the kinds of calls, of n, that a test lets fail: so many at random, or all.
func kinds(n, few int) []int {
	list := rand.Perm(n)
	if !all() {
		list = list[:few]
	}
	return list
}

// places are the calls, of n, that a test lets fail: one at random, or all.
func places(n int) []int {
	switch {
	case n < 1:
		return nil
	case !all():
		return []int{rand.IntN(n)}
	}
	const most = 600 // polls are more than that; any of them is like its neighbours
	each := make([]int, min(n, most))
	for i := range each {
		each[i] = i * n / len(each)
	}
	return each
}

// TestEveryCall lets each fallible call fail in turn: typed errors, the same bits after trying
// again, nothing left behind.
func TestEveryCall(t *testing.T) {
	path := checkpoint(t)
	clean, calls := cleanLife(t, path)
	injected := 0
	for _, call := range kinds(len(calls), 6) {
		name, n := faults.Calls[call], calls[call]
		if name == "vkCreateDevice" || name == "vkCreateInstance" || name == "vkEnumeratePhysicalDevices" {
			continue // before there is a device: TestOpening
		}
		for _, at := range places(n) {
			code := int32(faults.OutOfHostMemory)
			if at%2 == 0 {
				code = faults.OutOfDeviceMemory
			}
			injected++
			t.Run(fmt.Sprintf("%s/%d", name, at), func(t *testing.T) {
				d := open(t, vk.DeviceOptions{})
				before := interposer.Live()
				l := life{t: t, path: path, dev: d}
				interposer.Fail(call, at, code, false)
				err := l.run()
				interposer.Mend()
				if _, hit := interposer.Hit(); !hit {
					return
				}
				require.NoError(t, err, "call %d", at)
				l.same(clean)
				l.end()
				require.NoError(t, d.Close(), "call %d: left behind", at)
				after := interposer.Live()
				assert.LessOrEqual(t, after["buffer"], before["buffer"], "call %d: buffers", at)
				assert.LessOrEqual(t, after["memory"], before["memory"], "call %d: memory", at)
				assert.LessOrEqual(t, after["fence"], before["fence"], "call %d: fences", at)
				assert.Zero(t, interposer.Orphans(), "call %d: fences in flight destroyed", at)
			})
		}
	}
	t.Logf("%d faults", injected)
}

// cleanLife lives without faults, and counts the calls.
func cleanLife(t *testing.T, path string) (out [][]float32, calls []int) {
	d := open(t, vk.DeviceOptions{})
	calls = make([]int, len(faults.Calls))
	for i := range calls {
		calls[i] = -interposer.Seen(i)
	}
	l := life{t: t, path: path, dev: d}
	require.NoError(t, l.run())
	for i := range calls {
		calls[i] += interposer.Seen(i)
	}
	l.end()
	require.NoError(t, d.Close())
	return l.out, calls
}

// TestLoss loses the device at each submission, wait and status: a typed error, and another device
// in the same process continues what was saved, with the same bits.
func TestLoss(t *testing.T) {
	path := checkpoint(t)
	clean, calls := cleanLife(t, path)
	waits := []string{"vkQueueSubmit", "vkWaitForFences", "vkGetFenceStatus"}
	for _, i := range kinds(len(waits), 1) {
		call := slices.Index(faults.Calls, waits[i])
		n := calls[call]
		for _, at := range places(n) {
			t.Run(fmt.Sprintf("%s/%d", faults.Calls[call], at), func(t *testing.T) {
				d := open(t, vk.DeviceOptions{})
				l := life{t: t, path: path, dev: d}
				interposer.Fail(call, at, faults.DeviceLost, true)
				err := l.run()
				_, hit := interposer.Hit()
				if !hit {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, vk.ErrDeviceLost)
				assert.ErrorIs(t, d.Err(), vk.ErrDeviceLost)
				l.end()
				_ = d.Close()
				assert.Empty(t, d.MemoryInUse(), "call %d", at)

				again := life{t: t, path: path, dev: open(t, vk.DeviceOptions{}), saved: l.saved}
				if again.saved == nil {
					require.NoError(t, again.run())
					again.same(clean)
				} else {
					again.openDevice()
					again.openEngine()
					again.restore()
					again.same(clean[len(clean)-2*len(again.layers) : len(clean)-len(again.layers)])
				}
				again.end()
				require.NoError(t, again.dev.Close())
			})
		}
	}
}

// asks is how often somebody has waited for a fence or looked at one.
func asks() int {
	return interposer.Seen(slices.Index(faults.Calls, "vkGetFenceStatus")) + interposer.Seen(slices.Index(faults.Calls, "vkWaitForFences"))
}

// On a device that hangs a call ends with its context, and those that only look answer meanwhile.
func TestHungEngine(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	l := life{t: t, path: checkpoint(t), dev: d}
	l.openDevice()
	l.openEngine()
	s, err := l.e.Open()
	require.NoError(t, err)
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
		"advance, growing": func(ctx context.Context) error { return s.Advance(ctx, 400) },
		"new engine": func(ctx context.Context) error {
			_, err := pipeline.NewEngine(ctx, d, l.cfg, l.layers, pipeline.EngineOptions{MaxTokens: 64})
			return err
		},
		"upload": func(ctx context.Context) error {
			c, err := model.Open(l.path, model.CheckpointOptions{})
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
			looked := make(chan int)
			go func() {
				_, _ = l.e.Memory(), l.e.Longest()
				looked <- s.Len()
			}()
			select {
			case n := <-looked:
				assert.Equal(t, 21, n)
			case <-time.After(time.Minute):
				t.Error("those that only look wait")
			}
			start := time.Now()
			cancel()
			select {
			case err := <-done:
				assert.ErrorIs(t, err, context.Canceled)
				if all() {
					assert.Less(t, time.Since(start), time.Second)
				}
			case <-time.After(time.Minute):
				t.Error("does not return")
			}
		})
	}
	l.out = nil
	l.append(s, 1, 0)
	l.same(want)
	require.NoError(t, fork.Close())
	l.end()
	require.NoError(t, d.Close())
	assert.Empty(t, d.MemoryInUse())
}

// A step that is given up gets no more of the device than the two parts that it has, and the next
// one has the bits that it would have had.
func TestCancelledStep(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	l := life{t: t, path: checkpoint(t), dev: d}
	l.openDevice()
	var err error
	l.e, err = pipeline.NewEngine(context.Background(), d, l.cfg, l.layers,
		pipeline.EngineOptions{MaxTokens: 64, MaxSessions: 2, SubmitBudget: 1})
	require.NoError(t, err)
	s, err := l.e.Open()
	require.NoError(t, err)
	l.append(s, 21, 0)
	fork, err := s.Fork()
	require.NoError(t, err)
	l.append(fork, 5, 0)
	want := l.out[len(l.out)-len(l.layers):]
	require.NoError(t, fork.Close())

	submit := slices.Index(faults.Calls, "vkQueueSubmit")
	for range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		st, err := l.e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 5})
		require.NoError(t, err)
		for i, h := range l.hidden(21, 5, 0) {
			require.NoError(t, st.SetInput(i, 0, h))
		}
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
	l.end()
	require.NoError(t, d.Close())
}
