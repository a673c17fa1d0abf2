package replicas_test

import (
	"context"
	"errors"
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

// drafts takes tokens, and then a block of drafts, which is no part of the session.
func drafts(t *testing.T, w *world) {
	testkit.WithoutMatrices(t)
	ctx, cfg := t.Context(), fakemodel.V41()
	m := must[*fakemodel.Model](t)(fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8}))
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	c := must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{Layers: []int{len(cfg.Layers) - 1}}))
	defer c.Close()
	var list []replicas.Replica
	for _, dev := range w.devs {
		layers := must[[]*model.DeviceLayer](t)(c.Upload(ctx, dev, nil))
		defer model.CloseLayers(layers)
		o := pipeline.EngineOptions{MaxTokens: longest, MaxStep: 16, CacheBytes: 1 << 20, MaxCacheBytes: 8 << 20}
		e := must[*pipeline.Engine](t)(pipeline.NewEngine(ctx, dev, c.Config, layers, o))
		defer e.Close()
		list = append(list, replicas.Replica{Engine: e, Device: dev, MaxCacheBytes: o.MaxCacheBytes})
	}
	g := must[*replicas.Group](t)(replicas.New(list, replicas.Options{}))
	a := sequence(11, 9)
	s := opened(t, g, a, 0, 0)
	run := func(ctx context.Context, p replicas.Part) error {
		first, end := p.Step.Rows(0)
		return errors.Join(p.Step.SetInput(0, 0, make([]float32, (end-first)*cfg.Hidden)), p.Step.Run(ctx))
	}
	require.NoError(t, g.Step(ctx, run, replicas.Chunk{Session: s, Tokens: a}))
	for range 2 {
		require.NoError(t, g.Step(ctx, run, replicas.Chunk{Session: s, Tokens: a[:cfg.DraftBlock], Draft: true}))
		assert.Equal(t, len(a), s.Len())
	}

	// Where sessions are decides nothing: a step beside drafts is refused on other replicas, too.
	other := opened(t, g, sequence(12, 9), 0, 1)
	err := g.Step(ctx, run, replicas.Chunk{Session: s, Tokens: a[:cfg.DraftBlock], Draft: true}, replicas.Chunk{Session: other, Tokens: a})
	require.ErrorIs(t, err, vk.ErrArgument)
	assert.ErrorContains(t, err, "chunks[1].Draft: got false, want true, as in chunks[0]")
	assert.Zero(t, other.Len())
	require.NoError(t, other.Close())
	require.NoError(t, s.Truncate(0))
	require.NoError(t, s.Close())
	assert.Zero(t, g.Loads()[0].Tokens)
}
