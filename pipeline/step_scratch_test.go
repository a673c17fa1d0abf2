package pipeline_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
)

// TestScratchPoison runs all kinds of layers with scratch that is overwritten as soon as it is not
// in use, and demands the bits that they gave before.
func TestScratchPoison(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	for _, x := range []struct {
		name string
		of   *sessionModel
		o    options
	}{
		{"v4", &v4Sessions, options{}},
		{"v41", &v41Sessions, options{}},
		{"v4, gathered, layer by layer", &v4Sessions, options{Variant: "twopass-base", LayerByLayer: true}},
		{"v41, gathered, layer by layer", &v41Sessions, options{Variant: "twopass-base", LayerByLayer: true}},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.of == &v41Sessions && x.o.LayerByLayer && os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			m := newModel(t, dev, x.of)
			x.o.MaxTokens, x.o.MaxStep, x.o.MaxSessions, x.o.KeepTopK = 64, 27, 2, true
			e := m.engine(t, x.o)
			run := func() (all []pipeline.Appended) {
				s, at := must[*pipeline.Session](t)(e.Open()), 0
				for _, n := range []int{27, 1} {
					all = append(all, extend(t, s, len(m.layers), m.tokens(at, at+n))...)
					at += n
				}
				return all
			}
			want := run()
			require.NoError(t, e.Poison())
			sameBits(t, want, run(), "poisoned")
		})
	}
	t.Run("drafts", func(t *testing.T) {
		x := draftSessions(t, options{})
		s, block := x.session(t, 7), x.hidden(x.c.DraftBlock)
		want := x.draft(t, s, block)
		require.NoError(t, x.e.Poison())
		sameBits(t, want, x.draft(t, s, block), "poisoned")
	})
}

// TestScratchReleased holds that steps of DeepSeek-V4.1's six kinds of layers take at most 1.3
// times the memory of those of DeepSeek-V4's three.
func TestScratchReleased(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	var steps [2][]uint64
	for i, c := range []model.Config{model.FlashConfig(), model.FlashV41Config()} {
		layers := must[[]*model.DeviceLayer](t)(c.Plan(projection.FormatFP8, 1))
		for _, n := range []int{1, 32, 512} {
			m := must[pipeline.EngineMemory](t)(options{MaxTokens: 1 << 17, MaxStep: n}.Estimate(t.Context(), dev, c, layers, 1))
			steps[i] = append(steps[i], m.Steps)
		}
	}
	for i, v4 := range steps[0] {
		assert.LessOrEqual(t, 10*steps[1][i], 13*v4)
	}
	t.Log(steps)
}

// TestScratchSizes has steps of growing sizes, whose commands keep the scratch that they were
// recorded with, until all of them are moved to that of the largest.
func TestScratchSizes(t *testing.T) {
	x := newModel(t, testkit.Device(t), &v4Sessions)
	o := options{MaxTokens: 64, MaxStep: 16, MaxSessions: 2}
	e := x.engine(t, o)
	e.SetBudget(-1)
	s := must[*pipeline.Session](t)(e.Open())
	first := extend(t, s, len(x.layers), x.tokens(0, 1))
	small := e.Memory().Steps
	extend(t, s, len(x.layers), x.tokens(0, 16))
	recorded, grown := e.Stats().Recorded, e.Memory().Steps
	again := must[*pipeline.Session](t)(e.Open())
	sameBits(t, first, extend(t, again, len(x.layers), x.tokens(0, 1)), "as it was recorded")
	assert.Equal(t, recorded, e.Stats().Recorded)
	require.NoError(t, e.OpenAll(t.Context()))
	want := must[pipeline.EngineMemory](t)(o.Estimate(t.Context(), x.dev, x.cfg, x.layers))
	assert.Equal(t, want.Steps, e.Memory().Steps)
	assert.Less(t, small, grown)
	require.NoError(t, errors.Join(s.Close(), again.Close()))
	again = must[*pipeline.Session](t)(e.Open())
	sameBits(t, first, extend(t, again, len(x.layers), x.tokens(0, 1)), "moved")
}

// TestScratchMost demands what was estimated of an engine whose steps of the most tokens take less
// scratch than smaller ones, and which has recorded those already.
func TestScratchMost(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, ctx := testkit.Device(t), t.Context()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Tiny(4)})))
	o := options{MaxTokens: 64, MaxStep: 33}
	e := engine(t, dev, cfg, layers, o)
	e.SetBudget(-1)
	s := must[*pipeline.Session](t)(e.Open())
	st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: o.MaxStep}))
	require.NoError(t, errors.Join(st.ReuseInputs(), st.Run(ctx), st.Commit()))
	before := e.Memory().Steps
	require.NoError(t, e.OpenAll(ctx))
	assert.Equal(t, must[pipeline.EngineMemory](t)(o.Estimate(ctx, dev, cfg, layers)).Steps, e.Memory().Steps)
	o.MaxStep--
	assert.Less(t, before, must[pipeline.EngineMemory](t)(o.Estimate(ctx, dev, cfg, layers)).Steps, "32 tokens")
}

// TestScratchPoisonCodes is TestScratchPoison where products take inputs of few bits, or the
// indexer has keys of 4. VKMLA_TEST_FULL=1 takes all formats.
func TestScratchPoisonCodes(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, ctx := testkit.Device(t), t.Context()
	v4, v41 := fakemodel.Config(0, 4, 128), fakemodel.V41()
	v41.QRank, v41.ORank = 128, 64
	v4.ORank = 128
	for name, x := range map[string]struct {
		c       model.Config
		storage fakemodel.Storage
		o       options
	}{
		"fp8":           {v4, fakemodel.FP8, options{QuantiseActivations: true}},
		"nvfp4":         {v4, fakemodel.NVFP4, options{QuantiseActivations: true}},
		"blocks of 32":  {v41, fakemodel.FP8, options{QuantiseActivations: true}},
		"gathered, fp8": {v4, fakemodel.FP8, options{QuantiseActivations: true, Variant: "twopass-base"}},
		"mxfp4 keys":    {v4, fakemodel.FP8, options{Keys: cache.IndexKeyMXFP4}},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "nvfp4" && os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			c := x.c
			c.Hidden, c.Hadamard = 256, x.o.Keys == cache.IndexKeyMXFP4
			m := fake(t, fakemodel.Options{Config: c, Storage: x.storage})
			ck, layers := opened(t, dev, m)
			x.o.MaxTokens, x.o.MaxStep, x.o.MaxSessions, x.o.KeepTopK = 64, 27, 2, true
			e := engine(t, dev, ck.Config, layers, x.o)
			hidden := normalsOf(rand.New(rand.NewPCG(3, 4)), 27*c.Hidden)
			run := func() (all [][]float32) {
				s := must[*pipeline.Session](t)(e.Open())
				for _, n := range []int{27, 1} {
					st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: n}))
					for i := range layers {
						require.NoError(t, st.SetInput(i, 0, hidden[:n*c.Hidden]))
					}
					require.NoError(t, st.Run(ctx))
					for i := range layers {
						out := make([]float32, n*c.Hidden)
						require.NoError(t, st.ReadOutput(i, 0, out))
						for _, v := range out {
							require.False(t, v != v, "layer %d", i)
						}
						all = append(all, out)
					}
					require.NoError(t, st.Commit())
				}
				return all
			}
			want := run()
			require.NoError(t, e.Poison())
			sameBits(t, want, run(), "poisoned")
		})
	}
}
