package pipeline_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// On a device that is slow for what it has to do, as its profile says, nothing that can be divided
// exceeds the budget by the estimate before anything was timed; afterwards times tell.
func TestUntimedStep(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0), Storage: fakemodel.FP8})))
	const tokens, budget = 24, 2 * time.Millisecond
	hidden := make([]float32, tokens*cfg.Hidden)
	for i := range hidden {
		hidden[i] = float32(i%13) - 6
	}
	run := func(budget time.Duration) ([]float32, *pipeline.Engine) {
		e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 48, MaxStep: tokens})
		e.SetBudget(budget)
		s := must[*pipeline.Session](t)(e.Open())
		return must[[]pipeline.Appended](t)(s.Append(t.Context(), [][]float32{hidden}))[0].Out, e
	}
	want, _ := run(-1)
	got, e := run(budget)
	assert.Equal(t, want, got, "other bits in pieces")
	tune, parts := tuning.Of(dev), e.Parts(tokens)
	require.NotEmpty(t, parts)
	var most vk.Work
	for _, p := range parts {
		if p.Work.Products > most.Products {
			most = p.Work
		}
		assert.Equal(t, 1, p.Operations)
		if took := tune.Time(dev.Adapter(), p.Work); p.Divisible {
			assert.LessOrEqual(t, took, budget/2+time.Microsecond, "%+v", p)
		}
	}
	assert.Positive(t, most.Products, "launches say what they have to do")
	assert.Positive(t, e.Divided(), "nothing was divided")
}

// TestStepTorn demands that a step with a failed submission gives the same when it is submitted
// again, although counters of the norm and of the selection were left as they were, and that it
// cannot be committed before.
func TestStepTorn(t *testing.T) {
	for name, x := range map[string]struct {
		c       model.Config
		records model.Records
	}{
		"window": {fakemodel.Config(0), model.RecordsV4}, "c4a": {fakemodel.Config(4), model.RecordsV4},
		"v41": {fakemodel.TinyV41(), model.RecordsV41}, "v41 in v4 records": {fakemodel.TinyV41(), model.RecordsV4},
	} {
		t.Run(name, func(t *testing.T) { stepTorn(t, x.c, x.records) })
	}
}

func stepTorn(t *testing.T, cfg model.Config, records model.Records) {
	const before = 127
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 140, MaxSessions: 2, MaxStep: 1, Records: records})
	e.SetBudget(-1)
	require.NoError(t, e.Prepare(t.Context(), 1))
	t.Logf("levels: %v", e.Levels(1, 0))
	hidden := make([]float32, cfg.Hidden)
	for i := range hidden {
		hidden[i] = float32(i%7) - 3
	}
	sessions := []*pipeline.Session{must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())}
	for _, s := range sessions {
		require.NoError(t, s.Advance(t.Context(), before))
	}
	for i := range layers {
		c := e.Caches(i)
		for k, pool := range []tensor.Tensor{c.State.Pool, c.IndexState.Pool, c.Window.Pool, c.Compressed.Pool, c.Keys.Pool} {
			if !pool.IsZero() {
				b := []byte{0x3C, 0x3C, 0, 0, 0}[k:][:1]
				require.NoError(t, pool.Upload(t.Context(), bytes.Repeat(b, int(pool.Bytes()))))
			}
		}
	}
	want, s := extend(t, sessions[0], len(layers), hidden), sessions[1]
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
	got := make([]float32, cfg.Hidden)
	other := slices.Clone(hidden)
	slices.Reverse(other)
	set := func(hidden []float32) (err error) {
		for i := range layers {
			err = errors.Join(err, st.SetInput(i, 0, hidden))
		}
		return err
	}
	require.NoError(t, errors.Join(set(other), st.Run(t.Context()), set(hidden), e.Tear(t.Context())))
	assert.Error(t, st.Run(t.Context()), "a torn step ran")
	for what, err := range map[string]error{"read": st.ReadOutput(0, 0, got), "committed": st.Commit()} {
		assert.ErrorIs(t, err, vk.ErrArgument, "%s after a torn step", what)
	}
	require.NoError(t, errors.Join(e.Untear(), st.Run(t.Context())))
	for i := range layers {
		require.NoError(t, st.ReadOutput(i, 0, got))
		assert.True(t, slices.Equal(got, want[i].Out), "layer %d: another output once it was tried again", i)
	}
	require.NoError(t, st.Commit())
}

// TestStepTornLayers demands that a layer's output cannot be read once the next layer, which writes
// to the same place, broke off.
func TestStepTornLayers(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0, 0), Storage: fakemodel.FP8})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 140, MaxStep: 1, LayerByLayer: true})
	e.SetBudget(-1)
	s := must[*pipeline.Session](t)(e.Open())
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
	values := make([]float32, cfg.Hidden)
	for _, layer := range []int{0, 1, 0} {
		require.NoError(t, errors.Join(st.SetInput(layer, 0, values), st.RunLayer(t.Context(), layer), st.ReadOutput(layer, 0, values)))
	}
	err := errors.Join(st.SetInput(1, 0, values), e.Tear(t.Context()))
	require.NoError(t, err, "a torn layer ran")
	require.Error(t, st.SubmitLayer(1), "a torn layer ran")
	assert.ErrorIs(t, st.ReadOutput(0, 0, values), vk.ErrArgument)
	assert.NoError(t, errors.Join(st.Abort(), e.Untear()))
}

// TestActivationsDivided demands that products whose inputs have 8 bits give a token alone what
// they give it in a prompt, where another kernel undoes the RoPE of the attention's output.
func TestActivationsDivided(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, c := testkit.Device(t), fakemodel.Config(0)
	c.Hidden, c.ORank = 256, 128
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	e := engine(t, dev, cfg, layers, options{MaxTokens: 48, MaxStep: 48, MaxSessions: 2, QuantiseActivations: true})
	hidden := normals(48 * c.Hidden)
	whole, parts := division(t, e, c.Hidden, 48, hidden), division(t, e, c.Hidden, 40, hidden)
	last := 40 * c.Hidden
	assert.Less(t, formula.Apart(parts[0].Out[last:], whole[0].Out[last:]), 0.02)
}
