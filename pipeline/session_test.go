package pipeline_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// sessions is a model with a layer of each kind, and tokens enough to recycle pages of windows and
// states. Package internal/lab/sequences tests what sessions keep and give.
type sessions struct {
	dev    *vk.Device
	cfg    model.Config
	layers []*model.DeviceLayer
	hidden []float32
	pages  map[string]int // slots of engines, by pool
}

// sessionModel is a model whose sessions are tested.
type sessionModel struct {
	name    string
	config  func() model.Config
	records model.Records
}

var (
	v4Sessions = sessionModel{"v4", v4Layers, model.RecordsV4}
	// v41Sessions have a layer of each role. From 25 tokens on not all entries are candidates.
	v41Sessions = sessionModel{"v41", v41Layers, model.RecordsV41}
)

func v4Layers() model.Config { return fakemodel.Config(4, 0, 128) }

func v41Layers() model.Config {
	c := fakemodel.V41()
	s := model.Sources{Entries: []int{0, 3}, Picks: []int{0, 3, 5}, Candidates: 3}
	c.Layers = model.V41Layers(s, 2, 0, 2, 1, 1, 1, 1)
	return c
}

const sessionTokens = 206

func sessionOptions() pipeline.EngineOptions {
	return pipeline.EngineOptions{MaxTokens: sessionTokens, MaxSessions: 4, MaxStep: 40, Rewind: 20, KeepTopK: true, CacheBytes: 64 << 20}
}

// newModel uploads a model to a device.
func newModel(t testing.TB, dev *vk.Device, of *sessionModel) *sessions {
	t.Helper()
	x := &sessions{dev: dev}
	x.cfg, x.layers = uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: of.config(), Storage: fakemodel.FP8})))
	x.cfg.Records = of.records
	x.hidden = normals(sessionTokens * x.cfg.Hidden)
	return x
}

// rounded are numbers as bf16 keeps them.
func rounded(v []float32) []float32 {
	for i, x := range v {
		v[i] = numfmt.BF16Round(x)
	}
	return v
}

// normals are random numbers, the same each time.
func normals(n int) []float32 { return normalsOf(rand.New(rand.NewPCG(8, 9)), n) }

func normalsOf(rng *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

func (x *sessions) engine(t testing.TB, o pipeline.EngineOptions) *pipeline.Engine {
	t.Helper()
	return engine(t, x.dev, fakemodel.Paged(x.cfg, x.pages), x.layers, o)
}

func (x *sessions) tokens(a, b int) []float32 { return x.hidden[a*x.cfg.Hidden : b*x.cfg.Hidden] }

// begin begins a step of the tokens from the session's length on.
func (x *sessions) begin(t testing.TB, e *pipeline.Engine, s *pipeline.Session, n int) *pipeline.Step {
	t.Helper()
	at := s.Len()
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
	for i := range x.layers {
		require.NoError(t, st.SetInput(i, 0, x.tokens(at, at+n)))
	}
	return st
}

func failure[T any](_ T, err error) error { return err }

// interrupted runs a step under a context that has ended. The device may finish before the wait
// begins, where the machine is busy: then once more.
func interrupted(st *pipeline.Step, ended context.Context) (err error) {
	for try := 0; try < 20 && err == nil; try++ {
		err = st.Run(ended)
	}
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestSessionFloor demands that a session can be cut by Rewind tokens below the greatest length
// that it or its origin had since it was empty, and no further.
func TestSessionFloor(t *testing.T) {
	testkit.WithoutMatrices(t)
	x := newModel(t, testkit.Device(t), &v4Sessions)
	e := x.engine(t, sessionOptions())
	s := must[*pipeline.Session](t)(e.Open())
	require.NoError(t, errors.Join(s.Advance(t.Context(), 181), s.Truncate(163)))
	child := must[*pipeline.Session](t)(must[*pipeline.Session](t)(s.Fork()).Fork())
	for _, s := range []*pipeline.Session{s, child} {
		for n, want := range map[int]error{-1: vk.ErrArgument, 164: vk.ErrArgument, 160: pipeline.ErrRewind, 1: pipeline.ErrRewind} {
			assert.ErrorIs(t, s.Truncate(n), want, "%d tokens", n)
		}
		assert.NoError(t, errors.Join(s.Truncate(161), s.Truncate(0), s.Advance(t.Context(), 3), s.Truncate(1)))
	}
}

// TestSessionSaves demands that a session has every page that a snapshot of it is made of, wherever
// in its pages it ends.
func TestSessionSaves(t *testing.T) {
	testkit.WithoutMatrices(t)
	x, o := newModel(t, testkit.Device(t), &v4Sessions), sessionOptions()
	o.Rewind = 0
	s := must[*pipeline.Session](t)(x.engine(t, o).Open())
	for n := 1; n <= sessionTokens; n++ {
		require.NoError(t, errors.Join(s.Advance(t.Context(), 1), s.Save(t.Context(), io.Discard)), "%d tokens", n)
	}
}
