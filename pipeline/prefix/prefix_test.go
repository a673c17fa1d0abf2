package prefix_test

import (
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
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// vocabulary is the number of different tokens: each has its hidden states.
const vocabulary = 50

// world is a model on the device.
type world struct {
	dev    *vk.Device
	cfg    model.Config
	layers []*model.DeviceLayer
	hidden [][]float32 // of each token
}

func newWorld(t testing.TB, cfg model.Config, storage fakemodel.Storage) *world {
	t.Helper()
	m := fakemodel.New(fakemodel.Options{Config: cfg, Storage: storage})
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	var all []int
	for i := range cfg.Layers {
		all = append(all, i)
	}
	c := testkit.Must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{Layers: all}))
	defer c.Close()
	w := &world{dev: testkit.Device(t), cfg: c.Config}
	w.layers = testkit.Must[[]*model.DeviceLayer](t)(c.Upload(t.Context(), w.dev, nil))
	t.Cleanup(func() {
		for _, l := range w.layers {
			assert.NoError(t, l.Close())
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	for range vocabulary {
		row := make([]float32, w.cfg.Hidden)
		for i := range row {
			row[i] = float32(rng.NormFloat64())
		}
		w.hidden = append(w.hidden, row)
	}
	return w
}

func (w *world) engine(t testing.TB, o pipeline.EngineOptions) *pipeline.Engine {
	t.Helper()
	e := testkit.Must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), w.dev, w.cfg, w.layers, o))
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	return e
}

// run takes tokens through all layers and returns what the layers gave for each.
func (w *world) run(t testing.TB, s *pipeline.Session, tokens []int32) (rows [][]float32) {
	t.Helper()
	var hidden []float32
	for _, id := range tokens {
		hidden = append(hidden, w.hidden[id]...)
	}
	got := testkit.Must[[]pipeline.Appended](t)(s.Append(t.Context(), slices.Repeat([][]float32{hidden}, len(w.layers))))
	rows = make([][]float32, len(tokens))
	for _, layer := range got {
		for i := range rows {
			if layer.Out == nil {
				continue // a layer that drafts, see draft
			}
			rows[i] = append(rows[i], layer.Out[i*w.cfg.Hidden:][:w.cfg.Hidden]...)
		}
	}
	return rows
}

// draft returns what layers that draft give for a block after a session's tokens; nothing without
// any, or without room for it.
func (w *world) draft(t testing.TB, e *pipeline.Engine, s *pipeline.Session, most int) (out []float32) {
	t.Helper()
	first := slices.IndexFunc(w.cfg.Layers, func(l model.Layer) bool { return l.Block })
	if first < 0 || s.Len()+w.cfg.DraftBlock > most {
		return nil
	}
	chunk := pipeline.Chunk{Session: s, Tokens: w.cfg.DraftBlock, Draft: true}
	st := testkit.Must[*pipeline.Step](t)(e.Begin(t.Context(), chunk))
	var hidden []float32
	for _, id := range random(7, chunk.Tokens) {
		hidden = append(hidden, w.hidden[id]...)
	}
	for i := first; i < len(w.layers); i++ {
		require.NoError(t, st.SetInput(i, 0, hidden))
	}
	require.NoError(t, st.Run(t.Context()))
	for i := first; i < len(w.layers); i++ {
		values := make([]float32, len(hidden))
		require.NoError(t, st.ReadOutput(i, 0, values))
		out = append(out, values...)
	}
	require.NoError(t, st.Commit())
	return out
}

// random makes tokens.
func random(seed uint64, n int) []int32 {
	rng, tokens := rand.New(rand.NewPCG(seed, 3)), make([]int32, n)
	for i := range tokens {
		tokens[i] = rng.Int32N(vocabulary)
	}
	return tokens
}

func folder(t testing.TB, dir string) *prefix.Folder {
	t.Helper()
	return testkit.Must[*prefix.Folder](t)(prefix.OpenFolder(dir, 0))
}

func keeper(t testing.TB, e *pipeline.Engine, s prefix.Store, o prefix.Options) *prefix.Keeper {
	t.Helper()
	return testkit.Must[*prefix.Keeper](t)(prefix.New(e, s, o))
}

// bits restores prompts of many lengths from a store, in an engine with other pages, and goes on
// with them beyond the next entry of every kind of layer: each token, and a block of drafts after
// what was restored, gives the bits of a session that computed everything. VKMLA_TEST_FULL=1 takes
// every length.
func bits(t *testing.T, x *both) {
	most := len(x.a)
	w := *x.world
	w.cfg = fakemodel.Paged(w.cfg, x.pages)
	e := w.engine(t, pipeline.EngineOptions{MaxTokens: most, MaxSessions: 2, MaxStep: 128, Invariant: true})
	lengths := slices.DeleteFunc([]int{9, 128, 262}, func(n int) bool { return n >= most })
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		lengths = nil
		for n := 2; n < most; n++ {
			lengths = append(lengths, n)
		}
	}
	for _, n := range lengths {
		store := folder(t, t.TempDir())
		require.NoError(t, keeper(t, x.e, store, prefix.Options{}).Keep(t.Context(), x.computedA, x.a[:n]))
		k := keeper(t, e, store, prefix.Options{})
		for _, c := range []struct{ prompt, had int }{{n, n - 1}, {n + 1, n / prefix.Block * prefix.Block}} {
			if c.had == 0 {
				continue
			}
			s, had, err := k.Open(t.Context(), x.a[:c.prompt])
			require.NoError(t, err)
			require.Equal(t, []int{c.had, c.had}, []int{had, s.Len()}, "tokens of a prompt of %d", c.prompt)
			computed := testkit.Must[*pipeline.Session](t)(x.computedA.Fork())
			require.NoError(t, computed.Truncate(had))
			require.True(t, slices.Equal(x.draft(t, x.e, computed, most), x.draft(t, e, s, most)), "drafts behind %d tokens", had)
			require.NoError(t, computed.Close())
			end := min(most, (had/prefix.Block+1)*prefix.Block+2)
			for i, row := range x.run(t, s, x.a[had:end]) {
				require.True(t, slices.Equal(x.rows[had+i], row), "token %d, of a prompt of %d", had+i, c.prompt)
			}
			k := keeper(t, e, newMemory(), prefix.Options{})
			assert.ErrorIs(t, k.KeepBlocks(t.Context(), s, x.a[:end/prefix.Block*prefix.Block]), pipeline.ErrRewind, "a state that was")
			require.NoError(t, s.Close())
		}
	}
}
