package sequences

import (
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

// foundNothing is the least distance of an output from what it must not find, by the length
// of that.
const foundNothing = 0.5

// check demands that a token found in a layer what it wants. picks may be nil.
func (s *script) check(layer, t int, out []float32, picks []int32) error {
	c := &s.views[layer]
	switch {
	case c.wants == nil:
		return nil
	case s.equal:
		return s.earliest(layer, t, picks)
	}
	a := c.wants[t]
	fail := func(format string, args ...any) error {
		return fmt.Errorf("layer %d (%s), token %d: %s", layer, c.spec.Name, t, fmt.Sprintf(format, args...))
	}
	if a.kind == wantEntry && c.spec.Picks != model.PickNone && !slices.Contains(picks, int32(a.entry)) {
		return fail("entry %d of token %d is not among its picks %v", a.entry, a.token, picks)
	}
	if a.kind == wantMean {
		all := c.spec.Picks == model.PickOwn && c.spec.Candidates != model.CandidatesUsed
		if all && !slices.Equal(picks, s.first((t+1)/c.spec.Ratio)) {
			return fail("all scores are equal, its picks are %v, want the first entries", picks)
		}
		return nil
	}
	within := models[s.l.o.Model].within
	all, angles := distances(out, s.found(layer, t))
	switch {
	case a.kind == wantGone && all < foundNothing:
		return fail("%.3f from token %d, which is not in its window", all, a.token)
	case a.kind != wantGone && !(all < within.all && angles < within.turned):
		return fail("%.3f from what token %d left it, want less than %g; the turned numbers %.3f, want less than %g",
			all, a.token, within.all, angles, within.turned)
	}
	return nil
}

// first returns the picks of the first visible entries.
func (s *script) first(visible int) []int32 {
	picks := make([]int32, s.l.cfg.TopK)
	for i := range picks {
		if picks[i] = int32(i); i >= visible {
			picks[i] = -1
		}
	}
	return picks
}

// distances returns how far a whole output is from want and how far the turned numbers in it are,
// by the lengths of what is wanted.
func distances(out []float32, want []float64) (all, angles float64) {
	var d, of [2]float64
	for j, w := range want {
		at := output(j)
		part := 0
		if at >= cache.D-turned {
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

// found returns the output of a token that finds just what it wants.
func (s *script) found(layer, t int) []float64 {
	c := &s.views[layer]
	a := c.wants[t]
	root := fmt.Sprintf("layers.%d", layer)
	if n := s.l.main(); layer >= n {
		root = fmt.Sprintf("mtp.%d", layer-n)
	}
	at, store, norm := a.token, model.StoreWindow, s.l.values[root+".attn.kv_norm.weight"]
	if a.kind == wantEntry {
		at, store = a.entry*c.spec.Ratio, model.StoreEntries
		norm = s.l.values[fmt.Sprintf("layers.%d.attn.compressor.norm.weight", c.spec.EntriesOf)]
	}
	head := make([]float64, cache.D)
	for d := range head {
		head[d] = float64(sign(d)) * float64(s.contents[a.token][a.by[d%features]]) * float64(norm[d])
	}
	tail, from := head[cache.D-turned:], at
	if r, all := s.l.o.Model.record(store); all {
		turn(tail, c.spec.Ratio > 0, at)
		asKept(r, head)
		from = 0
	}
	turn(tail, c.spec.Ratio > 0, from-t)
	want := make([]float64, outputs)
	for j := range want {
		d := output(j)
		want[j] = head[d]
	}
	return want
}

// asKept replaces numbers by what a record keeps of them.
func asKept(r cache.Record, x []float64) {
	bits, slot := make([]uint16, len(x)), make([]byte, r.SlotBytes())
	for i, v := range x {
		bits[i] = numfmt.BF16Encode(float32(v))
	}
	data, scales := slot[:r.RowBytes()], slot[r.RowBytes():]
	r.EncodeRef(data, scales, bits)
	r.DecodeRef(bits, data, scales)
	for i, v := range bits {
		x[i] = float64(numfmt.BF16Decode(v))
	}
}

// turn turns pairs by the angles of a distance in tokens. Layers that compress have another base
// and YaRN, as rope_theta, compress_rope_theta and rope_scaling of the released models say. Source:
// precompute_freqs_cis in DeepSeek-V4's inference/model.py.
func turn(x []float64, compresses bool, distance int) {
	const factor, betaFast, betaSlow, original = 16, 32, 1, 65536
	n, theta := float64(len(x)), 10000.0
	if compresses {
		theta = 160000
	}
	pair := func(turns float64) float64 { // which turns so often over the original positions
		return n * math.Log(original/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := math.Max(math.Floor(pair(betaFast)), 0), math.Min(math.Ceil(pair(betaSlow)), n-1)
	for i := range len(x) / 2 {
		f := math.Pow(theta, -2*float64(i)/n)
		if compresses {
			ramp := math.Min(math.Max((float64(i)-low)/(high-low), 0), 1)
			f = f/factor*ramp + f*(1-ramp)
		}
		sin, cos := math.Sincos(float64(distance) * f)
		a, b := x[2*i], x[2*i+1]
		x[2*i], x[2*i+1] = a*cos-b*sin, b*cos+a*sin
	}
}
