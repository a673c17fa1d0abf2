package verify_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineKernelsAreVerified demands that random cases of operations ask for every kernel that
// engines ask for, over kinds of layers, options, formats of weights and devices. Otherwise a
// kernel that is wrong on some device would go unseen there. The operation layer does not count: it
// asks for what an engine does.
func TestEngineKernelsAreVerified(t *testing.T) {
	cases := verify.RandomCases(1)
	for _, d := range knowncaps.Devices() {
		if !slices.Contains([]string{"H100", "RDNA3", "lavapipe"}, d.Name) {
			continue // others ask for no more
		}
		t.Run(d.Name, func(t *testing.T) {
			dev := testkit.As(t, d)
			verified := verifiedKernels(t, dev, cases)
			dev = testkit.As(t, d)
			for format, as := range formats {
				for _, x := range engines(format) {
					layers, done := emptyLayers(t, dev, x.cfg, as)
					x.ask(t, dev, layers)
					done()
					for _, k := range dev.Kernels() {
						name := k.Name()
						assert.True(t, verified[name], "engine (%s, %s): %s, which no random case has", format, x.about, name)
						verified[name] = true // once
					}
				}
			}
			assert.Greater(t, len(dev.Kernels()), 30)
		})
	}
}

// verifiedKernels returns the kernels that random cases ask for.
func verifiedKernels(t *testing.T, dev *vk.Device, cases map[string][]verify.Case) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, op := range verify.All() {
		if op.Bind == nil {
			continue
		}
		for _, c := range cases[op.Name] {
			for _, v := range op.Variants {
				_, err := op.Bind(verify.Build{Dev: dev, Variant: v.Name}, c)
				if !errors.Is(err, vk.ErrMissingFeature) {
					assert.NoError(t, err, "%s.%s", op.Name, c.Name)
				}
			}
		}
	}
	for _, k := range dev.Kernels() {
		names[k.Name()] = true
	}
	return names
}

// engineCase is a configuration of an engine.
type engineCase struct {
	about string
	cfg   model.Config
	opts  pipeline.EngineOptions
	steps []int
}

// formats are those of weights that engines are asked for, by name.
var formats = map[string]func(x *model.DeviceMatrix){
	"bf16":    func(x *model.DeviceMatrix) { x.Format = projection.FormatBF16 },
	"fp8":     func(x *model.DeviceMatrix) { x.Format = projection.FormatFP8 },
	"fp8-f32": func(x *model.DeviceMatrix) { x.Format = projection.FormatFP8F32 },
	"fp8-32":  func(x *model.DeviceMatrix) { x.Format = projection.FormatFP8x32 },
	"nvfp4":   func(x *model.DeviceMatrix) { x.Format, x.Global = projection.FormatNVFP4, 1 },
}

// engines lists configurations for weights of a format: all sizes of steps of small and large
// models, and, for FP8, options one by one.
func engines(format string) []engineCase {
	flash, small := model.FlashConfig(), fakemodel.Config(0, 4, 128)
	flash.Layers = small.Layers
	var cases []engineCase
	for name, cfg := range map[string]model.Config{"flash": flash, "small": small} {
		cases = append(cases, engineCase{name, cfg, pipeline.EngineOptions{MaxTokens: 300000, MaxStep: 256, KeepTopK: true},
			[]int{1, 2, 4, 8, 16, 32, 64, 128, 256}})
	}
	if format != "fp8" {
		return cases
	}
	add := func(about string, change func(o *pipeline.EngineOptions)) {
		o := pipeline.EngineOptions{MaxTokens: 4096, MaxStep: 64, MaxSessions: 2}
		change(&o)
		cases = append(cases, engineCase{about, flash, o, []int{1, 64}})
	}
	add("mxfp4 keys", func(o *pipeline.EngineOptions) { o.Keys = cache.IndexKeyMXFP4 })
	add("hadamard", func(*pipeline.EngineOptions) {})
	cases[len(cases)-1].cfg.Hadamard = true
	add("layer by layer", func(o *pipeline.EngineOptions) { o.LayerByLayer = true })
	for _, v := range opkit.Decodes() {
		add("variant "+v.Name, func(o *pipeline.EngineOptions) { o.Variant = v.Name })
	}
	return cases
}

// ask makes the engine and begins steps, without recording anything.
func (x engineCase) ask(t *testing.T, dev *vk.Device, layers []*model.DeviceLayer) {
	t.Helper()
	e, err := pipeline.NewEngine(t.Context(), dev, x.cfg, layers, x.opts)
	if missing := new(vk.MissingError); errors.As(err, &missing) {
		return
	}
	require.NoError(t, err, x.about)
	s, err := e.Open()
	require.NoError(t, err)
	for _, n := range x.steps {
		st, err := e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n})
		require.NoError(t, err, "%s: %d tokens", x.about, n)
		require.NoError(t, st.Abort())
	}
	require.NoError(t, e.Close())
}

// emptyLayers are layers of a model whose weights hold anything, and what closes them.
func emptyLayers(t *testing.T, dev *vk.Device, c model.Config, as func(x *model.DeviceMatrix)) (layers []*model.DeviceLayer, done func()) {
	t.Helper()
	var all []tensor.Tensor
	make := func(dt tensor.DType, shape ...int) tensor.Tensor {
		x, err := tensor.New(dev, "weights", dt, shape...)
		require.NoError(t, err)
		all = append(all, x)
		return x
	}
	matrix := func(n, k int, as func(x *model.DeviceMatrix)) model.DeviceMatrix {
		x := model.DeviceMatrix{N: n, K: k}
		as(&x)
		is := x.Format.Shapes(n, k)
		x.Data = make(is.Data.DType, is.Data.Shape...)
		if is.Scale.Shape != nil {
			x.Scales = make(is.Scale.DType, is.Scale.Shape...)
		}
		return x
	}
	compressor := func(c model.Config, l model.Layer, dim int) *model.DeviceCompressor {
		channels := l.Compression(dim).Channels()
		return &model.DeviceCompressor{KVGate: matrix(2*channels, c.Hidden, formats["bf16"]),
			Ape: make(tensor.F32, l.Ratio, channels), Norm: make(tensor.BF16, dim)}
	}
	for i, l := range c.Layers {
		w := &model.DeviceLayer{Layer: i, QKV: matrix(c.QRank+512, c.Hidden, as), QB: matrix(c.Heads*512, c.QRank, as),
			OA: matrix(c.Groups*c.ORank, c.HeadsPerGroup()*512, as), OB: matrix(c.Hidden, c.Groups*c.ORank, as),
			QNorm: make(tensor.BF16, c.QRank), KVNorm: make(tensor.BF16, 512), Sink: make(tensor.F32, c.Heads)}
		if l.Compresses() {
			w.Compressor = compressor(c, l, 512)
		}
		if l.Picks == model.PickOwn {
			w.Indexer = &model.DeviceIndexer{QB: matrix(c.IndexHeads*128, c.QRank, as),
				Weights: matrix(c.IndexHeads, c.Hidden, formats["bf16"]), Compressor: compressor(c, l, 128)}
		}
		layers = append(layers, w)
	}
	return layers, func() {
		for _, x := range all {
			require.NoError(t, x.Close())
		}
	}
}
