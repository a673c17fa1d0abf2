package pipeline_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
)

// mixedSteps are the tokens that each session has in each step: long and short chunks beside each
// other, and decode steps. Windows wrap, and a recording's pieces differ from step to step.
var mixedSteps = [][3]int{{50, 3, 0}, {60, 1, 3}, {30, 0, 34}, {1, 60, 1}, {1, 1, 1}, {3, 40, 20}, {4, 0, 0}, {0, 61, 2}}

// mixed runs the steps and returns outputs and picks, layer by layer and step by
// step, the bytes of all caches, and the most pieces of a step.
func mixed(t *testing.T, e *pipeline.Engine, width, layers int,
	hidden []float32) (out [][]float32, picks [][]int32, caches [][]byte, pieces int) {
	t.Helper()
	var list [3]*pipeline.Session
	for i := range list {
		list[i] = must[*pipeline.Session](t)(e.Open())
	}
	pools := func(f func(pool tensor.Tensor)) {
		for l := range layers {
			c := e.Caches(l)
			for _, pool := range []tensor.Tensor{c.Window.Pool, c.Compressed.Pool, c.Keys.Pool} {
				if !pool.IsZero() {
					f(pool)
				}
			}
		}
	}
	pools(func(pool tensor.Tensor) { testkit.Put(t, pool, slices.Repeat([]byte{0xFF}, int(pool.Bytes()))) })
	for _, tokens := range mixedSteps {
		var chunks []pipeline.Chunk
		var at []int
		for i, n := range tokens {
			if n > 0 {
				chunks, at = append(chunks, pipeline.Chunk{Session: list[i], Tokens: n}), append(at, list[i].Len()+7*i)
			}
		}
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), chunks...))
		pieces = max(pieces, st.Pieces())
		for l := range layers {
			for i, c := range chunks {
				require.NoError(t, st.SetInput(l, i, hidden[at[i]*width:][:c.Tokens*width]))
			}
		}
		require.NoError(t, st.Run(t.Context()))
		for l := range layers {
			for i, c := range chunks {
				v := make([]float32, c.Tokens*width)
				require.NoError(t, st.ReadOutput(l, i, v))
				out = append(out, v)
				if !st.TopK(l).IsZero() {
					p := make([]int32, c.Tokens*e.TopK())
					require.NoError(t, st.ReadTopK(l, i, p))
					picks = append(picks, p)
				}
			}
		}
		require.NoError(t, st.Commit())
	}
	pools(func(pool tensor.Tensor) { caches = append(caches, testkit.Download[byte](t, pool)) })
	return out, picks, caches, pieces
}

// TestEngineRows has batches of sessions attend gathered rows: with room for all of them, and so
// little that long sessions, many sessions, and both go in pieces. Outputs are as far from those
// over pages in place as rounding takes them, and the same bits whatever the room; picks and caches
// are the same.
func TestEngineRows(t *testing.T) {
	// Rows and list of a token: of a C128A layer's window, and of a window with picks.
	t.Run("v4", func(t *testing.T) { engineRows(t, fakemodel.Config(0, 4, 128), 2, (128+128)<<10) })
	t.Run("v41", func(t *testing.T) {
		if os.Getenv("VKMLA_TEST_FULL") != "1" {
			t.Skip("VKMLA_TEST_FULL is not set")
		}
		engineRows(t, v41Layers(), 0, 0)
	})
}

// engineRows is told how much room a layer needs at least; 0: what the engine says.
func engineRows(t *testing.T, c model.Config, layer, least uint64) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	hidden := normals(300 * cfg.Hidden)
	o := pipeline.EngineOptions{MaxTokens: 260, MaxSessions: 3, MaxStep: 64, KeepTopK: true,
		Variant: opkit.Base, CacheBytes: 16 << 20}
	for _, v := range testkit.DecodeVariants(t, dev, cfg.Heads) {
		if testkit.LeftOut(opkit.Base) && v == opkit.CM {
			o.Variant = v
		}
	}
	e := engine(t, dev, cfg, layers, o)
	want, wantPicks, wantCaches, n := mixed(t, e, cfg.Hidden, len(layers), hidden)
	assert.Zero(t, n)
	assert.Zero(t, e.Memory().Workspace)
	o.Variant = opkit.TwoPass + o.Variant
	says, of := e.LeastGather()
	if least > 0 {
		assert.Equal(t, []uint64{least, layer}, []uint64{says, uint64(of)})
	}
	least = says
	var first [][]float32
	for i, room := range []uint64{0, least + least*3/8} {
		pipeline.GatherIn(t, room)
		e := engine(t, dev, cfg, layers, o)
		out, picks, caches, n := mixed(t, e, cfg.Hidden, len(layers), hidden)
		t.Logf("%d bytes: up to %d pieces", room, n)
		assert.Equal(t, i == 0, n == 1, "%d bytes: %d pieces", room, n)
		m := e.Memory()
		assert.NotZero(t, m.Workspace)
		if room > 0 {
			assert.LessOrEqual(t, m.Workspace, room)
		}
		assert.Equal(t, m.Workspace, dev.MemoryInUse()["gathered rows"], "what the device holds")
		assert.Equal(t, wantPicks, picks, "%d bytes: picks", room)
		assert.True(t, slices.EqualFunc(wantCaches, caches, bytes.Equal), "%d bytes: other bytes in caches", room)
		for j := range want {
			require.Less(t, formula.Apart(out[j], want[j]), 0.01, "%d bytes: result %d", room, j)
		}
		if first == nil {
			first = out
		}
		assert.True(t, slices.EqualFunc(first, out, slices.Equal), "%d bytes: other bits", room)
		require.NoError(t, e.Close())
	}
}

// TestEngineRowsDefault demands that an engine without a variant gathers the rows of steps of many
// tokens for each session that there may be, and reads pages in others.
func TestEngineRowsDefault(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	many := 2 * tuning.Of(dev).Attention.GatherTokens
	for sessions, want := range map[int][2]int{1: {0, 1}, 100: {0, 0}} {
		e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 2 * many, MaxSessions: sessions, MaxStep: many})
		s := must[*pipeline.Session](t)(e.Open())
		for i, n := range []int{7, many} {
			st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
			gathers := attention.Gathers(dev, st.Size(), sessions)
			assert.Equal(t, gathers, st.Pieces() > 0)
			assert.Equal(t, want[i], st.Pieces(), "%d sessions, %d tokens", sessions, n)
			require.NoError(t, st.Abort())
		}
	}
}
