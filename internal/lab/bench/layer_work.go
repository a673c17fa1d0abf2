package bench

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Work is the least that an operation has to read and write, and its matrix products.
type Work struct {
	Weights     float64 `json:"weight_bytes"`
	Cache       float64 `json:"cache_bytes"` // pages of every kind, compressor states too
	Activations float64 `json:"activation_bytes"`
	Flop        float64 `json:"flop"`
}

// Bytes returns all of them.
func (w Work) Bytes() float64 { return w.Weights + w.Cache + w.Activations }

func (w Work) plus(x Work) Work {
	return Work{w.Weights + x.Weights, w.Cache + x.Cache, w.Activations + x.Activations, w.Flop + x.Flop}
}

// Limit returns how many microseconds a device with these limits needs at least: for the
// bytes or for the products, whichever is longer.
func (w Work) Limit(l Limits) float64 {
	return max(w.Bytes()/l.CopyGBs/1e3, w.Flop/l.MatrixTFLOPs/1e6)
}

// stepShape holds what a step's work depends on: for each request its tokens, the
// last new are in the step.
type stepShape struct {
	lens, news []int
	draft      bool // the new tokens are blocks of drafts
	prefill    bool // they are a chunk of a prompt
	keys       cache.IndexKeyFormat
}

// drafts are blocks of drafts after the step.
func (s stepShape) drafts(block int) stepShape {
	x := s
	x.lens, x.news, x.draft = nil, nil, true
	for _, n := range s.lens {
		x.lens, x.news = append(x.lens, n+block), append(x.news, block)
	}
	return x
}

// tokens is T.
func (s stepShape) tokens() int {
	n := 0
	for _, v := range s.news {
		n += v
	}
	return n
}

// requests calls f for each request with its first new position and the position after
// its last.
func (s stepShape) requests(f func(first, end int)) {
	for i, n := range s.news {
		f(s.lens[i]-n, s.lens[i])
	}
}

// completed returns how many entries the step's tokens complete.
func (s stepShape) completed(ratio int) float64 {
	n := 0
	s.requests(func(first, end int) { n += end/ratio - first/ratio })
	return float64(n)
}

// attended returns how many rows the tokens of a step attend, and the bytes of those that differ:
// rows of one request are read once for all its tokens, at best.
func (s stepShape) attended(c model.Config, spec model.LayerSpec) (all, bytes float64) {
	window, entry := c.Records.Record(model.StoreWindow).SlotBytes(), c.Records.Record(model.StoreEntries).SlotBytes()
	s.requests(func(first, end int) {
		rows, picks := 0, 0
		if s.draft { // the window in front of the block, and all of it
			n := min(first, c.Window) + end - first
			all, bytes = all+float64(n*(end-first)), bytes+float64(window*n)
			return
		}
		for p := first; p < end; p++ {
			n := entries(spec, p+1)
			if spec.Picks != model.PickNone {
				n = min(n, c.TopK)
			}
			rows, picks = rows+min(p+1, c.Window), picks+n
		}
		all += float64(rows + picks)
		bytes += float64(window*min(rows, end, end-first+c.Window-1) + entry*min(picks, entries(spec, end)))
	})
	return all, bytes
}

// entries returns the compressed entries that a number of tokens has.
func entries(spec model.LayerSpec, tokens int) int {
	if spec.Ratio == 0 {
		return 0
	}
	return tokens / spec.Ratio
}

// scored returns how many entries the indexer scores for the step's tokens, how many different
// ones, and how many blocks of candidates it is told or tells.
func (s stepShape) scored(c model.Config, spec model.LayerSpec) (all, different, blocks float64) {
	s.requests(func(first, end int) {
		sum := 0
		for p := first; p < end; p++ {
			n := entries(spec, p+1)
			if spec.Candidates != model.CandidatesNone {
				few := min((n+c.CandidateBlock-1)/c.CandidateBlock, c.CandidateBlocks)
				blocks += float64(few)
				if spec.Candidates == model.CandidatesUsed {
					n = min(n, few*c.CandidateBlock)
				}
			}
			sum += n
		}
		all += float64(sum)
		different += float64(min(sum, entries(spec, end)))
	})
	return all, different, blocks
}

// keyBytes returns what an index key takes.
func (s stepShape) keyBytes() int { return s.keys.RowBytes() + cache.IndexScaleBytes }

// layerWork returns the work of a layer's operations by the names of its sections. All sizes
// are those of the whole model.
func layerWork(c model.Config, spec model.LayerSpec, w *randomLayer, s stepShape) map[string]Work {
	t, h, d := float64(s.tokens()), float64(c.Heads), 512.0
	of := func(rows float64, x model.DeviceMatrix, groups, outBytes float64) Work {
		n, k := float64(x.N), float64(x.K)
		return Work{Weights: matrixBytes(x), Activations: rows * (k*groups*2 + n*outBytes), Flop: 2 * rows * n * k}
	}
	product := func(x model.DeviceMatrix, groups, outBytes float64) Work { return of(t, x, groups, outBytes) }
	slot := func(s model.Store) float64 { return float64(c.Records.Record(s).SlotBytes()) }
	work := map[string]Work{
		"wq_a|wkv":              product(w.QKV, 1, 2),
		"q_kv_norm":             {Activations: 4 * t * float64(c.QRank+512)}, // less where it is part of what follows
		"wq_b":                  product(w.QB, 1, 2),
		"q_norm_rope_kv_insert": {Activations: 4*t*h*d + 2*t*d, Cache: t * slot(model.StoreWindow)},
		"inverse_rope":          {Activations: 4 * t * h * 64},
		"wo_a":                  product(w.OA, float64(c.Groups), 2),
		"wo_b":                  product(w.OB, 1, 2),
	}
	if spec.Block && !s.draft { // it keeps rows, and gives nothing
		kv := 512 / float64(w.QKV.N)
		x := work["wq_a|wkv"]
		return map[string]Work{"q_kv_norm": {Activations: 4 * t * d},
			"q_norm_rope_kv_insert": {Activations: 2 * t * d, Cache: t * slot(model.StoreWindow)},
			"wq_a|wkv":              {Weights: x.Weights * kv, Activations: 2 * t * (float64(w.QKV.K) + d), Flop: x.Flop * kv}}
	}
	all, rows := s.attended(c, spec)
	work["attention"] = Work{Cache: rows + 4*all, Activations: 4 * t * h * d, Flop: 4 * all * h * d}
	if w.Compressor != nil {
		work["compressor.wkv|wgate"] = product(w.Compressor.KVGate, 1, 4)
		compressorWork(work, "compressor.", spec.Compression(cache.D), s, slot(model.StoreEntries))
	}
	if x := w.Indexer; x != nil {
		hi, row := float64(c.IndexHeads), float64(s.keyBytes())
		work["indexer.wq_b"] = product(x.QB, 1, 2)
		work["indexer.weights_proj"] = product(x.Weights, 1, 2)
		if x.Compressor != nil {
			work["indexer.compressor.wkv|wgate"] = product(x.Compressor.KVGate, 1, 4)
		}
		if x.Keys != nil {
			work["indexer.wk"] = of(s.completed(spec.Ratio), x.Keys.K, 1, 4)
		}
		if x.Compressor != nil || x.Keys != nil {
			compressorWork(work, "indexer.compressor.", spec.Compression(cache.IndexDim), s, row)
		}
		work["indexer.q_quantise"] = Work{Activations: t * hi * (256 + 2 + row + 4)}
		scored, keys, blocks := s.scored(c, spec)
		// Picks and their slots are written, blocks of candidates written or read.
		work["indexer.select"] = Work{Cache: keys * row, Activations: t*hi*(row+4) + 8*t*float64(c.TopK) + 4*blocks,
			Flop: 2 * scored * hi * 128}
	}
	return work
}

// compressorWork adds saving a step's states, and pooling those of completed entries, of so many
// bytes: each reads a window of kv values and scores, as many as the entry has numbers. Of one or
// two tokens both are one launch with the name of the second. Without gates there are no states.
func compressorWork(work map[string]Work, name string, c cache.Compression, s stepShape, bytes float64) {
	n, dim := s.completed(c.Ratio), float64(c.Dim)
	compress := Work{Cache: n * bytes}
	if c.Ungated {
		compress.Activations += 4 * n * dim
	} else {
		saved := 8 * float64(s.tokens()*c.Channels())
		work[name+"save"] = Work{Activations: saved, Cache: saved}
		compress.Cache += 8 * n * float64(c.Window()) * dim
	}
	if c.Latent && c.Dim == cache.D {
		compress.Activations += 2 * n * dim // keys are made of these
	}
	work[name+"compress"] = compress
}
