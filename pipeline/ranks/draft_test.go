package ranks_test

import (
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

// drafts runs a layer that drafts on both ranks: what it gives for a block behind some tokens is
// what one engine gives, but for the rounding of sums, and the sessions stay as they are.
func drafts(t *testing.T, w *world) {
	testkit.WithoutMatrices(t)
	const length = 11
	ctx, cfg := t.Context(), fakemodel.V41()
	m := must[*fakemodel.Model](t)(fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8}))
	dir, co, o := t.TempDir(), model.CheckpointOptions{Layers: []int{len(cfg.Layers) - 1}}, options()
	require.NoError(t, m.Write(dir, 1))
	e := must[*ranks.Engine](t)(ranks.New(ctx, dir, w.devs, co, o))
	defer e.Close()
	c := must[*model.Checkpoint](t)(model.Open(dir, co))
	defer c.Close()
	layers := must[[]*model.DeviceLayer](t)(c.Upload(ctx, w.devs[0], nil))
	defer model.CloseLayers(layers)
	o.LayerByLayer = true
	alone := must[*pipeline.Engine](t)(pipeline.NewEngine(ctx, w.devs[0], c.Config, layers, o))
	defer alone.Close()

	s, u := must[*ranks.Session](t)(e.Open()), must[*pipeline.Session](t)(alone.Open())
	for _, draft := range []bool{false, true} {
		n := length
		if draft {
			n = cfg.DraftBlock
		}
		in, got, want := w.hidden[:n*cfg.Hidden], make([]float32, n*cfg.Hidden), make([]float32, n*cfg.Hidden)
		st := must[*ranks.Step](t)(e.Begin(ctx, ranks.Chunk{Session: s, Tokens: n, Draft: draft}))
		require.NoError(t, st.SetInput(0, 0, in))
		require.NoError(t, st.RunLayer(ctx, 0))
		one := must[*pipeline.Step](t)(alone.Begin(ctx, pipeline.Chunk{Session: u, Tokens: n, Draft: draft}))
		require.NoError(t, one.SetInput(0, 0, in))
		require.NoError(t, one.RunLayer(ctx, 0))
		if err := st.ReadOutput(0, 0, got); draft {
			require.NoError(t, err)
			require.NoError(t, one.ReadOutput(0, 0, want))
			assert.LessOrEqual(t, distance(got, want), mostMiss)
		} else {
			require.ErrorIs(t, err, vk.ErrArgument)
		}
		require.NoError(t, st.Commit())
		require.NoError(t, one.Commit())
		assert.Equal(t, length, s.Len())
	}
}
