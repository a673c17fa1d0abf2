package cpu

import (
	"math"

	"github.com/vkmla/vkmla/server/weights"
)

// choose picks the experts of a token and their weights: chosen [k], v [k], from the gate's
// logits [E], which become scores.
func choose(chosen []int32, v, logits []float32, l *weights.Layer, id int32, cfg *weights.Config) {
	score(logits, cfg.Scoring)
	k := len(chosen)
	if l.Table != nil {
		copy(chosen, l.Table[int(id)*k:][:k])
	} else {
		best(chosen, logits, l.Bias)
	}
	sum := float32(0)
	for i, e := range chosen {
		v[i] = logits[e]
		sum += v[i]
	}
	if !cfg.Normalise || cfg.Scoring == "softmax" {
		sum = 1
	}
	for i := range v {
		v[i] = v[i] / sum * cfg.Factor
	}
}

// score turns logits into scores.
func score(l []float32, scoring string) {
	switch scoring {
	case "sqrtsoftplus":
		for e, x := range l {
			x := float64(x)
			l[e] = float32(math.Sqrt(max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))))
		}
	case "sigmoid":
		for e, x := range l {
			l[e] = float32(sigmoid(float64(x)))
		}
	default: // softmax
		top, sum := float32(math.Inf(-1)), 0.0
		for _, x := range l {
			top = max(top, x)
		}
		for e, x := range l {
			l[e] = float32(math.Exp(float64(x - top)))
			sum += float64(l[e])
		}
		for e := range l {
			l[e] /= float32(sum)
		}
	}
}

// best lists the indices with the largest s + bias, the largest first. Of equal ones the smaller
// index is larger.
func best(chosen []int32, s, bias []float32) {
	n := 0
	for e := range s {
		x := s[e] + bias[e]
		at := n
		for at > 0 && x > s[chosen[at-1]]+bias[chosen[at-1]] {
			at--
		}
		if at == len(chosen) {
			continue
		}
		n = min(n+1, len(chosen))
		copy(chosen[at+1:n], chosen[at:])
		chosen[at] = int32(e)
	}
}
