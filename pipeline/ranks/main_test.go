package ranks_test

import (
	"bytes"
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
	"github.com/vkmla/vkmla/pipeline/ranks"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

const tokens = 150 // of a sequence, at most

// world is a model on two devices by its heads, and on one of them whole.
type world struct {
	dir    string
	cfg    model.Config
	devs   []*vk.Device
	whole  *pipeline.Engine
	ranks  *ranks.Engine
	hidden []float32 // of a sequence

	// What sums leaves for pages: the same tokens on the ranks and in one engine.
	a *ranks.Session
	b *pipeline.Session
}

func options() pipeline.EngineOptions {
	return pipeline.EngineOptions{MaxTokens: tokens, MaxSessions: 3, MaxStep: 32, Rewind: 20, CacheBytes: 8 << 20, KeepTopK: true}
}

// TestRanks runs all tests with the same two devices; of DeepSeek-V4.1 only with VKMLA_TEST_FULL=1.
func TestRanks(t *testing.T) {
	v4 := fakemodel.Tiny(4, 128)
	v4.Heads, v4.Groups = 4, 2
	for name, cfg := range map[string]model.Config{"v4": v4, "v41": fakemodel.TinyV41()} {
		t.Run(name, func(t *testing.T) {
			if name != "v4" && os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			w := newWorld(t, cfg)
			for _, x := range []struct {
				name string
				test func(*testing.T, *world)
			}{
				{"arguments", arguments}, {"layers", layers}, {"sums", sums}, {"pages", pages}, {"sessions", sessions}, {"aborts", aborts},
				{"begins", begins}, {"beside", beside}, {"drafts", drafts}, {"closed", closed},
			} {
				t.Run(x.name, func(t *testing.T) { x.test(t, w) })
			}
		})
	}
}

func newWorld(t *testing.T, cfg model.Config) *world {
	first := testkit.Device(t)
	second := testkit.Others(t)[0]
	m := must[*fakemodel.Model](t)(fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8}))
	w := &world{dir: t.TempDir(), devs: []*vk.Device{first, second}}
	require.NoError(t, m.Write(w.dir, 1))
	c := must[*model.Checkpoint](t)(model.Open(w.dir, model.CheckpointOptions{}))
	defer c.Close()
	w.cfg = c.Config
	layers := must[[]*model.DeviceLayer](t)(c.Upload(t.Context(), first, nil))
	t.Cleanup(func() { assert.NoError(t, model.CloseLayers(layers)) })
	w.whole = must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), first, w.cfg, layers, options()))
	t.Cleanup(func() { assert.NoError(t, w.whole.Close()) })
	w.ranks = must[*ranks.Engine](t)(ranks.New(t.Context(), w.dir, w.devs, model.CheckpointOptions{}, options()))
	t.Cleanup(func() { assert.NoError(t, w.ranks.Close()) })
	rng := rand.New(rand.NewPCG(3, 4))
	for range tokens * w.cfg.Hidden {
		w.hidden = append(w.hidden, float32(rng.NormFloat64()))
	}
	return w
}

// states are the hidden states of a sequence's tokens.
func (w *world) states(from, to int) []float32 { return w.hidden[from*w.cfg.Hidden : to*w.cfg.Hidden] }

// step takes the next n tokens of sessions through the layers and returns what these give for each
// session, one layer after the other.
func (w *world) step(ctx context.Context, n int, list ...*ranks.Session) (outs [][]float32, err error) {
	var chunks []ranks.Chunk
	for _, s := range list {
		chunks = append(chunks, ranks.Chunk{Session: s, Tokens: n})
	}
	st, err := w.ranks.Begin(ctx, chunks...)
	if err != nil {
		return nil, err
	}
	defer st.Abort()
	outs = make([][]float32, len(list))
	for l := range w.ranks.Layers() {
		for i, s := range list {
			if err := st.SetInput(l, i, w.states(s.Len(), s.Len()+n)); err != nil {
				return nil, err
			}
		}
		if err := st.RunLayer(ctx, l); err != nil {
			return nil, err
		}
		for i := range list {
			if err := w.samePicks(st, l, i, n); err != nil {
				return nil, err
			}
			out := make([]float32, n*w.cfg.Hidden)
			if err := st.ReadOutput(l, i, out); err != nil {
				return nil, err
			}
			outs[i] = append(outs[i], out...)
		}
	}
	return outs, st.Commit()
}

// samePicks demands that all ranks pick the same entries for the n tokens of a chunk.
func (w *world) samePicks(st *ranks.Step, layer, chunk, n int) error {
	if w.cfg.Layers[layer].Picks != model.PickOwn {
		return nil
	}
	var first []int32
	for rank, x := range st.Steps() {
		picks := make([]int32, n*w.cfg.TopK)
		if err := x.ReadTopK(layer, chunk, picks); err != nil {
			return err
		}
		if first == nil {
			first = picks
		}
		if !slices.Equal(first, picks) {
			return fmt.Errorf("layer %d: rank %d picks %v, rank 0 %v", layer, rank, picks, first)
		}
	}
	return nil
}

// extend is step for one session; it returns the layers' outputs.
func (w *world) extend(t testing.TB, s *ranks.Session, n int) []float32 {
	t.Helper()
	got, err := w.step(t.Context(), n, s)
	require.NoError(t, err)
	return got[0]
}

// alone is what the whole model's engine gives.
func (w *world) alone(t testing.TB, s *pipeline.Session, n int) (out []float32) {
	t.Helper()
	hidden := slices.Repeat([][]float32{w.states(s.Len(), s.Len()+n)}, w.whole.Layers())
	for _, x := range must[[]pipeline.Appended](t)(s.Append(t.Context(), hidden)) {
		out = append(out, x.Out...)
	}
	return out
}

func saved(t testing.TB, save func(context.Context, *bytes.Buffer) error) []byte {
	t.Helper()
	var data bytes.Buffer
	require.NoError(t, save(t.Context(), &data))
	return data.Bytes()
}
