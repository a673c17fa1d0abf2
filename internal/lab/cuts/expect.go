package cuts

import (
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
)

// Bounds on the distance of a token's output from what it asked for, by the length of the latter.
// Numbers that are not turned are stored as E4M3, which rounds by 1/16 at most and by 0.026 in the
// mean; turned ones as bf16, and the angle of a pair is seen in these alone.
const (
	foundWithin  = 0.06
	turnedWithin = 0.02
	foundNothing = 0.5
)

// check demands that a token found in a layer what it asked for. picks may be nil.
func (s *story) check(layer, t int, out []float32, picks []int32) error {
	c := &s.layers[layer]
	a := c.asks[t]
	if a.kind == askMean {
		return nil
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("layer %d (%s), token %d: %s", layer, c.spec.Name, t, fmt.Sprintf(format, args...))
	}
	if a.kind == askEntry && c.spec.Picks != model.PickNone && !slices.Contains(picks, int32(a.entry)) {
		return fail("entry %d of token %d is not among its picks %v", a.entry, a.token, picks)
	}
	want := s.found(layer, t)
	all, angles := distances(out, want)
	switch {
	case a.kind == askBeyond && all < foundNothing:
		return fail("%.3f from token %d, which is not in its window", all, a.token)
	case a.kind != askBeyond && !(all < foundWithin && angles < turnedWithin):
		return fail("%.3f from what token %d left it, want less than %g; the turned numbers %.3f, want less than %g",
			all, a.token, foundWithin, angles, turnedWithin)
	}
	return nil
}

// distances are those of a whole output and of the turned numbers in it, by the length of what is
// wanted.
func distances(out []float32, want []float64) (all, angles float64) {
	var d, of [2]float64
	for j, w := range want {
		_, at := output(j)
		part := 0
		if at >= model.HeadDim-turned {
			part = 1
		}
		v := float64(out[j])
		d[part], of[part] = d[part]+(v-w)*(v-w), of[part]+w*w
	}
	for _, v := range out[outputs:] {
		d[0] += float64(v) * float64(v)
	}
	return math.Sqrt((d[0] + d[1]) / (of[0] + of[1])), math.Sqrt(d[1] / of[1])
}

// found is the output of a token that finds just what it asks for.
func (s *story) found(layer, t int) []float64 {
	c := &s.layers[layer]
	a := c.asks[t]
	at, norm := a.token, s.l.values[fmt.Sprintf("layers.%d.attn.kv_norm.weight", layer)]
	if a.kind == askEntry {
		at, norm = a.entry*c.spec.Ratio, s.l.values[fmt.Sprintf("layers.%d.attn.compressor.norm.weight", layer)]
	}
	var head [model.HeadDim]float64
	for d := range head {
		head[d] = float64(sign(d)) * float64(s.contents[a.token][a.by[d%features]]) * float64(norm[d])
	}
	turn(head[model.HeadDim-turned:], s.l.cfg.Rope(s.l.layers[layer].Layer), at-t)
	want := make([]float64, outputs)
	for j := range want {
		_, d := output(j)
		want[j] = head[d]
	}
	return want
}

// turn turns pairs by the angles of a distance in tokens, as the documents' precompute_freqs_cis
// has them.
func turn(x []float64, r model.Rope, distance int) {
	n := float64(len(x))
	pair := func(turns float64) float64 { // which turns so often over the original positions
		return n * math.Log(float64(r.Original)/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	for i := range len(x) / 2 {
		f := math.Pow(r.Theta, -2*float64(i)/n)
		if r.Factor > 1 {
			low, high := math.Max(math.Floor(pair(r.BetaFast)), 0), math.Min(math.Ceil(pair(r.BetaSlow)), n-1)
			ramp := math.Min(math.Max((float64(i)-low)/(high-low), 0), 1)
			f = f/r.Factor*ramp + f*(1-ramp)
		}
		sin, cos := math.Sincos(float64(distance) * f)
		a, b := x[2*i], x[2*i+1]
		x[2*i], x[2*i+1] = a*cos-b*sin, b*cos+a*sin
	}
}
