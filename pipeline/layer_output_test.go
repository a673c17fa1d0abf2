package pipeline_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// windowStep runs the first layer, of RatioWindow, for a request's first tokens, after changes.
func windowStep(t testing.TB, dev *vk.Device, cfg pipeline.LayerKindConfig, w *model.DeviceLayer, hidden []float32, changes ...func(l *pipeline.Layer)) []float32 {
	t.Helper()
	n, width := cfg.Tokens, cfg.Model.Hidden
	var opened []tensor.Tensor
	defer func() {
		for _, x := range opened {
			x.Close()
		}
	}()
	alloc := func(dt tensor.DType, shape ...int) tensor.Tensor {
		x := must[tensor.Tensor](t)(tensor.New(dev, "test", dt, shape...))
		opened = append(opened, x)
		return x
	}
	layout := must[cache.Layout](t)(cache.NewLayout(64, 0))
	cfg.Ratio = pipeline.RatioWindow
	cfg.Caches.Window = cache.KVCache{Pool: alloc(tensor.U8, (n+63)/64, layout.Stride), Layout: layout}
	k := must[*pipeline.LayerKind](t)(pipeline.NewLayerKind(dev, cfg))
	defer k.Close()
	l := must[*pipeline.Layer](t)(k.NewLayer(t.Context(), w))
	defer l.Close()
	for _, change := range changes {
		change(l)
	}

	step := pipeline.SparseStepArgs{StepArgs: pipeline.StepArgs{QueryStart: alloc(tensor.I32, 2), SeqLens: alloc(tensor.I32, 1),
		TokenToReq: alloc(tensor.I32, n), Positions: alloc(tensor.I32, n), IsValid: alloc(tensor.U8, n), WindowTable: alloc(tensor.I32, 1, (n+63)/64)}}
	put(t, step.QueryStart, []int32{0, int32(n)})
	put(t, step.SeqLens, []int32{int32(n)})
	put(t, step.TokenToReq, make([]int32, n))
	positions, pages := make([]int32, n), make([]int32, (n+63)/64)
	for i := range positions {
		positions[i] = int32(i)
	}
	for i := range pages {
		pages[i] = int32(i)
	}
	put(t, step.Positions, positions)
	put(t, step.WindowTable, pages)
	put(t, step.IsValid, filled(n, byte(1)))
	a := pipeline.WholeLayerArgs{Hidden: alloc(tensor.BF16, n, width), CosSin: alloc(tensor.F32, n, model.RopeRow), Caches: cfg.Caches, Out: alloc(tensor.BF16, n, width)}
	put(t, a.Hidden, numfmt.BF16EncodeSlice(nil, hidden[:n*width]))
	put(t, a.CosSin, must[[]float32](t)(cfg.Model.Rope(0).Table(n, 1)))
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	if err := errors.Join(rec.Fill(a.Out.View(), 0xffffffff), k.RecordStep(rec, step), l.Record(rec, step, a)); err != nil {
		rec.Close()
		t.Fatal(err)
	}
	cmd := must[*vk.Commands](t)(rec.End())
	defer cmd.Close()
	if err := cmd.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, a.Out.Bytes())
	if err := a.Out.Download(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, n*width)
	for i := range out {
		out[i] = numfmt.BF16Decode(uint16(data[2*i]) | uint16(data[2*i+1])<<8)
	}
	return out
}

// TestLayerOutputPaths demands that an FP8 output path gives what the bf16 path gives,
// but for the rounding of E4M3, and the same bits with either layout of scales.
//
// The bound: E4M3 has three bits behind the point, so that rounding to nearest changes
// a number by at most one part in 16, and the norm of o by no more. wo_a and wo_b are
// random and independent of these errors, so that they lengthen both alike, and what
// comes out is wrong by at most 1/16 of its norm. (Numbers below 2^-6 of their scale
// have fewer bits, but are small beside 448, the largest.) The errors' own spread, that
// of an even distribution over the gaps between codes, is about 0.026.
func TestLayerOutputPaths(t *testing.T) {
	dev := testkit.Device(t)
	for _, storage := range []fakemodel.Storage{fakemodel.FP8, fakemodel.FP8F32} {
		model, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0), Storage: storage})))
		rng := rand.New(rand.NewPCG(3, 4))
		hidden := make([]float32, 70*model.Hidden)
		for i := range hidden {
			hidden[i] = float32(rng.NormFloat64())
		}
		for _, n := range []int{1, 5, 70} {
			t.Run(fmt.Sprintf("%s/%d", storage, n), func(t *testing.T) {
				run := func(p pipeline.OutputPath, out tensor.DType) []float32 {
					return windowStep(t, dev, pipeline.LayerKindConfig{Model: model, Tokens: n, Output: p, Out: out}, layers[0], hidden)
				}
				want, f32, packed := run(pipeline.OutputBF16, 0), run(pipeline.OutputFP8, 0), run(pipeline.OutputFP8Packed, 0)
				err := distance(f32, want)
				if t.Logf("%.4f from the bf16 path", err); !(err < 1./16) {
					t.Errorf("%.4f from the bf16 path, want less than 1/16", err)
				}
				if err < 1e-3 {
					t.Errorf("%.4f from the bf16 path: nothing was quantised", err)
				}
				for i := range f32 {
					if f32[i] != packed[i] {
						t.Fatalf("output %d: %g with f32 scales, %g with packed ones", i, f32[i], packed[i])
					}
				}
			})
		}
	}
}

// TestLayerOutputNeedsFP8 demands a typed error for weights that the path cannot take.
func TestLayerOutputNeedsFP8(t *testing.T) {
	dev := testkit.Device(t)
	layout := must[cache.Layout](t)(cache.NewLayout(64, 0))
	for _, storage := range []fakemodel.Storage{fakemodel.BF16, fakemodel.NVFP4} {
		model, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0), Storage: storage})))
		for _, p := range []pipeline.OutputPath{pipeline.OutputFP8, pipeline.OutputFP8Packed} {
			cfg := pipeline.LayerKindConfig{Model: model, Ratio: pipeline.RatioWindow, Tokens: 1, Output: p}
			cfg.Caches.Window.Layout = layout
			k := must[*pipeline.LayerKind](t)(pipeline.NewLayerKind(dev, cfg))
			defer k.Close()
			var arg *vk.ArgumentError
			if l, err := k.NewLayer(t.Context(), layers[0]); l != nil || !errors.As(err, &arg) || arg.Arg != "w.OA.Format" {
				t.Errorf("%s weights, path %v: %v", storage, p, err)
			}
		}
	}
	cfg := pipeline.LayerKindConfig{Model: fakemodel.Config(0), Ratio: pipeline.RatioWindow, Tokens: 1, Output: 3}
	if k, err := pipeline.NewLayerKind(dev, cfg); k != nil || !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
}

// TestEngineOutput demands that an engine takes its option to the layers: an FP8 path
// gives what the other gives within the rounding of E4M3, see TestLayerOutputPaths.
func TestEngineOutput(t *testing.T) {
	dev := testkit.Device(t)
	c := fakemodel.Config(0, 128)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	rng := rand.New(rand.NewPCG(5, 6))
	hidden := make([]float32, 40*cfg.Hidden)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	run := func(p pipeline.OutputPath) []pipeline.Appended {
		return division(t, engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 40, MaxStep: 16, Output: p}), cfg.Hidden, 37, hidden)
	}
	want := run(pipeline.OutputBF16)
	for _, p := range []pipeline.OutputPath{pipeline.OutputFP8, pipeline.OutputFP8Packed} {
		for i, got := range run(p) {
			if err := distance(got.Out, want[i].Out); !(err > 1e-3 && err < 1./16) {
				t.Errorf("path %v, layer %d: %.4f from the bf16 path", p, i, err)
			}
		}
	}
	if e, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 40, Output: 9}); e != nil || !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
}

// One token's parts of rows, joined by the launch of wo_a and wo_b, make the bits of the same
// operations one after the other.
func TestLayerJoined(t *testing.T) {
	dev := testkit.Device(t)
	cfg := fakemodel.Config(0)
	cfg.Hidden, cfg.ORank = 1024, 512 // both products are divided alike
	model, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})))
	rng := rand.New(rand.NewPCG(3, 5))
	hidden := make([]float32, model.Hidden)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	kind := pipeline.LayerKindConfig{Model: model, Tokens: 1}
	got := windowStep(t, dev, kind, layers[0], hidden, func(l *pipeline.Layer) {
		if joined, can := l.Joined(); joined != can {
			t.Errorf("joined: %v, want %v", joined, can)
		} else if !can {
			t.Skip("rows are not split, or there are no device addresses")
		}
	})
	if want := windowStep(t, dev, kind, layers[0], hidden, (*pipeline.Layer).Unchain); !slices.Equal(got, want) {
		t.Error("the outputs differ")
	}
}
