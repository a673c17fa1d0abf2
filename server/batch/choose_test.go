package batch

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// chosenRef sorts the vocabulary.
func chosenRef(d distribution, r *Request) (ids []int32) {
	var list []candidate
	for id, v := range d.logits {
		if w := weight(v, d.most, r.Temperature); w >= r.MinP && w > 0 {
			list = append(list, candidate{int32(id), w})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.id, b.id)) })
	if r.TopK > 0 {
		list = list[:min(len(list), r.TopK)]
	}
	if all := mass(list); r.TopP > 0 && r.TopP < 1 {
		sum, n := 0.0, 0
		for n < len(list) && (n == 0 || sum < r.TopP*all) {
			sum, n = sum+list[n].weight, n+1
		}
		list = list[:n]
	}
	for _, c := range list {
		ids = append(ids, c.id)
	}
	slices.Sort(ids)
	return ids
}

// random are logits of some kind.
func random(rng *rand.Rand, kind string, n int) []float32 {
	l := make([]float32, n)
	for i := range l {
		switch kind {
		case "usual":
			l[i] = float32(3 * rng.NormFloat64())
		case "even":
			l[i] = 1
		case "levels":
			l[i] = float32(rng.IntN(4))
		case "one":
			l[i] = float32(rng.Float64())
			if i == n/2 {
				l[i] = 100
			}
		case "sorted":
			l[i] = float32(i) / float32(n)
		}
	}
	return l
}

var kinds = []string{"usual", "even", "levels", "one", "sorted"}

// TestChosen compares the tokens that may be drawn with those of a sorted vocabulary.
func TestChosen(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	for _, kind := range kinds {
		for range 150 {
			n := 1 + rng.IntN(300)
			d, _ := newDistribution(random(rng, kind, n))
			r := &Request{Temperature: math.Exp(rng.Float64()*9 - 4)}
			if rng.IntN(2) == 0 {
				r.TopK = 1 + rng.IntN(n+2)
			}
			if rng.IntN(2) == 0 {
				r.TopP = max(math.SmallestNonzeroFloat64, rng.Float64())
			}
			if rng.IntN(3) == 0 {
				r.MinP = rng.Float64()
			}
			var ids []int32
			for _, c := range d.chosen(r) {
				ids = append(ids, c.id)
			}
			want := chosenRef(d, r)
			if kind == "even" || kind == "levels" { // by rounding one more or one less may have the mass
				assert.InDelta(t, len(want), len(ids), 1, "%s %+v", kind, r)
				continue
			}
			assert.Equal(t, want, ids, "%s %+v", kind, r)
		}
	}
}
