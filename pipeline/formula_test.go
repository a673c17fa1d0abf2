package pipeline_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// formula is a layer of a model written down from its definition: float64 throughout,
// nothing cached, quantised or rounded. It shares no code with what it checks.
type formula struct {
	cfg    model.Config
	ratio  int
	values map[string][]float32 // of the layer's tensors, by released name
	stem   string
	rows   [][]float64 // hidden states
	turns  [32]float32
}

func newFormula(cfg model.Config, layer int, values map[string][]float32, hidden []float32) *formula {
	f := &formula{cfg: cfg, ratio: max(cfg.Layers[layer].Ratio, 1), values: values, stem: fmt.Sprintf("layers.%d.attn.", layer)}
	for row := range slices.Chunk(hidden, cfg.Hidden) {
		x := make([]float64, len(row))
		for i, v := range row {
			x[i] = float64(numfmt.BF16Round(v)) // as it goes in
		}
		f.rows = append(f.rows, x)
	}
	rope := cfg.Main
	if f.ratio != pipeline.RatioWindow {
		rope = cfg.Compress
	}
	pair := func(turns float64) float64 {
		return 64 * math.Log(float64(rope.Original)/(2*math.Pi*turns)) / (2 * math.Log(rope.Theta))
	}
	for i := range f.turns {
		slow, own := 0.0, math.Pow(rope.Theta, -float64(i)/32)
		if rope.Scaled() {
			low, high := max(math.Floor(pair(rope.BetaFast)), 0), min(math.Ceil(pair(rope.BetaSlow)), 63)
			slow = min(max((float64(i)-low)/(high-low), 0), 1)
			own = own/rope.Factor*slow + own*(1-slow)
		}
		f.turns[i] = float32(own)
	}
	return f
}

func (f *formula) tensor(name string) []float64 {
	var v []float64
	for _, x := range f.values[f.stem+name] {
		v = append(v, float64(x))
	}
	return v
}

// linear multiplies rows with a matrix of as many columns.
func (f *formula) linear(name string, rows [][]float64) [][]float64 {
	w := f.tensor(name + ".weight")
	var out [][]float64
	for _, x := range rows {
		var y []float64
		for row := range slices.Chunk(w, len(x)) {
			y = append(y, dot(row, x))
		}
		out = append(out, y)
	}
	return out
}

func dot(a, b []float64) (sum float64) {
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// norm divides by the root of the mean square; a weight may be absent.
func (f *formula) norm(x, weight []float64) []float64 {
	r := 1 / math.Sqrt(dot(x, x)/float64(len(x))+float64(f.cfg.Eps))
	y := make([]float64, len(x))
	for i, v := range x {
		if y[i] = v * r; weight != nil {
			y[i] *= weight[i]
		}
	}
	return y
}

// turn turns the last 64 numbers as position p does, or back with sign -1.
func (f *formula) turn(x []float64, p int, sign float64) {
	x = x[len(x)-64:]
	for i, t := range f.turns {
		angle := float64(float32(p) * t)
		c, s, e, o := math.Cos(angle), sign*math.Sin(angle), x[2*i], x[2*i+1]
		x[2*i], x[2*i+1] = e*c-o*s, o*c+e*s
	}
}

// entries pools every ratio tokens, with ratio 4 and those before them.
func (f *formula) entries(stem string, dim int) (all [][]float64) {
	kv, gate := f.linear(stem+"wkv", f.rows), f.linear(stem+"wgate", f.rows)
	ape, weight := f.tensor(stem+"ape"), f.tensor(stem+"norm.weight")
	window, channels := f.ratio, dim
	if f.ratio == pipeline.RatioC4A {
		window, channels = 2*f.ratio, 2*dim
	}
	for p := f.ratio - 1; p < len(f.rows); p += f.ratio {
		x := make([]float64, dim)
		for d := range x {
			var sum, of float64
			for j := range window {
				at, c := p-window+1+j, d
				if j >= f.ratio {
					c += dim
				}
				if at >= 0 {
					w := math.Exp(gate[at][c] + ape[at%f.ratio*channels+c])
					sum, of = sum+w*kv[at][c], of+w
				}
			}
			x[d] = sum / of
		}
		x = f.norm(x, weight)
		f.turn(x, p+1-f.ratio, 1)
		all = append(all, x)
	}
	return all
}

// picks are the entries that a token attends of n, in ascending order.
func (f *formula) picks(t, n int, queries, weights, keys [][]float64) []int {
	picks, scores := make([]int, n), make([]float64, n)
	for e := range picks {
		picks[e] = e
	}
	if f.ratio != pipeline.RatioC4A || n <= f.cfg.TopK {
		return picks
	}
	for h, w := range weights[t] {
		q := queries[t][h*128 : (h+1)*128]
		f.turn(q, t, 1)
		for e := range picks {
			scores[e] += w * max(dot(q, keys[e]), 0)
		}
	}
	slices.SortStableFunc(picks, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	picks = picks[:f.cfg.TopK]
	slices.Sort(picks)
	return picks
}

// attend is the output of a head.
func attend(q []float64, rows [][]float64, sink float64) []float64 {
	scores, most := make([]float64, len(rows)), sink
	for i, r := range rows {
		scores[i] = dot(q, r) / math.Sqrt(512)
		most = max(most, scores[i])
	}
	out, of := make([]float64, 512), math.Exp(sink-most)
	for i, r := range rows {
		w := math.Exp(scores[i] - most)
		of += w
		for d, v := range r {
			out[d] += w * v
		}
	}
	for d := range out {
		out[d] /= of
	}
	return out
}

// run gives the layer's outputs, and picks of each token.
func (f *formula) run() (out [][]float64, picks [][]int) {
	qr, kv := f.linear("wq_a", f.rows), f.linear("wkv", f.rows)
	qNorm, kvNorm := f.tensor("q_norm.weight"), f.tensor("kv_norm.weight")
	for t := range f.rows {
		qr[t], kv[t] = f.norm(qr[t], qNorm), f.norm(kv[t], kvNorm)
		f.turn(kv[t], t, 1)
	}
	var entries, keys, indexQueries, indexWeights [][]float64
	if f.ratio != pipeline.RatioWindow {
		entries = f.entries("compressor.", 512)
	}
	if f.ratio == pipeline.RatioC4A {
		keys = f.entries("indexer.compressor.", 128)
		indexQueries, indexWeights = f.linear("indexer.wq_b", qr), f.linear("indexer.weights_proj", f.rows)
	}
	queries, sinks, wide := f.linear("wq_b", qr), f.tensor("attn_sink"), f.cfg.Heads/f.cfg.Groups*512
	oa, zs := f.tensor("wo_a.weight"), [][]float64(nil)
	for t, q := range queries {
		rows := slices.Clone(kv[max(t+1-f.cfg.Window, 0) : t+1])
		chosen := f.picks(t, min((t+1)/f.ratio, len(entries)), indexQueries, indexWeights, keys)
		for _, e := range chosen {
			rows = append(rows, entries[e])
		}
		var o, z []float64
		for h, sink := range sinks {
			x := f.norm(q[h*512:(h+1)*512], nil)
			f.turn(x, t, 1)
			x = attend(x, rows, sink)
			f.turn(x, t, -1)
			o = append(o, x...)
		}
		for n := range f.cfg.Groups * f.cfg.ORank {
			g := n / f.cfg.ORank
			z = append(z, dot(oa[n*wide:(n+1)*wide], o[g*wide:(g+1)*wide]))
		}
		zs, picks = append(zs, z), append(picks, chosen)
	}
	return f.linear("wo_b", zs), picks
}

// checkFormula demands that layers agree with the formula as far as bf16 and quantised
// caches let them: 1 - cos below 5e-3 over the tokens that attend the same entries (it is
// about 5e-4), and nine of ten picks.
func checkFormula(t *testing.T, cfg model.Config, values map[string][]float32, hidden []float32, got []pipeline.Appended) {
	t.Helper()
	for layer := range got {
		out, picks := newFormula(cfg, layer, values, hidden).run()
		var product, squares float64
		missed, all, same := 0, 0, 0
		for i, want := range out {
			wrong := 0
			if cfg.Layers[layer].Picks == model.PickOwn {
				width := len(got[layer].TopK) / len(out)
				row := got[layer].TopK[i*width : (i+1)*width]
				for _, e := range picks[i] {
					if !slices.Contains(row, int32(e)) {
						wrong++
					}
				}
			}
			if missed, all = missed+wrong, all+len(picks[i]); wrong > 0 {
				continue
			}
			same++
			for d, w := range want {
				v := float64(got[layer].Out[i*cfg.Hidden+d])
				product, squares = product+v*w, squares+v*v+w*w
			}
		}
		diff := 1 - 2*product/squares
		t.Logf("layer %d: %.3g from the formula, %d of %d picks missed, %d of %d tokens with the same", layer, diff, missed, all, same, len(out))
		if !(diff < 5e-3) || 10*missed > all || 4*same < len(out) {
			t.Errorf("layer %d: %.3g from the formula, %d of %d picks missed, %d of %d tokens with the same", layer, diff, missed, all, same, len(out))
		}
	}
}
