package batch

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
)

// Candidate is a token and the logarithm of its probability.
type Candidate struct {
	ID      int32
	Logprob float32
}

// distribution is the logits of a position. Their total, which takes as long as a sample, is for
// logarithms of probabilities alone, at temperature 1.
type distribution struct {
	logits []float32
	total  float64 // log of the sum of exp(logits)
}

func newDistribution(logits []float32, logprobs bool) distribution {
	if !logprobs {
		return distribution{logits: logits}
	}
	top, sum := float64(slices.Max(logits)), 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return distribution{logits, top + math.Log(sum)}
}

func (d distribution) logprob(id int32) float32 { return float32(float64(d.logits[id]) - d.total) }

// top lists the n most probable tokens, the first first. Of equal ones the smaller id is first.
func (d distribution) top(n int) (list []Candidate) {
	for id, v := range d.logits {
		if len(list) == n && (n == 0 || v <= d.logits[list[n-1].ID]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(list, v, func(c Candidate, v float32) int {
			if d.logits[c.ID] >= v {
				return -1
			}
			return 1
		})
		list = slices.Insert(list, at, Candidate{int32(id), d.logprob(int32(id))})
		list = list[:min(len(list), n)]
	}
	return list
}

// samplePart is the tokens of the vocabulary that one goroutine weighs.
const samplePart = 1 << 13

// sample picks the token of a position. At temperature 0 it is the most probable one, of equal ones
// the smallest id. Otherwise seed and position alone decide, so a sequence that is computed again
// draws the same.
func (d distribution) sample(temperature float64, seed uint64, position int) int32 {
	if temperature <= 0 {
		return d.top(1)[0].ID
	}
	top, weights := float64(slices.Max(d.logits)), make([]float64, len(d.logits))
	sums := make([]float64, (len(weights)+samplePart-1)/samplePart)
	var group sync.WaitGroup
	for part := range sums {
		group.Go(func() {
			first := part * samplePart
			for id, v := range d.logits[first:min(first+samplePart, len(weights))] {
				weights[first+id] = math.Exp((float64(v) - top) / temperature)
				sums[part] += weights[first+id]
			}
		})
	}
	group.Wait()
	sum := 0.0
	for _, s := range sums {
		sum += s
	}
	left := rand.New(rand.NewPCG(seed, uint64(position))).Float64() * sum
	last := int32(0)
	for id, p := range weights {
		if p > 0 {
			last = int32(id)
		}
		if left -= p; left < 0 {
			break
		}
	}
	return last
}
