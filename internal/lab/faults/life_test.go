//go:build linux

package faults_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// life is an engine with a layer of each kind, from its beginning to its end, and what it gives.
type life struct {
	t      *testing.T
	model  *fake
	dev    *vk.Device
	cfg    model.Config
	layers []*model.DeviceLayer
	e      *pipeline.Engine
	out    [][]float32 // of every append, one layer after the other
	saved  []byte
	failed []error // what was tried again
}

// fake is the model of all lives.
type fake struct {
	path    string        // of the checkpoint
	records model.Records // of its engines; 0: as the checkpoint says
	past    []byte        // a snapshot of pastTokens tokens
}

// pastTokens end in the first group of 128, so that a few tokens more complete it, and in the
// middle of a group of two.
const pastTokens = 125

// made are the models that tests have asked for.
var made = map[string]*fake{}

// Names of models: as small as layers of each kind can be, and of DeepSeek-V4.1 of each role, whose
// layers share entries, picks and candidates. The last one keeps them in V4's records.
const v4, v41, v41InV4 = "v4", "v41", "v41 in v4 records"

var names = []string{v4, v41, v41InV4}

// checkpointOf writes a model by its name, and appends pastTokens tokens.
func checkpointOf(t *testing.T, name string) *fake {
	if made[name] != nil {
		return made[name]
	}
	cfg, records := fakemodel.TinyV41(), model.RecordsV41
	switch name {
	case v4:
		cfg, records = fakemodel.Tiny(0, 4, 128), model.RecordsV4
	case v41InV4:
		records = model.RecordsV4
	}
	m := fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8, Seed: 5})
	dir := filepath.Join(folder, name)
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, m.Write(dir, 1))
	l := begun(t, &fake{path: dir, records: records}, open(t, vk.DeviceOptions{}))
	s := l.open()
	l.append(s, pastTokens, 4)
	var past bytes.Buffer
	require.NoError(t, s.Save(context.Background(), &past))
	l.close()
	l.model.past = past.Bytes()
	made[name] = l.model
	return l.model
}

// begun returns a life with its engine.
func begun(t *testing.T, model *fake, dev *vk.Device) *life {
	l := &life{t: t, model: model, dev: dev}
	l.openDevice()
	l.openEngine()
	return l
}

// open opens a session.
func (l *life) open() *pipeline.Session {
	s, err := l.e.Open()
	require.NoError(l.t, err)
	return s
}

// begin begins a step of a session's next n tokens, with their inputs.
func (l *life) begin(ctx context.Context, s *pipeline.Session, n, salt int) *pipeline.Step {
	st, err := l.e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: n})
	require.NoError(l.t, err)
	for i, h := range l.hidden(s.Len(), n, salt) {
		require.NoError(l.t, st.SetInput(i, 0, h))
	}
	return st
}

// hidden returns the inputs of n tokens from one on, which depend on nothing but their
// positions.
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

// lost ends a life: the device is gone.
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

// around appends a token to a session, in a step that is in progress while something else is done.
func (l *life) around(s *pipeline.Session, beside func()) {
	ctx, at, in := context.Background(), s.Len(), l.hidden(s.Len(), 1, 0)
	var st *pipeline.Step
	begin := func() (err error) {
		if st, err = l.e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}); err != nil {
			return err
		}
		for i, h := range in {
			err = errors.Join(err, st.SetInput(i, 0, h))
		}
		if err == nil {
			err = st.SubmitLayer(0)
		}
		return l.keep(&st, err)
	}
	l.try("begin", begin)
	beside()
	out := make([][]float32, len(in))
	l.try("finish", func() (err error) {
		if st == nil {
			err = begin()
		}
		for i := 1; i < len(in) && err == nil; i++ {
			err = st.SubmitLayer(i)
		}
		if err == nil {
			err = st.Wait(ctx)
		}
		for i := 0; i < len(in) && err == nil; i++ {
			out[i] = make([]float32, l.cfg.Hidden)
			err = st.ReadOutput(i, 0, out[i])
		}
		if err == nil {
			err = st.Commit()
		}
		return l.keep(&st, err)
	})
	require.Equal(l.t, at+1, s.Len())
	l.out = append(l.out, out...)
}

// keep gives a step up after an error.
func (l *life) keep(st **pipeline.Step, err error) error {
	if err != nil {
		err = errors.Join(err, (*st).Abort())
		*st = nil
	}
	return err
}

func (l *life) openDevice() {
	ctx := context.Background()
	c, err := model.Open(l.model.path, model.CheckpointOptions{})
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
			pipeline.EngineOptions{MaxTokens: 512, MaxSessions: 5, MaxStep: 4, CacheBytes: 1 << 20, Rewind: 8,
				Records: l.model.records})
		return err
	})
}

// run lives: prompts, decode, forks, truncation, growth, saving and restoring, and sessions that
// come and go beside a step.
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
	l.append(a, 9, 0)
	b := open("fork", a.Fork)
	l.append(a, 1, 0)
	l.append(b, 3, 1)
	l.try("truncate", func() error { return b.Truncate(10) })
	l.append(b, 3, 2)
	small := l.e.Memory().Caches
	c := l.restore(l.model.past, morePast)
	require.Greater(l.t, l.e.Memory().Caches, small, "growth")
	l.try("save", func() error {
		var w bytes.Buffer
		err := c.Save(ctx, &w)
		if err == nil {
			l.saved = w.Bytes()
		}
		return err
	})
	d := l.restore(l.saved, moreSaved)
	l.try("close session", d.Close)
	l.around(a, func() {
		f := open("fork", b.Fork)
		l.try("truncate", func() error { return f.Truncate(0) })
		l.try("close session", f.Close)
	})
	l.try("close session", b.Close)
	l.append(a, 1, 0)
	return nil
}

// more returns what a life appends to a snapshot: n tokens, as its append of a number.
type more struct{ n, salt, number int }

var (
	morePast  = more{4, 0, 4}
	moreSaved = more{1, 3, 5}
)

// restore continues what was saved.
func (l *life) restore(from []byte, m more) (s *pipeline.Session) {
	l.try("restore", func() (err error) {
		s, err = l.e.Restore(context.Background(), bytes.NewReader(from))
		return err
	})
	l.append(s, m.n, m.salt)
	return s
}

// end closes everything but the device.
func (l *life) end() {
	if l.e != nil { // the fault was not before there was one
		_ = l.e.Close() // after a fault it may say what it was
	}
	for _, w := range l.layers {
		_ = w.Close()
	}
	l.e, l.layers = nil, nil
}

// close ends a life and closes its device, on which nothing is left.
func (l *life) close() {
	l.end()
	require.NoError(l.t, l.dev.Close())
	assert.Empty(l.t, l.dev.MemoryInUse())
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
