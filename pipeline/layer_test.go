package pipeline_test

import (
	"errors"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TestLayerArguments demands an error that names what is wrong, and that nothing was
// recorded then.
func TestLayerArguments(t *testing.T) {
	dev := testkit.Device(t)
	m, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0, 128)})))
	layout := must[cache.Layout](t)(cache.NewLayout(64, 0))
	cfg := pipeline.LayerKindConfig{Model: m, Ratio: pipeline.RatioWindow, Tokens: 2}
	cfg.Caches.Window.Layout = layout
	ranks := cfg
	ranks.Ranks = 3
	out := cfg
	out.Out = tensor.I32
	none := cfg
	none.Tokens = 0
	broken := cfg
	broken.Model.Hidden = 7
	for name, c := range map[string]struct {
		cfg  pipeline.LayerKindConfig
		want error
	}{"Ranks": {ranks, vk.ErrArgument}, "Out": {out, vk.ErrArgument}, "Tokens": {none, vk.ErrArgument}, "Hidden": {broken, model.ErrConfig}} {
		if k, err := pipeline.NewLayerKind(dev, c.cfg); k != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pipeline.NewLayerKind(nil, cfg); !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
	k := must[*pipeline.LayerKind](t)(pipeline.NewLayerKind(dev, cfg))
	defer k.Close()
	if _, err := k.NewLayer(t.Context(), layers[1]); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("weights of another ratio: %v", err)
	}
	if _, err := k.NewLayer(t.Context(), nil); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("no weights: %v", err)
	}
	l := must[*pipeline.Layer](t)(k.NewLayer(t.Context(), layers[0]))
	alloc := func(dt tensor.DType, shape ...int) tensor.Tensor {
		x := must[tensor.Tensor](t)(tensor.New(dev, "test", dt, shape...))
		t.Cleanup(func() { x.Close() })
		return x
	}
	step := pipeline.SparseStepArgs{StepArgs: pipeline.StepArgs{QueryStart: alloc(tensor.I32, 2), SeqLens: alloc(tensor.I32, 1),
		TokenToReq: alloc(tensor.I32, 2), Positions: alloc(tensor.I32, 2), IsValid: alloc(tensor.U8, 2), WindowTable: alloc(tensor.I32, 1, 1)}}
	args := pipeline.WholeLayerArgs{Hidden: alloc(tensor.BF16, 2, m.Hidden), CosSin: alloc(tensor.F32, 4, model.RopeRow), Out: alloc(tensor.BF16, 2, m.Hidden)}
	args.Caches.Window = cache.KVCache{Pool: alloc(tensor.U8, 1, layout.Stride), Layout: layout}
	for arg, change := range map[string]func(*pipeline.SparseStepArgs, *pipeline.WholeLayerArgs){
		"Hidden":             func(_ *pipeline.SparseStepArgs, a *pipeline.WholeLayerArgs) { a.Hidden = a.Hidden.Rows(0, 1) },
		"Out":                func(_ *pipeline.SparseStepArgs, a *pipeline.WholeLayerArgs) { a.Out = tensor.Tensor{} },
		"CosSin":             func(_ *pipeline.SparseStepArgs, a *pipeline.WholeLayerArgs) { a.CosSin = a.Hidden },
		"Positions":          func(s *pipeline.SparseStepArgs, _ *pipeline.WholeLayerArgs) { s.Positions = tensor.Tensor{} },
		"Caches.Window.Pool": func(_ *pipeline.SparseStepArgs, a *pipeline.WholeLayerArgs) { a.Caches.Window.Pool = a.Hidden },
	} {
		s, a := step, args
		change(&s, &a)
		testkit.Refuses(t, dev, arg, func(rec *vk.Recorder) error { return l.Record(rec, s, a) })
	}
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	if err := errors.Join(k.RecordStep(rec, step), l.Record(rec, step, args)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(l.Close(), l.Close(), k.Close(), k.Close()); err != nil {
		t.Error(err)
	}
	if err := l.Record(rec, step, args); !errors.Is(err, vk.ErrClosed) {
		t.Error(err)
	}
	if err := k.RecordStep(rec, step); !errors.Is(err, vk.ErrClosed) {
		t.Error(err)
	}
	if _, err := k.NewLayer(t.Context(), layers[0]); !errors.Is(err, vk.ErrClosed) {
		t.Error(err)
	}
}
