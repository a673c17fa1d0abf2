package bench

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Work is the least that an operation has to read and write, and its matrix products.
type Work struct {
	Weights     float64 `json:"weight_bytes"`
	Cache       float64 `json:"cache_bytes"` // pages of every kind, compressor states too
	Activations float64 `json:"activation_bytes"`
	Flop        float64 `json:"flop"`
}

// Bytes is all of them.
func (w Work) Bytes() float64 { return w.Weights + w.Cache + w.Activations }

func (w Work) plus(x Work) Work {
	return Work{w.Weights + x.Weights, w.Cache + x.Cache, w.Activations + x.Activations, w.Flop + x.Flop}
}

// Limit is how many microseconds a device with these limits needs at least: for the
// bytes or for the products, whichever is longer.
func (w Work) Limit(l Limits) float64 {
	return max(w.Bytes()/l.CopyGBs/1e3, w.Flop/l.MatrixTFLOPs/1e6)
}

// stepShape is what a step's work depends on: for each request its tokens, of which the
// last new are in the step.
type stepShape struct {
	lens, news []int
	keys       cache.IndexKeyFormat
	output     pipeline.OutputPath
}

// tokens is T.
func (s stepShape) tokens() int {
	n := 0
	for _, v := range s.news {
		n += v
	}
	return n
}

// requests calls f for each request with its first new position and the position behind
// its last.
func (s stepShape) requests(f func(first, end int)) {
	for i, n := range s.news {
		f(s.lens[i]-n, s.lens[i])
	}
}

// completed is how many entries the step's tokens complete.
func (s stepShape) completed(ratio int) float64 {
	n := 0
	s.requests(func(first, end int) { n += end/ratio - first/ratio })
	return float64(n)
}

// attended is how many rows the tokens of a step attend, and how many different rows
// those are: rows of one request are read once for all its tokens, at best.
func (s stepShape) attended(c model.Config, spec model.LayerSpec) (all, different float64) {
	s.requests(func(first, end int) {
		rows := 0
		for p := first; p < end; p++ {
			n := entries(spec, p+1)
			if spec.Picks != model.PickNone {
				n = min(n, c.TopK)
			}
			rows += min(p+1, c.Window) + n
		}
		all += float64(rows)
		most := min(end, end-first+c.Window-1) + entries(spec, end)
		different += float64(min(rows, most))
	})
	return all, different
}

// entries is how many compressed entries so many tokens have.
func entries(spec model.LayerSpec, tokens int) int {
	if spec.Ratio == 0 {
		return 0
	}
	return tokens / spec.Ratio
}

// scored is how many entries the indexer scores for the step's tokens, and how many
// different ones.
func (s stepShape) scored(spec model.LayerSpec) (all, different float64) {
	s.requests(func(first, end int) {
		for p := first; p < end; p++ {
			all += float64(entries(spec, p+1))
		}
		different += float64(entries(spec, end))
	})
	return all, different
}

// layerWork is the work of a layer's operations by the names of its sections. All sizes
// are those of the whole model.
func layerWork(c model.Config, spec model.LayerSpec, w *randomLayer, s stepShape) map[string]Work {
	t, h, d := float64(s.tokens()), float64(c.Heads), 512.0
	product := func(x model.DeviceMatrix, groups, outBytes float64) Work {
		n, k := float64(x.N), float64(x.K)
		return Work{Weights: matrixBytes(x), Activations: t * (k*groups*2 + n*outBytes), Flop: 2 * t * n * k}
	}
	work := map[string]Work{
		"wq_a|wkv":              product(w.QKV, 1, 2),
		"q_kv_norm":             {Activations: 4 * t * float64(c.QRank+512)}, // less where it is part of what follows
		"wq_b":                  product(w.QB, 1, 2),
		"q_norm_rope_kv_insert": {Activations: 4*t*h*d + 2*t*d, Cache: t * cache.SlotBytes},
		"inverse_rope":          {Activations: 4 * t * h * 64},
		"wo_a":                  product(w.OA, float64(c.Groups), 2),
		"wo_b":                  product(w.OB, 1, 2),
	}
	if s.output != pipeline.OutputBF16 { // all of o is read, and written as codes with scales
		work["inverse_rope"] = Work{Activations: t * h * (2*d + d + 16)}
		wo := work["wo_a"]
		wo.Activations -= t * h * (d - 16)
		work["wo_a"] = wo
	}
	all, different := s.attended(c, spec)
	work["attention"] = Work{Cache: different*cache.SlotBytes + 4*all, Activations: 4 * t * h * d, Flop: 4 * all * h * d}
	if w.Compressor != nil {
		work["compressor.wkv|wgate"] = product(w.Compressor.KVGate, 1, 4)
		saved, entry := compressorWork(spec.Compression(512), s)
		entry.Cache += s.completed(spec.Ratio) * cache.SlotBytes
		work["compressor.save"], work["compressor.compress"] = saved, entry // of one or two tokens, one launch with the name of the second
	}
	if x := w.Indexer; x != nil {
		hi, row := float64(c.IndexHeads), float64(s.keys.RowBytes()+cache.IndexScaleBytes)
		work["indexer.wq_b"] = product(x.QB, 1, 2)
		work["indexer.weights_proj"] = product(x.Weights, 1, 2)
		work["indexer.compressor.wkv|wgate"] = product(x.Compressor.KVGate, 1, 4)
		saved, entry := compressorWork(spec.Compression(128), s)
		entry.Cache += s.completed(spec.Ratio) * row
		work["indexer.compressor.save"], work["indexer.compressor.compress"] = saved, entry
		work["indexer.q_quantise"] = Work{Activations: t * hi * (256 + 2 + row + 4)}
		scored, keys := s.scored(spec)
		// Picks and their slots are written.
		work["indexer.select"] = Work{Cache: keys * row, Activations: t*hi*(row+4) + 8*t*float64(c.TopK), Flop: 2 * scored * hi * 128}
	}
	return work
}

// compressorWork is saving a step's states, and pooling those of completed entries: each
// reads a window of kv values and scores, as many as the entry has numbers.
func compressorWork(c cache.Compression, s stepShape) (save, compress Work) {
	saved := 8 * float64(s.tokens()*c.Channels())
	save = Work{Activations: saved, Cache: saved}
	compress = Work{Cache: 8 * s.completed(c.Ratio) * float64(c.Window()*c.Dim)}
	return save, compress
}
