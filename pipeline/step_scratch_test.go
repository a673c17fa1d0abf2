package pipeline_test

import (
	"errors"
	"os"
	"slices"
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
// in use, and demands the bits that they gave before: also where products take inputs of few bits,
// and the indexer has keys of 4. VKMLA_TEST_FULL=1 takes all cases.
func TestScratchPoison(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	v4, v41, blocks32 := v4Layers(), v41Layers(), fakemodel.V41()
	codes := v4
	codes.Hidden, codes.ORank = 256, 128
	blocks32.Hidden, blocks32.QRank, blocks32.ORank = 256, 128, 64
	mixed := codes
	mixed.Hadamard = true
	for _, x := range []struct {
		name    string
		c       model.Config
		storage fakemodel.Storage
		o       options
		full    bool
	}{
		{"v4", v4, fakemodel.FP8, options{}, false},
		{"v41", v41, fakemodel.FP8, options{}, false},
		{"v4, gathered, layer by layer", v4, fakemodel.FP8, options{Variant: "twopass-base", LayerByLayer: true}, false},
		{"v41, gathered, layer by layer", v41, fakemodel.FP8, options{Variant: "twopass-base", LayerByLayer: true}, true},
		{"nvfp4 codes", codes, fakemodel.NVFP4, options{QuantiseActivations: true}, false},
		{"fp8 codes", codes, fakemodel.FP8, options{QuantiseActivations: true}, true},
		{"fp8 codes, gathered", codes, fakemodel.FP8, options{QuantiseActivations: true, Variant: "twopass-base"}, true},
		{"fp8 codes, blocks of 32", blocks32, fakemodel.FP8, options{QuantiseActivations: true}, true},
		{"mxfp4 keys", mixed, fakemodel.FP8, options{Keys: cache.IndexKeyMXFP4}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.full && os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			ck, layers := opened(t, dev, fake(t, fakemodel.Options{Config: x.c, Storage: x.storage}), model.CheckpointOptions{})
			x.o.MaxTokens, x.o.MaxStep, x.o.MaxSessions, x.o.KeepTopK = 64, 27, 2, true
			e, hidden := engine(t, dev, ck.Config, layers, x.o), normals(28*x.c.Hidden)
			run := func() []pipeline.Appended {
				s := must[*pipeline.Session](t)(e.Open())
				all := append(extend(t, s, len(layers), hidden[:27*x.c.Hidden]), extend(t, s, len(layers), hidden[27*x.c.Hidden:])...)
				for i := range all {
					require.False(t, slices.ContainsFunc(all[i].Out, func(v float32) bool { return v != v }), "NaN, output %d", i)
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
