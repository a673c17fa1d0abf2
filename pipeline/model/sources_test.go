package model_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestSourcesRandom reads random lists of DeepSeek-V4.1's sources. Those that make no sense are
// refused; the others give each layer what the model's definition gives it.
func TestSourcesRandom(t *testing.T) {
	rng, legal := rand.New(rand.NewPCG(2, 41)), 0
	f := released(fakemodel.V41())
	c := text(f)
	for range 4000 {
		x := randomSources(rng)
		n := len(x.ratios)
		c["num_hidden_layers"], c["compress_ratios"] = n, x.ratios
		c["kv_source_layer_ids"], c["index_source_layer_ids"], c["candidate_source_layer_id"] = x.Entries, x.Picks, x.Candidates
		got, err := parse(t, f)
		if !x.legal() {
			require.ErrorIs(t, err, model.ErrConfig, "%+v", x)
			continue
		}
		legal++
		require.NoError(t, err, "%+v", x)
		for i, l := range got.Layers {
			assert.Equal(t, x.ratios[i], l.Ratio)
			if l.Ratio == 0 {
				assert.Equal(t, "window", l.Name)
				continue
			}
			assert.Equal(t, [2]int{newest(x.Entries, i), newest(x.Picks, i)}, [2]int{l.EntriesOf, l.PicksOf}, "%+v, layer %d", x, i)
			assert.Equal(t, slices.Contains(x.Entries, i), l.Compresses(), "%+v, layer %d", x, i)
			assert.Equal(t, slices.Contains(x.Picks, i), l.Picks == model.PickOwn, "%+v, layer %d", x, i)
			assert.Equal(t, x.Candidates == i, l.Candidates == model.CandidatesMade, "%+v, layer %d", x, i)
			uses := slices.Contains(x.Picks, i) && 0 <= x.Candidates && x.Candidates < i
			assert.Equal(t, uses, l.Candidates == model.CandidatesUsed, "%+v, layer %d", x, i)
		}
	}
	t.Log(legal, "of 4000 make sense")
	assert.Greater(t, legal, 400)
}

type sources struct {
	model.Sources
	ratios []int
}

// randomSources returns random lists; many of them make sense.
func randomSources(rng *rand.Rand) sources {
	x := sources{model.Sources{Entries: []int{}, Picks: []int{}, Candidates: rng.IntN(9) - 2}, nil}
	ratio := 0
	for i := range 1 + rng.IntN(7) {
		if rng.IntN(3) == 0 {
			ratio = 1 + rng.IntN(2)
			x.Entries, x.Picks = append(x.Entries, i), append(x.Picks, i)
		} else if ratio > 0 && rng.IntN(3) == 0 {
			x.Picks = append(x.Picks, i)
		}
		x.ratios = append(x.ratios, ratio)
	}
	n := len(x.ratios)
	switch rng.IntN(8) { // a fault
	case 0:
		x.ratios[rng.IntN(n)] = rng.IntN(5) - 1
	case 1:
		x.Entries = append(x.Entries, rng.IntN(n+1))
	case 2:
		x.Picks = append(x.Picks, rng.IntN(n+1))
	case 3:
		if len(x.Picks) > 0 {
			x.Picks = slices.Delete(x.Picks, 0, 1)
		}
	case 4:
		if len(x.Entries) > 0 {
			x.Entries = slices.Delete(x.Entries, 0, 1)
		}
	case 5:
		slices.Reverse(x.Picks)
	}
	return x
}

// legal reports whether every layer has what it reads.
func (x sources) legal() bool {
	n := len(x.ratios)
	for _, list := range [][]int{x.Entries, x.Picks} {
		for i, l := range list {
			if l < 0 || l >= n || i > 0 && list[i-1] >= l || x.ratios[l] == 0 {
				return false
			}
		}
	}
	for _, l := range x.Entries {
		if !slices.Contains(x.Picks, l) {
			return false
		}
	}
	for i, ratio := range x.ratios {
		if ratio < 0 || ratio > 2 || ratio > 0 && (newest(x.Entries, i) < 0 || x.ratios[newest(x.Entries, i)] != ratio) {
			return false
		}
	}
	if x.Candidates < 0 {
		return true
	}
	for _, l := range x.Picks {
		if l > x.Candidates && x.ratios[l] != 1 {
			return false
		}
	}
	return slices.Contains(x.Picks, x.Candidates) && x.ratios[x.Candidates] == 1
}

// newest is the largest of a list up to i, -1 without one.
func newest(list []int, i int) int {
	most := -1
	for _, l := range list {
		if l <= i {
			most = max(most, l)
		}
	}
	return most
}
