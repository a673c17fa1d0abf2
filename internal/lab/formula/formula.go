// Package formula computes whole layers of attention from their definition. It shares no code with
// what it checks, but for the configuration of a model, number formats and records.
//
// Run computes one layer of DeepSeek-V4, and Draft one of its draft block: float64 throughout,
// nothing cached, quantised or rounded. A Sequence computes all layers of DeepSeek-V4.1, which was
// trained with rounded rows, entries and keys, and the draft block of DeepSeek-V4: it rounds what
// the model rounds.
//
// Source: DeepSeek-V4's inference/model.py.
package formula

import (
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
)

// Inputs gives what a product, by released name, takes of a row, what a "cache" keeps of one to
// attend, and what an "index" scores of a query's head or a key; nil: the row.
type Inputs func(product string, x []float64) []float64

// Result holds what a layer makes of T tokens.
type Result struct {
	Out    [][]float64 // [T][Hidden]
	Picks  [][]int     // [T]: the compressed entries that each token attends, ascending
	Scores [][]float64 // [T]: of its entries, nil where it attends all
}

// Run computes one layer of a model for one sequence of hidden states [T, Hidden], which enter
// every layer alike. values are the tensors of all layers by their released names.
func Run(cfg model.Config, layer int, values map[string][]float32, in Inputs, hidden []float32) (r Result) {
	f := newFormula(cfg, layer, values, in, hidden)
	r.Out, r.Picks = f.run()
	r.Scores = f.scores
	return r
}

// formula is a layer and what enters it.
type formula struct {
	model.Layer
	cfg    model.Config
	values map[string][]float32 // of all layers' tensors, by released name
	stem   string
	rows   [][]float64 // hidden states
	turns  [32]float32

	entries *formula // whose compressor makes the entries and keys, nil for none
	picks   *formula // whose indexer picks, nil for none
	inputs  Inputs
	scores  [][]float64 // that choose compared
}

func newFormula(cfg model.Config, layer int, values map[string][]float32, in Inputs, hidden []float32) *formula {
	f := &formula{Layer: cfg.Layers[layer], cfg: cfg, values: values, stem: fmt.Sprintf("layers.%d.attn.", layer), inputs: in}
	for row := range slices.Chunk(hidden, cfg.Hidden) {
		f.rows = append(f.rows, bf16s(widened(row))) // as it goes in
	}
	f.turns = turnsOf(cfg.Rope(layer))
	from := func(source int) *formula {
		if source == layer {
			return f
		}
		return newFormula(cfg, source, values, in, hidden) // all layers get the same hidden states
	}
	if f.Ratio > 0 {
		f.entries = from(f.EntriesOf)
	}
	if f.Picks != model.PickNone {
		f.picks = from(f.PicksOf)
	}
	return f
}

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

func (f *formula) tensor(name string) []float64 { return widened(f.values[f.stem+name]) }

// linear multiplies rows with a matrix of as many columns.
func (f *formula) linear(name string, rows [][]float64) [][]float64 {
	w := f.tensor(name + ".weight")
	var out [][]float64
	for _, x := range rows {
		var y []float64
		x = f.input(name, x)
		for row := range slices.Chunk(w, len(x)) {
			y = append(y, dot(row, x))
		}
		out = append(out, y)
	}
	return out
}

func (f *formula) input(name string, x []float64) []float64 {
	if f.inputs == nil {
		return x
	}
	return f.inputs(f.stem+name, x)
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

// pool pools every Ratio tokens, with Overlap together with those before them.
func (f *formula) pool(stem string, dim int) (all [][]float64) {
	kv, gate := f.linear(stem+"wkv", f.rows), f.linear(stem+"wgate", f.rows)
	ape, weight := f.tensor(stem+"ape"), f.tensor(stem+"norm.weight")
	window, channels := f.Ratio, dim
	if f.Overlap {
		window, channels = 2*f.Ratio, 2*dim
	}
	for p := f.Ratio - 1; p < len(f.rows); p += f.Ratio {
		x := make([]float64, dim)
		for d := range x {
			var sum, of float64
			for j := range window {
				at, c := p-window+1+j, d
				if j >= f.Ratio {
					c += dim
				}
				if at >= 0 {
					w := math.Exp(gate[at][c] + ape[at%f.Ratio*channels+c])
					sum, of = sum+w*kv[at][c], of+w
				}
			}
			x[d] = sum / of
		}
		x = f.norm(x, weight)
		f.turn(x, p+1-f.Ratio, 1)
		all = append(all, x)
	}
	return all
}

// choose gives the entries that each token attends, in ascending order.
func (f *formula) choose() (all [][]int) {
	var queries, weights, keys [][]float64
	if x := f.picks; x != nil {
		keys = x.entries.pool("indexer.compressor.", 128)
		for i, k := range keys {
			keys[i] = f.input("index", k)
		}
		queries, weights = x.linear("indexer.wq_b", x.bottleneck()), x.linear("indexer.weights_proj", x.rows)
	}
	for t := range f.rows {
		n := 0
		if f.Ratio > 0 {
			n = (t + 1) / f.Ratio
		}
		list := make([]int, n)
		for e := range list {
			list[e] = e
		}
		var scores []float64
		if f.picks != nil && n > f.cfg.TopK {
			scores = f.scored(t, queries[t], weights[t], keys[:n])
			list = best(scores, f.cfg.TopK)
		}
		all, f.scores = append(all, list), append(f.scores, scores)
	}
	return all
}

// scored returns the scores of keys for a token.
func (f *formula) scored(t int, query, weights []float64, keys [][]float64) []float64 {
	scores := make([]float64, len(keys))
	for h, w := range weights {
		q := query[h*128 : (h+1)*128]
		f.turn(q, t, 1)
		q = f.input("index", q)
		for e, key := range keys {
			scores[e] += w * max(dot(q, key), 0)
		}
	}
	return scores
}

// attend returns the output of a head.
func attend(q []float64, rows [][]float64, sink float64) []float64 {
	scores, most := make([]float64, len(rows)), sink
	for i, r := range rows {
		scores[i] = dot(q, r) / math.Sqrt(512)
		most = max(most, scores[i])
	}
	out, of := make([]float64, 512), 0.0
	for i, r := range rows {
		w := math.Exp(scores[i] - most)
		of += w
		for d, v := range r {
			out[d] += w * v
		}
	}
	for d := range out {
		out[d] /= of + math.Exp(sink-most)
	}
	return out
}

// bottleneck returns the rows that queries are made of.
func (f *formula) bottleneck() [][]float64 {
	qr, weight := f.linear("wq_a", f.rows), f.tensor("q_norm.weight")
	for t := range qr {
		qr[t] = f.norm(qr[t], weight)
	}
	return qr
}

// run returns the layer's outputs, and the entries that each token attends.
func (f *formula) run() (out [][]float64, picks [][]int) {
	kv := f.window(0)
	var entries [][]float64
	if f.entries != nil {
		entries = f.entries.pool("compressor.", 512)
	}
	for i, e := range entries {
		entries[i] = f.input("cache", e)
	}
	picks = f.choose()
	out = f.outputs(0, func(t int) [][]float64 {
		rows := slices.Clone(kv[max(t+1-f.cfg.Window, 0) : t+1])
		for _, e := range picks[t] {
			rows = append(rows, entries[e])
		}
		return rows
	})
	return out, picks
}

// window returns the rows of the window, of tokens from a position on.
func (f *formula) window(first int) [][]float64 {
	kv, weight := f.linear("wkv", f.rows), f.tensor("kv_norm.weight")
	for t := range kv {
		kv[t] = f.norm(kv[t], weight)
		f.turn(kv[t], first+t, 1)
		kv[t] = f.input("cache", kv[t])
	}
	return kv
}

// outputs returns what tokens from a position on make of the rows that each attends.
func (f *formula) outputs(first int, attended func(t int) [][]float64) [][]float64 {
	queries, sinks, wide := f.linear("wq_b", f.bottleneck()), f.tensor("attn_sink"), f.cfg.Heads/f.cfg.Groups*512
	oa, zs := f.tensor("wo_a.weight"), [][]float64(nil)
	for t, q := range queries {
		rows := attended(t)
		var o, z []float64
		for h, sink := range sinks {
			x := f.norm(q[h*512:(h+1)*512], nil)
			f.turn(x, first+t, 1)
			x = attend(x, rows, sink)
			f.turn(x, first+t, -1)
			o = append(o, x...)
		}
		for g := range f.cfg.Groups {
			x := f.input("wo_a", o[g*wide:(g+1)*wide])
			for n := g * f.cfg.ORank; n < (g+1)*f.cfg.ORank; n++ {
				z = append(z, dot(oa[n*wide:(n+1)*wide], x))
			}
		}
		zs = append(zs, z)
	}
	return f.linear("wo_b", zs)
}
