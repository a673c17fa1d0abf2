// Package formula computes layers of attention from their definition. It shares no code with what
// it checks, but for the configuration of a model, number formats and records.
//
// A Sequence computes all layers of a model of DeepSeek-V4 or V4.1. It rounds what the model
// rounds, as DeepSeek-V4.1 was trained; or, with Numerics.Exact, nothing but what caches keep.
//
// Source: inference/model.py of either model.
package formula

import (
	"math"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
)

// turnsOf returns the angles by which the pairs of a rotation turn from one position to the next.
func turnsOf(rope model.Rope) (turns [32]float32) {
	pair := func(turns float64) float64 {
		return 64 * math.Log(float64(rope.Original)/(2*math.Pi*turns)) / (2 * math.Log(rope.Theta))
	}
	for i := range turns {
		slow, own := 0.0, math.Pow(rope.Theta, -float64(i)/32)
		if rope.Scaled() {
			low, high := max(math.Floor(pair(rope.BetaFast)), 0), min(math.Ceil(pair(rope.BetaSlow)), 63)
			slow = min(max((float64(i)-low)/max(high-low, 1e-3), 0), 1)
			own = own/rope.Factor*slow + own*(1-slow)
		}
		turns[i] = float32(own)
	}
	return turns
}

// dot returns a sum of products in four parts. Products of a weight and a bf16 number are exact.
func dot[A, B float32 | float64](a []A, b []B) float64 {
	var s0, s1, s2, s3 float64
	for ; len(a) >= 4; a, b = a[4:], b[4:] {
		b := b[:4:4]
		s0 += float64(a[0]) * float64(b[0])
		s1 += float64(a[1]) * float64(b[1])
		s2 += float64(a[2]) * float64(b[2])
		s3 += float64(a[3]) * float64(b[3])
	}
	for i, v := range a {
		s0 += float64(v) * float64(b[i])
	}
	return s0 + s1 + s2 + s3
}

// normed returns weight * x over the root of its mean square.
func normed(eps float32, x []float64, weight []float32) []float64 {
	r, y := 1/math.Sqrt(dot(x, x)/float64(len(x))+float64(eps)), make([]float64, len(x))
	for i, v := range x {
		y[i] = v * (r * float64(weight[i]))
	}
	return y
}

// States returns what all layers of a draft block get of the tokens of their context, [T][Hidden]:
// the norm of the projection of states one after another, [T][Hidden] each. In DeepSeek-V4 they are
// the states after the layers that dspark_target_layer_ids names, each the mean of its streams.
//
// Source: Transformer.forward and DSparkBlock.forward_embed in inference/model.py.
func States(eps float32, project, norm []float32, states ...[][]float64) (main [][]float64) {
	for t := range states[0] {
		var x, y []float64
		for _, s := range states {
			x = append(x, s[t]...)
		}
		for row := range slices.Chunk(project, len(x)) {
			y = append(y, dot(row, x))
		}
		main = append(main, normed(eps, y, norm))
	}
	return main
}

func widened(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}
