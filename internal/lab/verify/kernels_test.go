package verify_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineKernelsAreVerified demands that random cases of operations ask for every kernel that
// engines ask for, over kinds of layers, options, formats of weights and devices. Otherwise a
// kernel that is wrong on some device would go unseen there. The operation layer does not count: it
// asks for what an engine does.
func TestEngineKernelsAreVerified(t *testing.T) {
	for _, d := range knowncaps.Devices() {
		t.Run(d.Name, func(t *testing.T) {
			dev := testkit.As(t, d)
			verified := verifiedKernels(t, dev)
			dev = testkit.As(t, d)
			for _, x := range engines() {
				x.ask(t, dev)
				for _, k := range dev.Kernels() {
					assert.True(t, verified[k.Name()], "an engine (%s) asks for %s, and no random case does", x.about, k.Name())
					verified[k.Name()] = true // once
				}
			}
			assert.Greater(t, len(dev.Kernels()), 30)
		})
	}
}

// verifiedKernels are the kernels that random cases ask for.
func verifiedKernels(t *testing.T, dev *vk.Device) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, op := range verify.All() {
		if op.Bind == nil {
			continue
		}
		for _, c := range op.RandomCases(1) {
			for _, v := range op.Variants {
				_, err := op.Bind(verify.Build{Dev: dev, Variant: v.Name}, c)
				if missing := new(vk.MissingError); !errors.As(err, &missing) {
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
	about   string
	storage fakemodel.Storage
	opts    pipeline.EngineOptions
	steps   []int
	heads   int // 0: those of fakemodel
}

func engines() []engineCase {
	long := pipeline.EngineOptions{MaxTokens: 300000, MaxStep: 256, KeepTopK: true}
	cases := []engineCase{
		{about: "bf16", storage: fakemodel.BF16, opts: long, steps: []int{1, 2, 8, 16, 40, 100, 256}},
		{about: "fp8", storage: fakemodel.FP8, opts: long, steps: []int{1, 2, 4, 8, 16, 32, 64, 100, 256}},
		{about: "fp8-f32", storage: fakemodel.FP8F32, opts: long, steps: []int{1, 16, 100}},
		{about: "nvfp4", storage: fakemodel.NVFP4, opts: long, steps: []int{1, 8, 16, 100}},
	}
	add := func(about string, change func(o *pipeline.EngineOptions)) {
		o := pipeline.EngineOptions{MaxTokens: 4096, MaxStep: 64, MaxSessions: 2}
		change(&o)
		cases = append(cases, engineCase{about: about, storage: fakemodel.FP8, opts: o, steps: []int{1, 64}})
	}
	add("mxfp4 keys", func(o *pipeline.EngineOptions) { o.Keys = cache.IndexKeyMXFP4 })
	add("hadamard", func(o *pipeline.EngineOptions) { o.Hadamard = true })
	add("output fp8", func(o *pipeline.EngineOptions) { o.Output = pipeline.OutputFP8 })
	add("output fp8 packed", func(o *pipeline.EngineOptions) { o.Output = pipeline.OutputFP8Packed })
	add("layer by layer", func(o *pipeline.EngineOptions) { o.LayerByLayer = true })
	for _, v := range attention.DecodeVariants {
		add("variant "+v.Name, func(o *pipeline.EngineOptions) { o.Variant = v.Name })
	}
	return cases
}

// ask makes the engine and begins steps, without recording anything.
func (x engineCase) ask(t *testing.T, dev *vk.Device) {
	t.Helper()
	cfg := fakemodel.Config(0, 4, 128)
	if x.opts.Variant != "" && attention.CanDecode(dev.Adapter(), x.opts.Variant, cfg.Heads) != nil {
		return
	}
	m, err := fakemodel.New(fakemodel.Options{Config: cfg, Storage: x.storage})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	cp, err := model.Open(dir, model.CheckpointOptions{})
	require.NoError(t, err)
	defer cp.Close()
	layers, err := cp.Upload(t.Context(), dev, nil)
	require.NoError(t, err)
	e, err := pipeline.NewEngine(t.Context(), dev, cp.Config, layers, x.opts)
	require.NoError(t, err, x.about)
	s, err := e.Open()
	require.NoError(t, err)
	for _, n := range x.steps {
		st, err := e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n})
		require.NoError(t, err, "%s: %d tokens", x.about, n)
		require.NoError(t, st.Abort())
	}
	require.NoError(t, e.Close())
	for _, l := range layers {
		require.NoError(t, l.Close())
	}
}
