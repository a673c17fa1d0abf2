package formula

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Numerics says what a Sequence rounds besides what every DeepSeek-V4.1 model rounds to bf16.
type Numerics struct {
	Records     model.Records // in what bytes rows, entries and keys are kept
	Activations bool          // inputs of products with FP8 weights become E4M3 with a scale for 32, but for wo_a
	Logits      bool          // scores of entries are rounded to bf16 after each step of their sum
	Halves      bool          // inputs of products are halves: below 2^-14, steps of 2^-24
}

// Sequence is one sequence in all layers of a model of DeepSeek-V4.1, as its definition has it:
// layers run in order, one reads what another keeps, and numbers are rounded where the model rounds
// them. It has the state that later tokens need, so that a prompt may come in any parts.
//
// Source: DeepSeek-V4.1's inference/model.py.
type Sequence struct {
	// Given may say what is used in place of what a layer with an indexer chose for a token: picks
	// and, of a layer that makes candidates, their blocks, unless these are nil. Without it that is
	// what was chosen.
	Given func(layer, position int) (picks, blocks []int)

	cfg    model.Config
	num    Numerics
	layers []*state
	next   int // position of the next token
}

// state holds what a layer keeps of a sequence.
type state struct {
	model.Layer
	number  int
	values  func(name string) []float32
	turns   [32]float32
	kv      [][]float64 // pooled rows of a group that is not complete
	gate    [][]float64 // their scores
	window  []row       // by position
	entries []row       // by entry
	keys    []row       // by entry

	picks  map[int][]int // by position
	blocks map[int][]int // by position: candidates, ascending

}

// row is a row as it is kept, and what its bytes mean.
type row struct {
	bytes  []byte // data, then scales
	values []float32
}

// Rounded holds what a layer makes of a token, or of a token of a block of drafts.
type Rounded struct {
	Out    []float32 // [Hidden], bf16 numbers
	Picks  []int     // entries that its indexer chose, ascending; nil without an indexer
	Blocks []int     // candidates, ascending, of a layer that makes them
	Logits []float32 // scores of entries, -Inf for those that are not scored; nil without an indexer
}

// NewSequence returns an empty sequence. values are the tensors of all layers by their released
// names.
func NewSequence(cfg model.Config, num Numerics, values map[string][]float32) *Sequence {
	s, drafts := &Sequence{cfg: cfg, num: num}, 0
	for i, l := range cfg.Layers {
		stem := fmt.Sprintf("layers.%d.attn.", i)
		if l.Draft {
			stem = fmt.Sprintf("mtp.%d.attn.", drafts)
			drafts++
		}
		s.layers = append(s.layers, &state{Layer: l, number: i, turns: turnsOf(cfg.Rope(i)),
			picks: map[int][]int{}, blocks: map[int][]int{}, values: func(name string) []float32 { return values[stem+name] }})
	}
	return s
}

// Kept returns the bytes that a layer keeps, rows of data and scales: of its window by position, of
// its entries and of its keys by entry.
func (s *Sequence) Kept(layer int) (window, entries, keys [][]byte) {
	bytes := func(rows []row) (list [][]byte) {
		for _, r := range rows {
			list = append(list, r.bytes)
		}
		return list
	}
	l := s.layers[layer]
	return bytes(l.window), bytes(l.entries), bytes(l.keys)
}

// Step takes the next T tokens: hidden has, for each layer that does not draft, [T, Hidden] as bf16
// numbers. It returns what each of those layers makes of each token.
func (s *Sequence) Step(hidden [][]float32) (all [][]Rounded) {
	tokens := len(hidden[0]) / s.cfg.Hidden
	for i := range hidden {
		all = append(all, s.layers[i].step(s, split(hidden[i], s.cfg.Hidden)))
	}
	s.next += tokens
	return all
}

// Skip stands for the next n tokens, known only by their bytes: kept gives what a layer keeps
// at a position of its window, or of an entry or of its key; nil stands for zeros. Of a group that
// is not complete there are zeros.
func (s *Sequence) Skip(n int, kept func(layer int, store model.Store, at int) []byte) {
	for _, l := range s.layers {
		l.window = l.skipped(s, l.window, model.StoreWindow, s.next+n, kept)
		if !l.Compresses() {
			continue
		}
		l.entries = l.skipped(s, l.entries, model.StoreEntries, (s.next+n)/l.Ratio, kept)
		l.keys = l.skipped(s, l.keys, model.StoreKeys, (s.next+n)/l.Ratio, kept)
		l.kv, l.gate = nil, nil
		for range (s.next + n) % l.Ratio {
			l.kv, l.gate = append(l.kv, make([]float64, cache.D)), append(l.gate, make([]float64, cache.D))
		}
	}
	s.next += n
}

// skipped appends rows that were not computed, until there are n.
func (l *state) skipped(s *Sequence, rows []row, store model.Store, n int, kept func(layer int, store model.Store, at int) []byte) []row {
	width := cache.D
	if store == model.StoreKeys {
		width = cache.IndexDim
	}
	zeros := row{values: make([]float32, width)}
	for at := len(rows); at < n; at++ {
		bytes := kept(l.number, store, at)
		if bytes == nil {
			rows = append(rows, zeros)
			continue
		}
		back := make([]uint16, width)
		if format := s.num.Records.Keys(); store == model.StoreKeys {
			data, scale := bytes[:format.RowBytes()], bytes[format.RowBytes():]
			cache.DecodeKeyRef(back, format, data, [cache.IndexScaleBytes]byte(scale))
		} else {
			r := s.num.Records.Record(store)
			r.DecodeRef(back, bytes[:r.RowBytes()], bytes[r.RowBytes():])
		}
		rows = append(rows, row{bytes, numfmt.BF16DecodeSlice(nil, back)})
	}
	return rows
}

// Context gives a layer that drafts the rows of the next tokens of its context, [T, Hidden] bf16
// numbers: what the model makes of them, not the draft.
func (s *Sequence) Context(layer int, rows []float32) {
	l := s.layers[layer]
	for _, x := range split(rows, s.cfg.Hidden) {
		l.window = append(l.window, l.windowRow(s, x, len(l.window)))
	}
}

// Draft returns what a layer makes of a block of drafts after context position last. Each token
// attends the window that ends there and the whole block. The block is not kept.
func (s *Sequence) Draft(layer, last int, block []float32) []Rounded {
	l := s.layers[layer]
	rows := slices.Clone(l.window[max(0, last+1-s.cfg.Window) : last+1])
	tokens := split(block, s.cfg.Hidden)
	for i, x := range tokens {
		rows = append(rows, l.windowRow(s, x, last+1+i))
	}
	return each(len(tokens), func(i int) Rounded {
		p := last + 1 + i
		return Rounded{Out: l.out(s, l.query(s, tokens[i], p), rows, p)}
	})
}

func split(values []float32, width int) (rows [][]float64) {
	for row := range slices.Chunk(values, width) {
		rows = append(rows, widened(row))
	}
	return rows
}

// each calls f for 0 to n-1, some at a time.
func each[T any](n int, f func(i int) T) []T {
	list, next := make([]T, n), make(chan int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range next {
				list[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return list
}

// step returns a layer's. Rows, entries and keys of all tokens come first; which of them a token
// sees follows from its position.
func (l *state) step(s *Sequence, hidden [][]float64) []Rounded {
	first := s.next
	l.window = append(l.window, each(len(hidden), func(t int) row { return l.windowRow(s, hidden[t], first+t) })...)
	if l.Compresses() {
		for t, x := range hidden {
			l.compress(s, x, first+t)
		}
	}
	queries := each(len(hidden), func(t int) *query { return l.query(s, hidden[t], first+t) })
	results := each(len(hidden), func(t int) Rounded { return l.choose(s, queries[t], hidden[t], first+t) })
	for t, r := range results {
		p := first + t
		if l.picks[p], l.blocks[p] = r.Picks, r.Blocks; l.Picks == model.PickOwn && s.Given != nil {
			picks, blocks := s.Given(l.number, p)
			if l.picks[p] = picks; blocks != nil {
				l.blocks[p] = blocks
			}
		}
	}
	outs := each(len(hidden), func(t int) []float32 {
		p := first + t
		rows := slices.Clone(l.window[max(0, p+1-s.cfg.Window) : p+1])
		for _, e := range s.layers[l.PicksOf].picks[p] {
			rows = append(rows, s.layers[l.EntriesOf].entries[e])
		}
		return l.out(s, queries[t], rows, p)
	})
	for t := range results {
		results[t].Out = outs[t]
	}
	return results
}

// fp8 are the products whose weights are FP8 in a released checkpoint and whose inputs become FP8.
var fp8 = []string{"wq_a", "wq_b", "wkv", "wo_b", "indexer.wq_b"}

// product is W x, not rounded.
func (l *state) product(s *Sequence, name string, x []float64) []float64 {
	if s.num.Activations && slices.Contains(fp8, name) {
		x = quantised(x)
	}
	w, narrow := l.values(name+".weight"), make([]float32, len(x))
	for i, v := range x {
		if narrow[i] = float32(v); s.num.Halves {
			narrow[i] = numfmt.F16Decode(numfmt.F16Encode(narrow[i]))
		}
	}
	y := make([]float64, 0, len(w)/len(x))
	for r := range slices.Chunk(w, len(x)) {
		y = append(y, dot32(r, narrow))
	}
	return y
}

// quantised is x in E4M3 with a power of two as scale for each 32.
func quantised(x []float64) []float64 {
	y := make([]float64, 0, len(x))
	for block := range slices.Chunk(x, 32) {
		amax := 0.0
		for _, v := range block {
			amax = max(amax, math.Abs(v))
		}
		sb := numfmt.UE8M0Encode(float32(amax), numfmt.KCacheEps, numfmt.E4M3InvMax)
		for _, v := range block {
			code := numfmt.E4M3Encode(float32(v) * numfmt.UE8M0Inverse(sb))
			y = append(y, float64(numfmt.E4M3Decode(code)*numfmt.UE8M0Scale(sb)))
		}
	}
	return y
}

// dot32 returns a sum of products of bf16 numbers in four parts.
func dot32(a, b []float32) float64 {
	var s0, s1, s2, s3 float64
	for ; len(a) >= 4; a, b = a[4:], b[4:] {
		b := b[:4:4]
		s0 += float64(a[0] * b[0]) // exact: 16 bits
		s1 += float64(a[1] * b[1])
		s2 += float64(a[2] * b[2])
		s3 += float64(a[3] * b[3])
	}
	for i, v := range a {
		s0 += float64(v * b[i])
	}
	return s0 + s1 + s2 + s3
}

func bf16s(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(numfmt.BF16Round(float32(v)))
	}
	return y
}

// normed is bf16(weight * x / root of its mean square) of x rounded to bf16.
func (l *state) normed(s *Sequence, name string, x []float64) []float64 {
	x = bf16s(x)
	r, weight := 1/math.Sqrt(dot(x, x)/float64(len(x))+float64(s.cfg.Eps)), l.values(name+".weight")
	for i := range x {
		x[i] *= r * float64(weight[i])
	}
	return bf16s(x)
}

// turned turns the last 64 numbers as position p does, in f32, and rounds to bf16.
func turned(turns *[32]float32, x []float64, p int, sign float32) []float64 {
	y := slices.Clone(x)
	tail := y[len(y)-64:]
	for i, t := range turns {
		angle := float64(float32(p) * t)
		c, sn, e, o := float32(math.Cos(angle)), sign*float32(math.Sin(angle)), float32(tail[2*i]), float32(tail[2*i+1])
		tail[2*i], tail[2*i+1] = float64(float32(e*c)-float32(o*sn)), float64(float32(o*c)+float32(e*sn))
	}
	return bf16s(y)
}

func bits(x []float64) []uint16 {
	b := make([]uint16, len(x))
	for i, v := range x {
		b[i] = numfmt.BF16Encode(float32(v))
	}
	return b
}

// stored returns a row of 512 numbers as a store keeps it.
func stored(r cache.Record, x []float64) row {
	bytes, back := make([]byte, r.SlotBytes()), make([]uint16, len(x))
	data, scales := bytes[:r.RowBytes()], bytes[r.RowBytes():]
	r.EncodeRef(data, scales, bits(x))
	r.DecodeRef(back, data, scales)
	return row{bytes, numfmt.BF16DecodeSlice(nil, back)}
}

// key returns an index key or query of 128 numbers as it is kept.
func key(format cache.IndexKeyFormat, x []float64) row {
	codes, scale := cache.QuantiseKeyRef(bits(x), format)
	back := make([]uint16, len(x))
	cache.DecodeKeyRef(back, format, codes, scale)
	return row{append(codes, scale[:]...), numfmt.BF16DecodeSlice(nil, back)}
}

// windowRow returns a token's row of the window.
func (l *state) windowRow(s *Sequence, x []float64, p int) row {
	kv := turned(&l.turns, l.normed(s, "kv_norm", l.product(s, "wkv", x)), p, 1)
	return stored(s.num.Records.Record(model.StoreWindow), kv)
}

// compress takes a token's part in an entry. The group's last token makes it, and its index key.
func (l *state) compress(s *Sequence, x []float64, p int) {
	l.kv = append(l.kv, l.product(s, "compressor.wkv", x))
	if l.Gated() {
		l.gate = append(l.gate, l.product(s, "compressor.wgate", x))
	}
	if len(l.kv) < l.Ratio {
		return
	}
	v := l.kv[0]
	if l.Gated() {
		v = pooled(l.kv, l.gate)
	}
	l.kv, l.gate = nil, nil
	first := p + 1 - l.Ratio
	latent := l.normed(s, "compressor.norm", v)
	k := turned(&l.turns, l.normed(s, "indexer.k_norm", l.product(s, "indexer.wk", latent)), first, 1)
	l.keys = append(l.keys, key(s.num.Records.Keys(), k))
	l.entries = append(l.entries, stored(s.num.Records.Record(model.StoreEntries), turned(&l.turns, latent, first, 1)))
}

// pooled weighs the rows of a group, each channel by itself.
func pooled(kv, gate [][]float64) []float64 {
	v := make([]float64, len(kv[0]))
	for c := range v {
		sum, of, top := 0.0, 0.0, math.Inf(-1)
		for i := range kv {
			top = max(top, gate[i][c])
		}
		for i := range kv {
			w := math.Exp(gate[i][c] - top)
			sum, of = sum+w*kv[i][c], of+w
		}
		v[c] = sum / of
	}
	return v
}
