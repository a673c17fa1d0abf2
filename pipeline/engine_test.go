package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	tiny "github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// division takes tokens through all layers of a fresh session, which get the same hidden states.
func division(t testing.TB, e *pipeline.Engine, width, prefill int, hidden []float32) []pipeline.Appended {
	t.Helper()
	s := must[*pipeline.Session](t)(e.Open())
	all := taken(t, s, width, prefill, slices.Repeat([][]float32{hidden}, e.Layers()))
	assert.Equal(t, len(hidden)/width, s.Len(), "tokens")
	assert.NoError(t, s.Close())
	return all
}

// taken takes hidden states of layers with a session: the first prefill tokens in steps of MaxStep,
// the others one by one.
func taken(t testing.TB, s *pipeline.Session, width, prefill int, hidden [][]float32) []pipeline.Appended {
	t.Helper()
	all := make([]pipeline.Appended, len(hidden))
	for at, end := 0, prefill; at < len(hidden[0])/width; at, end = end, end+1 {
		var part [][]float32
		for _, h := range hidden {
			part = append(part, h[at*width:end*width])
		}
		for i, got := range must[[]pipeline.Appended](t)(s.Append(t.Context(), part)) {
			all[i].Out, all[i].TopK = append(all[i].Out, got.Out...), append(all[i].TopK, got.TopK...)
		}
	}
	return all
}

// extend appends tokens, the same hidden states for each layer.
func extend(t testing.TB, s *pipeline.Session, layers int, hidden []float32) []pipeline.Appended {
	t.Helper()
	return must[[]pipeline.Appended](t)(s.Append(t.Context(), slices.Repeat([][]float32{hidden}, layers)))
}

// TestLayer holds whole layers, in prompts and single tokens of two sessions, against their formula
// and against a recording. Variants that only bind pools in another way run on devices, not here.
func TestLayer(t *testing.T) { testkit.TestOp(t, "layer", opkit.DA, opkit.TwoPass+opkit.DA) }

// TestEngineRecorded compares each layer of a checkpoint of transformers with what that made of the
// same input, with its caches rounded like ours, for other divisions into steps than TestLayer has.
// The bound is twice the effect of those roundings on noise of bf16.
func TestEngineRecorded(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, tiny.Model()))
	for _, chunk := range []int{7, tiny.Prefill} {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			for i, want := range must[[]tiny.Layer](t)(tiny.Layers()) {
				e := engine(t, dev, cfg, layers[i:i+1], pipeline.EngineOptions{MaxTokens: tiny.Tokens, MaxStep: chunk})
				err := formula.Apart(division(t, e, cfg.Hidden, tiny.Prefill, want.In)[0].Out, want.Out)
				t.Logf("layer %d: error %.4f", i, err)
				assert.Less(t, err, 0.025, "layer %d: error", i)
			}
		})
	}
}

// TestEngineFewIndexHeads demands the formula of an indexer of three heads, for which no linear
// layer has the exact size.
func TestEngineFewIndexHeads(t *testing.T) {
	dev, c := testkit.Device(t), fakemodel.Config(4)
	c.IndexHeads = 3
	m := fake(t, fakemodel.Options{Config: c})
	cfg, layers := uploaded(t, dev, written(t, m))
	hidden := normals(300 * c.Hidden)
	e := engine(t, dev, cfg, layers, options{MaxTokens: 300, MaxStep: 61, KeepTopK: true})
	checkFormula(t, c, m.Values, hidden, division(t, e, cfg.Hidden, 297, hidden))
}

func TestEngineErrors(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	ctx := t.Context()
	for want, l := range map[string]*model.DeviceLayer{
		"layers[1]: got nil, want the weights of a layer":             nil,
		"layers[1].Layer: got 1, want 0 to 0, of a model of 1 layers": {Layer: 1},
	} {
		_, err := pipeline.NewEngine(ctx, dev, cfg, []*model.DeviceLayer{layers[0], l}, pipeline.EngineOptions{MaxTokens: 4})
		says(t, err, "pipeline: new engine: "+want)
	}
	other, wrong := cfg, cfg
	other.ORank *= 2
	wrong.Heads = 0
	o := pipeline.EngineOptions{MaxTokens: 5, MaxStep: 3}
	for _, c := range []struct {
		dev    *vk.Device
		cfg    model.Config
		layers []*model.DeviceLayer
		want   error
	}{
		{dev, other, layers, vk.ErrArgument}, {dev, wrong, layers, model.ErrConfig}, {nil, cfg, layers, vk.ErrArgument},
		{dev, cfg, []*model.DeviceLayer{nil}, vk.ErrArgument}, {dev, cfg, nil, vk.ErrArgument},
	} {
		e, err := pipeline.NewEngine(ctx, c.dev, c.cfg, c.layers, o)
		assert.Nil(t, e)
		assert.ErrorIs(t, err, c.want)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := pipeline.NewEngine(cancelled, dev, cfg, layers, o)
	assert.ErrorIs(t, err, context.Canceled)
	e := engine(t, dev, cfg, layers, o)
	s := must[*pipeline.Session](t)(e.Open())
	hidden := make([]float32, 6*cfg.Hidden)
	for _, c := range []struct {
		ctx    context.Context
		hidden [][]float32
		want   error
	}{
		{ctx, nil, vk.ErrArgument}, {ctx, [][]float32{hidden, hidden}, vk.ErrArgument}, {ctx, [][]float32{hidden[:3]}, vk.ErrArgument},
		{ctx, [][]float32{hidden}, pipeline.ErrSequenceFull}, {cancelled, [][]float32{hidden[:cfg.Hidden]}, context.Canceled},
	} {
		got, err := s.Append(c.ctx, c.hidden)
		require.ErrorIs(t, err, c.want, "%d layers", len(c.hidden))
		assert.False(t, s.Len() != 0 || len(got) > 0 && len(got[0].Out) > 0, "%d layers", len(c.hidden))
	}
	got, err := s.Append(ctx, [][]float32{hidden[:5*cfg.Hidden]})
	require.NoError(t, err)
	require.Equal(t, 5*cfg.Hidden, len(got[0].Out))
	assert.Nil(t, got[0].TopK)
	_, err = e.Open()
	assert.ErrorIs(t, err, pipeline.ErrTooManySessions)
	assert.NoError(t, errors.Join(e.Close(), e.Close(), s.Close()))
	_, appending := s.Append(ctx, [][]float32{nil})
	_, beginning := e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1})
	_, opening := e.Open()
	_, forking := s.Fork()
	_, restoring := e.Restore(ctx, strings.NewReader(""))
	for name, err := range map[string]error{"begin": beginning, "open": opening, "fork": forking, "truncate": s.Truncate(0), "advance": s.Advance(ctx, 1),
		"save": s.Save(ctx, io.Discard), "prepare": e.Prepare(ctx, 1)} {
		assert.ErrorIs(t, err, vk.ErrClosed, "%s on a closed engine", name)
	}
	assert.ErrorIs(t, appending, vk.ErrClosed)
	assert.ErrorIs(t, restoring, pipeline.ErrSnapshot)
}

// The n-th allocation fails, for every n: there is no engine, the error is the one of
// the allocation, and nothing is left allocated.
func TestEngineOutOfMemory(t *testing.T) {
	left := -1
	dev := device(t, vk.DeviceOptions{Staging: true, MemoryHook: failing(&left)})
	c := fakemodel.Config(4)
	c.IndexHeads = 3
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.NVFP4})))
	before := fmt.Sprint(dev.MemoryInUse())
	for n := 0; ; n++ {
		left = n
		r, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 9, MaxStep: 4})
		if r != nil {
			assert.GreaterOrEqual(t, n, 10, "after %d allocations: an engine", n)
			assert.GreaterOrEqual(t, left, 0, "after %d allocations: an engine", n)
			assert.NoError(t, r.Close())
		} else {
			assert.ErrorIs(t, err, errFull, "allocation %d", n)
		}
		require.Equal(t, before, fmt.Sprint(dev.MemoryInUse()), "allocation %d: memory in use, before", n)
		if r != nil {
			return
		}
	}
}

// Weights that were closed too early are reported as such, where steps were recorded with them and
// where they would be.
func TestWeightsClosed(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	o := pipeline.EngineOptions{MaxTokens: 9, MaxStep: 2}
	e := engine(t, dev, cfg, layers, o)
	s := must[*pipeline.Session](t)(e.Open())
	require.NoError(t, layers[0].Close())
	for n := range 2 {
		_, err := s.Append(t.Context(), [][]float32{make([]float32, (n+1)*cfg.Hidden)})
		require.ErrorIs(t, err, vk.ErrClosed, "a step of %d", n+1)
		assert.Contains(t, err.Error(), "layer: weights of layer 0 ", "a step of %d", n+1)
		assert.Equal(t, 0, s.Len(), "a step of %d", n+1)
	}
	_, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, o)
	assert.ErrorIs(t, err, vk.ErrClosed, "an engine")
}

// TestNaNAfterFinite has tokens of NaN after finite ones: a maximum that no score stays below may
// not keep a kernel from its end.
func TestNaNAfterFinite(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	for _, v := range testkit.DecodeVariants(t, dev, cfg.Heads) {
		e := engine(t, dev, cfg, layers, options{MaxTokens: 60, MaxStep: 8, Variant: v})
		s := must[*pipeline.Session](t)(e.Open())
		for _, x := range []float32{1, float32(math.NaN())} {
			_, err := s.Append(t.Context(), [][]float32{slices.Repeat([]float32{x}, 8*cfg.Hidden)})
			require.NoError(t, err, v)
		}
	}
}
