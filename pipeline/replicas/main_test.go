package replicas_test

import (
	"context"
	"fmt"
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
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

const (
	vocabulary = 40 // different tokens: each has its hidden states
	longest    = 200
)

// world is a model on two devices, and what an engine of its own gives for sequences.
type world struct {
	cfg    model.Config
	devs   []*vk.Device
	layers [][]*model.DeviceLayer // of each device
	hidden [][]float32            // of each token
	alone  *pipeline.Engine
	known  []known // what it gave
}

// known are sequences and what an engine alone gives for each token.
type known struct {
	tokens []int32
	rows   [][]float32
}

// TestReplicas runs all tests that need devices with the same two. Pages are small, so that short
// sequences take several.
func TestReplicas(t *testing.T) {
	t.Run("v4", func(t *testing.T) { testReplicas(t, fakemodel.Tiny(4), map[string]int{"window": 16, "c4a": 16}) })
	t.Run("v41", func(t *testing.T) {
		if os.Getenv("VKMLA_TEST_FULL") != "1" {
			t.Skip("VKMLA_TEST_FULL is not set")
		}
		testReplicas(t, fakemodel.TinyV41(), map[string]int{"window": 8, "ratio1": 16, "ratio2": 16, "ratio2.state": 4})
	})
}

func testReplicas(t *testing.T, cfg model.Config, pages map[string]int) {
	w := newWorld(t, cfg, pages)
	for _, x := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"arguments", arguments}, {"open", open}, {"room", room}, {"lead", lead}, {"store", store}, {"moves", moves}, {"full", full},
		{"step errors", stepErrors}, {"snapshots", snapshots}, {"random", chances}, {"loops", loops}, {"drafts", drafts}, {"closed", closed},
	} {
		t.Run(x.name, func(t *testing.T) { x.test(t, w) })
	}
}

func newWorld(t *testing.T, cfg model.Config, pages map[string]int) *world {
	first := testkit.Device(t)
	second := testkit.Others(t)[0]
	m := must[*fakemodel.Model](t)(fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8}))
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	c := must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{}))
	defer c.Close()
	w := &world{cfg: fakemodel.Paged(c.Config, pages), devs: []*vk.Device{first, second}}
	for _, d := range w.devs {
		layers := must[[]*model.DeviceLayer](t)(c.Upload(t.Context(), d, nil))
		w.layers = append(w.layers, layers)
		t.Cleanup(func() { assert.NoError(t, model.CloseLayers(layers)) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range vocabulary {
		row := make([]float32, w.cfg.Hidden)
		for i := range row {
			row[i] = float32(rng.NormFloat64())
		}
		w.hidden = append(w.hidden, row)
	}
	w.alone = w.engine(t, 0, pipeline.EngineOptions{})
	return w
}

// engine makes an engine on a device. Sessions of all give the same bits.
func (w *world) engine(t testing.TB, device int, o pipeline.EngineOptions) *pipeline.Engine {
	t.Helper()
	o.MaxTokens, o.MaxStep, o.Invariant = longest, 16, true
	e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), w.devs[device], w.cfg, w.layers[device], o))
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	return e
}

// group makes a replica on each device.
func (w *world) group(t testing.TB, o pipeline.EngineOptions, ro replicas.Options) *replicas.Group {
	t.Helper()
	if o.MaxCacheBytes == 0 { // what is free of a machine's memory changes all the time
		o.CacheBytes, o.MaxCacheBytes = 8<<20, 64<<20
	}
	var list []replicas.Replica
	for i, d := range w.devs {
		list = append(list, replicas.Replica{Engine: w.engine(t, i, o), Device: d, MaxCacheBytes: o.MaxCacheBytes})
	}
	ro.Rewind = o.Rewind
	return must[*replicas.Group](t)(replicas.New(list, ro))
}

// states are the hidden states of tokens.
func (w *world) states(tokens []int32) (values []float32) {
	for _, id := range tokens {
		values = append(values, w.hidden[id]...)
	}
	return values
}

// want returns the outputs of an engine alone for each token of a sequence.
func (w *world) want(t testing.TB, tokens []int32) [][]float32 {
	t.Helper()
	for _, k := range w.known {
		if len(tokens) <= len(k.tokens) && slices.Equal(tokens, k.tokens[:len(tokens)]) {
			return k.rows[:len(tokens)]
		}
	}
	s := must[*pipeline.Session](t)(w.alone.Open())
	defer s.Close()
	got := must[[]pipeline.Appended](t)(s.Append(t.Context(), slices.Repeat([][]float32{w.states(tokens)}, len(w.layers[0]))))
	rows := make([][]float32, len(tokens))
	for _, layer := range got {
		for i := range rows {
			rows[i] = append(rows[i], layer.Out[i*w.cfg.Hidden:][:w.cfg.Hidden]...)
		}
	}
	w.known = append(w.known, known{tokens, rows})
	return rows
}

// through takes a part through the layers and leaves what they give for each token in rows.
func (w *world) through(chunks []replicas.Chunk, rows [][][]float32) func(context.Context, replicas.Part) error {
	return func(ctx context.Context, p replicas.Part) error {
		n := len(w.layers[0])
		for i, k := range p.Chunks {
			for l := range n {
				if err := p.Step.SetInput(l, i, w.states(chunks[k].Tokens)); err != nil {
					return err
				}
			}
		}
		if err := p.Step.Run(ctx); err != nil {
			return err
		}
		for i, k := range p.Chunks {
			rows[k] = make([][]float32, len(chunks[k].Tokens))
			for l := range n {
				out := make([]float32, len(chunks[k].Tokens)*w.cfg.Hidden)
				if err := p.Step.ReadOutput(l, i, out); err != nil {
					return err
				}
				for j := range rows[k] {
					rows[k][j] = append(rows[k][j], out[j*w.cfg.Hidden:][:w.cfg.Hidden]...)
				}
			}
		}
		return nil
	}
}

// step runs chunks and returns what the layers gave for each token of each.
func (w *world) step(ctx context.Context, g *replicas.Group, chunks ...replicas.Chunk) ([][][]float32, error) {
	rows := make([][][]float32, len(chunks))
	return rows, g.Step(ctx, w.through(chunks, rows), chunks...)
}

// extend takes tokens through the layers, a session at a time, in pieces.
func (w *world) extend(t testing.TB, g *replicas.Group, s *replicas.Session, tokens []int32) (rows [][]float32) {
	t.Helper()
	for piece := range slices.Chunk(tokens, 16) {
		got, err := w.step(t.Context(), g, replicas.Chunk{Session: s, Tokens: piece})
		require.NoError(t, err)
		rows = append(rows, got[0]...)
	}
	return rows
}

// same demands what an engine alone gives for the last tokens of a session.
func (w *world) same(t testing.TB, s *replicas.Session, rows [][]float32) {
	t.Helper()
	want := w.want(t, s.Tokens())
	require.Equal(t, s.Len(), len(want))
	for i, row := range want[len(want)-len(rows):] {
		require.True(t, slices.Equal(row, rows[i]), "token %d of %d", len(want)-len(rows)+i, len(want))
	}
}

// opened opens a session, which has n tokens and is on a replica.
func opened(t testing.TB, g *replicas.Group, tokens []int32, n, replica int) *replicas.Session {
	t.Helper()
	s, got, err := g.Open(t.Context(), tokens)
	require.NoError(t, err)
	require.Equal(t, []int{n, n, replica}, []int{got, s.Len(), s.Replica()}, "tokens, of the session, and its replica")
	require.True(t, slices.Equal(tokens[:n], s.Tokens()))
	return s
}

// sequence makes random tokens.
func sequence(seed uint64, n int) []int32 {
	rng, tokens := rand.New(rand.NewPCG(seed, 3)), make([]int32, n)
	for i := range tokens {
		tokens[i] = rng.Int32N(vocabulary)
	}
	return tokens
}

// dropped closes sessions.
func dropped(t testing.TB, list ...*replicas.Session) {
	t.Helper()
	for _, s := range list {
		require.NoError(t, s.Close())
	}
}

var errTest = fmt.Errorf("of the test")
