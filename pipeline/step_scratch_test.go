package pipeline_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
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
	dev := testkit.Device(t)
	var steps [2][]uint64
	for i, c := range []model.Config{model.FlashConfig(), model.FlashV41Config()} {
		layers := must[[]*model.DeviceLayer](t)(c.Plan(model.FormatFP8, 1))
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
	o := options{MaxTokens: 64, MaxStep: 16, MaxSessions: 2, SubmitBudget: -1}
	e := x.engine(t, o)
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
