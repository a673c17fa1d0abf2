package pipeline_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
)

// A layer that predicts ahead runs in an engine of its own, here with FP8 weights that have a scale
// for each row, and computes the formula of its kind.
func TestEngineDraft(t *testing.T) {
	dev := testkit.Device(t)
	c := fakemodel.Config(0, 4)
	c.Layers[1].Draft, c.TopK = true, 64
	m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8Rows})
	ck, err := openFake(t, m, 1, model.CheckpointOptions{Layers: []int{1}})
	require.NoError(t, err)
	layers, err := ck.Upload(context.Background(), dev, nil)
	require.NoError(t, err)
	t.Cleanup(func() { layers[0].Close() })
	require.Equal(t, projection.FormatFP8Rows, layers[0].QB.Format)

	const tokens = 11
	e := engine(t, dev, ck.Config, layers, pipeline.EngineOptions{MaxTokens: tokens, MaxStep: tokens, KeepTopK: true})
	hidden := normalsOf(rand.New(rand.NewPCG(3, 5)), tokens*c.Hidden)
	got := division(t, e, c.Hidden, 9, hidden)

	alone, values := c, map[string][]float32{} // the formula knows it as layer 0
	alone.Layers = model.V4Layers(4)
	for name, v := range m.Values {
		if strings.HasPrefix(name, "mtp.0.") {
			values[strings.Replace(name, "mtp.0.", "layers.0.", 1)] = v
		}
	}
	checkFormula(t, alone, values, hidden, got)
}
