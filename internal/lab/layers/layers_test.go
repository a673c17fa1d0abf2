package layers_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// A recorded layer whose top-k chooses fails on picks alone, of one token too.
func TestWrongPicks(t *testing.T) {
	op, ok := verify.Lookup("layer")
	require.True(t, ok)
	cases := op.RandomCases(1)
	i := slices.IndexFunc(cases, func(c verify.Case) bool { return c.Name == "recorded_choice" })
	require.GreaterOrEqual(t, i, 0)
	want, err := op.Ref(cases[i])
	require.NoError(t, err)
	compare := func(wrong func(token int, picks []int32, scores []float32)) verify.Result {
		picks, scores := want["topk"].I32(), want["scores"].F32()
		for token := range recorded.Tokens {
			n := (token + 1) / 4
			if n > recorded.TopK {
				wrong(token, picks[token*recorded.TopK:][:recorded.TopK], scores[token*recorded.Entries:][:n])
			}
		}
		return op.Compare(cases[i], verify.Arrays{"out": want["out"], "topk": vectors.FromI32(picks, recorded.Tokens, recorded.TopK)}, want)
	}
	right := compare(func(int, []int32, []float32) {})
	require.True(t, right.Pass, right.Detail)

	const last = recorded.Tokens - 1
	lowest := func(scores []float32) int32 { return int32(slices.Index(scores, slices.Min(scores))) }
	highest := func(scores []float32) int32 { return int32(slices.Index(scores, slices.Max(scores))) }
	for name, wrong := range map[string]func(token int, picks []int32, scores []float32){
		"one pick fewer": func(_ int, picks []int32, _ []float32) { picks[len(picks)-1] = -1 },
		"the oldest":     func(_ int, picks []int32, _ []float32) { row(picks, 0) },
		"the newest":     func(_ int, picks []int32, scores []float32) { row(picks, int32(len(scores)-len(picks))) },
		"the lowest instead of the highest": func(_ int, picks []int32, scores []float32) {
			picks[slices.Index(picks, highest(scores))] = lowest(scores)
		},
		"the lowest, one token": func(token int, picks []int32, scores []float32) {
			if token == last {
				picks[slices.Index(picks, highest(scores))] = lowest(scores)
			}
		},
		"twice, one token": func(token int, picks []int32, _ []float32) {
			if token == last {
				picks[0] = picks[1]
			}
		},
		"an entry of the future, one token": func(token int, picks []int32, scores []float32) {
			if token == 200 {
				picks[0] = int32(len(scores))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := compare(wrong)
			assert.False(t, got.Pass)
			assert.Contains(t, got.Detail, "topk")
		})
	}
}

// row picks entries one after another.
func row(picks []int32, first int32) {
	for i := range picks {
		picks[i] = first + int32(i)
	}
}
