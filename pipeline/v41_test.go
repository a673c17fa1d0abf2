package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineNotRun demands that an engine says which part of a model it does not run, before
// anything is uploaded.
func TestEngineNotRun(t *testing.T) {
	dev, cfg := testkit.Device(t), fakemodel.V41()
	all := []int{0, 1, 9}
	c, err := openFake(t, fake(t, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8}), 1, model.CheckpointOptions{Layers: all})
	require.NoError(t, err)
	layers := must[[]*model.DeviceLayer](t)(c.Plan())
	for what, o := range map[string]options{
		"layers[2]: got 9 of kind draft, want another: blocks of drafts are not run yet": {Records: model.RecordsV4},
		"Hadamard: got true, want false: keys of layer 1, of kind full2, are not mixed":  {Records: model.RecordsV4, Hadamard: true},
		"Records: got records(7), want v4 or v41":                                        {Records: 7},
	} {
		o.MaxTokens = 100
		_, err := o.Estimate(t.Context(), dev, cfg, layers)
		require.ErrorIs(t, err, vk.ErrArgument)
		assert.ErrorContains(t, err, what)
	}
}

// TestEngineV41 runs layers of DeepSeek-V4.1 of all roles, in both records, and compares them with
// the model's definition: prefill in one step, in chunks, and token by token.
func TestEngineV41(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	const tokens, prefill = 47, 43 // restored in the middle of a group of two
	c := fakemodel.V41()
	m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8, Seed: 5})
	checkpoint, layers := opened(t, dev, m)
	c = checkpoint.Config
	rng := rand.New(rand.NewPCG(3, 4))
	hidden := make([]float32, tokens*c.Hidden)
	for i := range hidden {
		hidden[i] = numfmt.BF16Round(float32(rng.NormFloat64()))
	}
	for _, x := range []struct {
		records model.Records
		chunk   int
		long    bool
	}{{model.RecordsV41, tokens, false}, {model.RecordsV4, 11, false}, {model.RecordsV41, 11, true}, {model.RecordsV4, tokens, true}} {
		t.Run(fmt.Sprint(x.records, x.chunk), func(t *testing.T) {
			if x.long && os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			e := engine(t, dev, c, layers, options{MaxTokens: tokens, MaxSessions: 2, MaxStep: x.chunk, KeepTopK: true, Records: x.records})
			checkSequence(t, c, x.records, m.Values, hidden, division(t, e, c.Hidden, prefill, hidden))
			sameRestored(t, e, c.Hidden, hidden)
		})
	}
}

// checkSequence compares outputs and picks of all layers, which get the same hidden states, with the
// definition of DeepSeek-V4.1 by the same picks.
func checkSequence(t *testing.T, c model.Config, records model.Records, values map[string][]float32, hidden []float32,
	got []pipeline.Appended) {
	t.Helper()
	chosen := func(layer, p int) []int32 {
		picks := got[layer].TopK[p*c.TopK : (p+1)*c.TopK]
		if n := slices.Index(picks, -1); n >= 0 {
			return picks[:n]
		}
		return picks
	}
	s := formula.NewSequence(c, formula.Numerics{Records: records}, values)
	s.Given = func(layer, p int) (picks, blocks []int) {
		for _, e := range chosen(layer, p) {
			picks = append(picks, int(e))
		}
		return picks, nil
	}
	for i, want := range s.Step(slices.Repeat([][]float32{hidden}, len(c.Layers))) {
		var out []float32
		missed, of := 0, 0
		for p, w := range want {
			out, of = append(out, w.Out...), of+len(w.Picks)
			for _, e := range w.Picks {
				if !slices.Contains(chosen(i, p), int32(e)) {
					missed++
				}
			}
		}
		assert.Less(t, distance(got[i].Out, out), 5e-3, "layer %d, %s", i, c.Layers[i].Name)
		assert.LessOrEqual(t, 200*missed, of, "layer %d, %s: picks", i, c.Layers[i].Name)
	}
}
