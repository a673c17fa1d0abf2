package recorded_test

import (
	"flag"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
)

var update = flag.Bool("update", false, "write choice.npz anew")

// TestChoice makes choice.npz from the definition again, and demands the picks, and outputs and
// scores to half a step of float16.
func TestChoice(t *testing.T) {
	all, err := recorded.Layers()
	require.NoError(t, err)
	cfg := recorded.Config()
	cfg.TopK = recorded.TopK
	r := formula.Run(cfg, recorded.Chosen, recorded.Model().Values, kept, all[recorded.Chosen].In)
	picks, scores := slices.Repeat([]int32{-1}, recorded.Tokens*recorded.TopK), make([]float64, recorded.Tokens*recorded.Entries)
	for i := range r.Out {
		copy(scores[i*recorded.Entries:], r.Scores[i])
		for j, e := range r.Picks[i] {
			picks[i*recorded.TopK+j] = int32(e)
		}
	}
	out := slices.Concat(r.Out...)
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

// kept rounds what the caches keep as their records do, and an indexer's queries as its keys.
func kept(product string, x []float64) []float64 {
	index := strings.HasSuffix(product, ".index")
	if !index && !strings.HasSuffix(product, ".cache") {
		return x
	}
	bits := make([]uint16, len(x))
	for i, v := range x {
		bits[i] = numfmt.BF16Encode(float32(v))
	}
	if index {
		codes, scale := cache.QuantiseKeyRef(bits, cache.IndexKeyFP8)
		cache.DecodeKeyRef(bits, cache.IndexKeyFP8, codes, scale)
	} else {
		r := cache.RecordV4
		row, scales := make([]byte, r.RowBytes()), make([]byte, r.ScaleBytes())
		r.EncodeRef(row, scales, bits)
		r.DecodeRef(bits, row, scales)
	}
	y := make([]float64, len(x))
	for i, b := range bits {
		y[i] = float64(numfmt.BF16Decode(b))
	}
	return y
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
