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
	Exact       bool          // float64, but for what Records rounds
	Records     model.Records // bytes of rows, entries, keys and queries of keys; 0, if Exact: as they are
	Activations bool          // inputs of products with FP8 weights become E4M3 with a scale for 32, but for wo_a
	Logits      bool          // scores of entries are rounded to bf16 after each step of their sum
	Halves      bool          // inputs of products are halves: below 2^-14, steps of 2^-24
}

// Sequence is one sequence in all layers of a model, as its definition has it: layers run in order,
// and one reads what another keeps. It has the state that later tokens need, so that a prompt may
// come in any parts.
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
	pool    pool  // of entries
	keyPool pool  // of keys, unless these are a product of entries
	window  []row // by position
	entries []row // by entry
	keys    []row // by entry

	picks  map[int][]int // by position
	blocks map[int][]int // by position: candidates, ascending
}

// pool has the tokens that a compressor makes an entry of.
type pool struct {
	stem string      // of its tensors; "": there is none
	kv   [][]float64 // rows of a group that is not complete, with Overlap those of the group before, too
	gate [][]float64 // their scores
}

// row is a row as it is kept, and what its bytes mean.
type row struct {
	bytes  []byte // data, then scales; nil where records are none
	values []float64
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
		x := &state{Layer: l, number: i, turns: turnsOf(cfg.Rope(i)), pool: pool{stem: "compressor"},
			picks: map[int][]int{}, blocks: map[int][]int{}, values: func(name string) []float32 { return values[stem+name] }}
		if l.Picks == model.PickOwn && !l.LatentKeys {
			x.keyPool.stem = "indexer.compressor"
		}
		s.layers = append(s.layers, x)
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

// Step takes the next T tokens: hidden has, for the first layers or all that do not draft, [T,
// Hidden], which become bf16 numbers, or nil for a layer that is left out. It returns what each of
// those layers makes of each token.
func (s *Sequence) Step(hidden [][]float32) (all [][]Rounded) {
	tokens := 0
	for i := range hidden {
		rows := split(hidden[i], s.cfg.Hidden)
		all, tokens = append(all, s.layers[i].step(s, rows)), max(tokens, len(rows))
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
		l.pool.kv, l.pool.gate = nil, nil
		for range (s.next + n) % l.Ratio {
			l.pool.kv, l.pool.gate = append(l.pool.kv, make([]float64, cache.D)), append(l.pool.gate, make([]float64, cache.D))
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
	zeros := row{values: make([]float64, width)}
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
		rows = append(rows, row{bytes, widened(numfmt.BF16DecodeSlice(nil, back))})
	}
	return rows
}

// Context gives a layer that drafts the rows of the next tokens of its context, [T, Hidden], which
// become bf16 numbers: what the model makes of them, not the draft.
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

// split returns rows as they go in.
func split(values []float32, width int) (rows [][]float64) {
	for row := range slices.Chunk(values, width) {
		rows = append(rows, bf16s(widened(row)))
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
		for _, e := range l.attended(s, p) {
			rows = append(rows, s.layers[l.EntriesOf].entries[e])
		}
		return l.out(s, queries[t], rows, p)
	})
	for t := range results {
		results[t].Out = outs[t]
	}
	return results
}

// attended returns the entries that a token attends: those that were picked, or all.
func (l *state) attended(s *Sequence, p int) (list []int) {
	if l.Picks != model.PickNone || l.Ratio == 0 {
		return s.layers[l.PicksOf].picks[p]
	}
	for e := range (p + 1) / l.Ratio {
		list = append(list, e)
	}
	return list
}

// fp8 are the products whose weights are FP8 in a released checkpoint and whose inputs become FP8.
var fp8 = []string{"wq_a", "wq_b", "wkv", "wo_b", "indexer.wq_b"}

// product is W x, not rounded.
func (l *state) product(s *Sequence, name string, x []float64) []float64 {
	if s.num.Activations && slices.Contains(fp8, name) {
		x = quantised(x)
	}
	if s.num.Halves {
		x = slices.Clone(x)
		for i, v := range x {
			x[i] = float64(numfmt.F16Decode(numfmt.F16Encode(float32(v))))
		}
	}
	w := l.values(name + ".weight")
	y := make([]float64, 0, len(w)/len(x))
	for r := range slices.Chunk(w, len(x)) {
		y = append(y, dot(r, x))
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

func bf16s(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(numfmt.BF16Round(float32(v)))
	}
	return y
}

// rounded is x in bf16, unless all is exact.
func (s *Sequence) rounded(x []float64) []float64 {
	if s.num.Exact {
		return x
	}
	return bf16s(x)
}

// normed is bf16(weight * x / root of its mean square) of x rounded to bf16.
func (l *state) normed(s *Sequence, name string, x []float64) []float64 {
	return s.rounded(normed(s.cfg.Eps, s.rounded(x), l.values(name+".weight")))
}

// turned turns the last 64 numbers as position p does, or back with sign -1, in f32, and rounds to
// bf16.
func (s *Sequence) turned(turns *[32]float32, x []float64, p int, sign float64) []float64 {
	f32 := func(v float64) float64 { return float64(float32(v)) }
	if s.num.Exact {
		f32 = func(v float64) float64 { return v }
	}
	y := slices.Clone(x)
	tail := y[len(y)-64:]
	for i, t := range turns {
		angle := float64(float32(p) * t)
		c, sn, e, o := f32(math.Cos(angle)), sign*f32(math.Sin(angle)), tail[2*i], tail[2*i+1]
		tail[2*i], tail[2*i+1] = f32(f32(e*c)-f32(o*sn)), f32(f32(o*c)+f32(e*sn))
	}
	return s.rounded(y)
}

func bits(x []float64) []uint16 { return numfmt.BF16EncodeSlice(nil, narrow(x)) }

// stored returns a row of 512 numbers as a store keeps it.
func (s *Sequence) stored(store model.Store, x []float64) row {
	if s.num.Records == 0 {
		return row{values: x}
	}
	r := s.num.Records.Record(store)
	bytes, back := make([]byte, r.SlotBytes()), make([]uint16, len(x))
	data, scales := bytes[:r.RowBytes()], bytes[r.RowBytes():]
	r.EncodeRef(data, scales, bits(x))
	r.DecodeRef(back, data, scales)
	return row{bytes, widened(numfmt.BF16DecodeSlice(nil, back))}
}

// key returns an index key or query of 128 numbers as it is kept.
func (s *Sequence) key(x []float64) row {
	if s.num.Records == 0 {
		return row{values: x}
	}
	format := s.num.Records.Keys()
	codes, scale := cache.QuantiseKeyRef(bits(x), format)
	back := make([]uint16, len(x))
	cache.DecodeKeyRef(back, format, codes, scale)
	return row{append(codes, scale[:]...), widened(numfmt.BF16DecodeSlice(nil, back))}
}

// windowRow returns a token's row of the window.
func (l *state) windowRow(s *Sequence, x []float64, p int) row {
	kv := s.turned(&l.turns, l.normed(s, "kv_norm", l.product(s, "wkv", x)), p, 1)
	return s.stored(model.StoreWindow, kv)
}

// compress takes a token's part in an entry. The group's last token makes it, and its index key.
func (l *state) compress(s *Sequence, x []float64, p int) {
	latent, key := l.pooled(s, &l.pool, x, p), l.pooled(s, &l.keyPool, x, p)
	if latent == nil {
		return
	}
	first := p + 1 - l.Ratio
	l.entries = append(l.entries, s.stored(model.StoreEntries, s.turned(&l.turns, latent, first, 1)))
	if l.LatentKeys {
		key = l.normed(s, "indexer.k_norm", l.product(s, "indexer.wk", latent))
	}
	if key != nil {
		l.keys = append(l.keys, s.key(s.turned(&l.turns, key, first, 1)))
	}
}

// pooled adds a token to a pool and returns the norm of its group once that is complete, else nil.
func (l *state) pooled(s *Sequence, c *pool, x []float64, p int) []float64 {
	if c.stem == "" {
		return nil
	}
	c.kv = append(c.kv, l.product(s, c.stem+".wkv", x))
	if l.Gated() {
		c.gate = append(c.gate, l.product(s, c.stem+".wgate", x))
	}
	if (p+1)%l.Ratio != 0 {
		return nil
	}
	v := c.kv[0]
	if l.Gated() {
		v = l.weighed(c)
	}
	before := 0
	if l.Overlap {
		before = l.Ratio
	}
	c.kv, c.gate = c.kv[len(c.kv)-before:], c.gate[max(len(c.gate)-before, 0):]
	return l.normed(s, c.stem+".norm", v)
}

// weighed weighs the rows of a group, each channel by itself. With Overlap there are those of the
// group before, too, whose channels are the first half of a row's.
func (l *state) weighed(c *pool) []float64 {
	ape, channels, own := l.values(c.stem+".ape"), len(c.kv[0]), 0
	if l.Overlap {
		own = channels / 2
	}
	v := make([]float64, channels-own)
	for d := range v {
		sum, of, top := 0.0, 0.0, math.Inf(-1)
		at := func(i int) (channel int, score float64) {
			if channel = d; i >= len(c.kv)-l.Ratio {
				channel += own
			}
			if score = c.gate[i][channel]; ape != nil {
				score += float64(ape[i%l.Ratio*channels+channel])
			}
			return channel, score
		}
		for i := range c.kv {
			_, score := at(i)
			top = max(top, score)
		}
		for i := range c.kv {
			channel, score := at(i)
			w := math.Exp(score - top)
			sum, of = sum+w*c.kv[i][channel], of+w
		}
		v[d] = sum / of
	}
	return v
}
