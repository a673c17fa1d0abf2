package recorded_test

import (
	"flag"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

var update = flag.Bool("update", false, "write choice.npz anew")

// TestChoice makes choice.npz from the definition again, and demands the picks, and outputs and
// scores to half a step of float16.
func TestChoice(t *testing.T) {
	all, err := recorded.Layers()
	require.NoError(t, err)
	cfg := recorded.Config()
	cfg.TopK = recorded.TopK
	inputs := make([][]float32, recorded.Chosen+1)
	inputs[recorded.Chosen] = all[recorded.Chosen].In
	q := formula.NewSequence(cfg, formula.Numerics{Exact: true, Records: model.RecordsV4}, recorded.Model().Values)
	picks, scores := slices.Repeat([]int32{-1}, recorded.Tokens*recorded.TopK), make([]float64, recorded.Tokens*recorded.Entries)
	var out []float64
	for i, r := range q.Step(inputs)[recorded.Chosen] {
		for j, e := range r.Picks {
			picks[i*recorded.TopK+j] = int32(e)
		}
		for e, x := range r.Logits {
			if len(r.Logits) > recorded.TopK { // stored without the scale
				scores[i*recorded.Entries+e] = float64(x) * math.Sqrt(float64(cache.IndexDim*cfg.IndexHeads))
			}
		}
		for _, x := range r.Out {
			out = append(out, float64(x))
		}
	}
	if *update {
		write(t, out, scores, picks)
		return
	}
	want, err := recorded.Choose()
	require.NoError(t, err)
	assert.Equal(t, want.Picks, picks)
	near(t, want.Out, out)
	near(t, want.Scores, scores)
}

// near demands numbers to half a step of float16, and what differently rounded sums add to it.
func near(t *testing.T, want []float32, got []float64) {
	t.Helper()
	require.Len(t, want, len(got))
	for i, v := range want {
		require.InDelta(t, got[i], v, max(math.Abs(got[i]), 0x1p-14)*0x1p-11*(1+1e-6), "number %d", i)
	}
}

func write(t *testing.T, out, scores []float64, picks []int32) {
	t.Helper()
	f, err := os.Create("choice.npz")
	require.NoError(t, err)
	defer f.Close()
	w := vectors.NewArchiveWriter(f)
	for i, x := range [][]float64{out, scores} {
		var bits []uint16
		for _, v := range x {
			bits = append(bits, numfmt.F16Encode(float32(v)))
		}
		half := vectors.FromU16(bits, recorded.Tokens, len(x)/recorded.Tokens)
		half.Type = vectors.F16
		require.NoError(t, w.Add([]string{"out", "scores"}[i], half))
	}
	require.NoError(t, w.Add("topk", vectors.FromI32(picks, recorded.Tokens, recorded.TopK)))
	require.NoError(t, w.Close())
}
