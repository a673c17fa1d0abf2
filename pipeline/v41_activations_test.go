package pipeline_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
)

// TestEngineV41Activations compares a layer of DeepSeek-V4.1 whose products of FP8 take E4M3 with a
// scale for each 32 numbers, but for wo_a, with the definition of just that, and demands that it is
// farther from the one with inputs of bf16. VKMLA_TEST_FULL=1 takes layers of all roles.
func TestEngineV41Activations(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	const tokens, prefill = 21, 19
	c := fakemodel.V41()
	c.Hidden, c.QRank, c.ORank = 256, 128, 64
	read := []int{0}
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		read = nil
		for i, l := range c.Layers {
			if !l.Draft {
				read = append(read, i)
			}
		}
	}
	m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8, Seed: 6})
	checkpoint, err := openFake(t, m, 1, model.CheckpointOptions{Layers: read})
	require.NoError(t, err)
	for _, w := range []model.Matrix{checkpoint.Layers[0].QKV, checkpoint.Layers[0].QB, checkpoint.Layers[0].OA, checkpoint.Layers[0].OB} {
		require.Equal(t, projection.FormatFP8x32, w.Format, w.Name)
	}
	layers := must[[]*model.DeviceLayer](t)(checkpoint.Upload(t.Context(), dev, nil))
	t.Cleanup(func() { assert.NoError(t, model.CloseLayers(layers)) })
	hidden := rounded(normalsOf(rand.New(rand.NewPCG(3, 5)), tokens*c.Hidden))
	e := engine(t, dev, checkpoint.Config, layers, options{MaxTokens: tokens, MaxStep: prefill, KeepTopK: true, QuantiseActivations: true})
	got := division(t, e, c.Hidden, prefill, hidden)
	far := func(layer int, want [][]formula.Rounded) float64 {
		var out []float32
		for _, w := range want[layer] {
			out = append(out, w.Out...)
		}
		return distance(got[layer].Out, out)
	}
	all := map[bool][][]formula.Rounded{}
	for _, few := range []bool{true, false} {
		s := formula.NewSequence(checkpoint.Config, formula.Numerics{Records: model.RecordsV41, Activations: few}, m.Values)
		s.Given = picksOf(c, got, 0)
		all[few] = s.Step(slices.Repeat([][]float32{hidden}, len(read)))
	}
	for i := range read {
		few, plain := far(i, all[true]), far(i, all[false])
		t.Logf("layer %d: %.4f from the definition, %.4f from that with bf16", i, few, plain)
		assert.Less(t, few, 0.02, "layer %d", i)
		assert.Less(t, 2*few, plain, "layer %d", i)
	}
}
