package verify

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
)

// sizes are the lengths that random cases of the index operations use.
var sizes = []int{1, 2, 17, 61, 69, 321}

// casesOf makes a case of each of a list, each from random numbers of its own.
func casesOf[S any](seed uint64, list []S, make func(rng *rand.Rand, i int, s S) Case) (cases []Case) {
	for i, s := range list {
		cases = append(cases, make(rand.New(rand.NewPCG(seed, uint64(i))), i, s))
	}
	return cases
}

// randomTable makes a block table of w pages for each of r requests, all
// different, from a pool that has some more. Where holes is set some entries are
// negative, as they are for pages that are not allocated.
func randomTable(rng *rand.Rand, r, w int, holes bool) Array {
	t := permutation[int32](rng, r*w, r*w+7)
	for i := range t {
		if holes && rng.IntN(16) == 0 {
			t[i] = -1
		}
	}
	return vectors.FromI32(t, r, w)
}

// randomRequests assigns tokens to r requests in ascending order, each with a
// sequence length of at least its number of tokens and at most maxLen. start has
// r+1 elements, from base on.
func randomRequests(rng *rand.Rand, tokens, r, maxLen, base int) (start, seqLens, tokenToReq []int32) {
	start, seqLens, tokenToReq = make([]int32, r+1), make([]int32, r), make([]int32, tokens)
	for i := range tokens {
		tokenToReq[i] = int32(i * r / tokens)
		start[tokenToReq[i]+1]++
	}
	for b := range r {
		n := int(start[b+1])
		start[b+1] += start[b]
		seqLens[b] = int32(n + rng.IntN(max(maxLen-n, 1)))
	}
	for b := range start {
		start[b] += int32(base)
	}
	return start, seqLens, tokenToReq
}

// randomValid marks most tokens as valid.
func randomValid(rng *rand.Rand, n int) Array {
	v := make([]byte, n)
	for i := range v {
		if n == 1 || rng.IntN(5) > 0 {
			v[i] = 1
		}
	}
	return vectors.FromU8(v, n)
}

// randomSet makes a set of cached rows for t tokens with lists of width entries:
// the pool, whose unused slots and padding are poison, the lists with masked
// entries strewn in, and lengths, some of them 0. A dirty set has lengths
// beyond the width and negative ones, and indices beyond the pool.
func randomSet(rng *rand.Rand, t, width int, l cache.Layout, masked, dirty bool) (pool, indices, lens Array) {
	used := max(t*width*3/4, 1) // some slots are on several lists
	pages := (used+l.Page-1)/l.Page + 3
	pool = poisonedPool(pages, l)
	slots := permutation[int64](rng, used, pages*l.Page)
	insertNormal(rng, pool, l, slots)
	for _, id := range slots {
		if rng.IntN(3) == 0 {
			faintBlock(pool.Data, l, id, rng)
		}
	}
	idx, n := make([]int32, t*width), make([]int32, t)
	for i := range idx {
		idx[i] = int32(slots[rng.IntN(used)])
		switch {
		case masked && rng.IntN(6) == 0:
			idx[i] = -1
		case dirty && rng.IntN(8) == 0:
			idx[i] = []int32{-2, math.MinInt32, int32(pages * l.Page), math.MaxInt32}[rng.IntN(4)]
		}
	}
	for i := range n {
		n[i] = int32(width)
		switch rng.IntN(4) {
		case 0:
			n[i] = int32(rng.IntN(width + 1))
		case 1:
			if t > 1 {
				n[i] = int32(rng.IntN(2))
			}
		}
		if dirty && rng.IntN(3) == 0 {
			n[i] = []int32{-1, math.MinInt32, int32(width) + 1, math.MaxInt32}[rng.IntN(4)]
		}
		if n[i] < 0 || int(n[i]) > width {
			continue
		}
		for j := int(n[i]); j < width; j++ {
			if rng.IntN(2) == 0 {
				idx[i*width+j] = -1 // after the length there may be anything
			}
		}
	}
	return pool, vectors.FromI32(idx, t, width), vectors.FromI32(n, t)
}

// insertNormal writes rows of a normal distribution to slots of a pool.
func insertNormal(rng *rand.Rand, pool Array, l cache.Layout, slots []int64) {
	if err := cache.InsertRef(pool.Data, l, normalBF16(rng, 1, len(slots), cache.D).U16(), slots); err != nil {
		panic(err) // a layout of this package that cannot be
	}
}

// faintBlock makes a block of a slot subnormal codes, as large by its scale as others are. Kernels
// that turn codes into binary16 numbers need subnormals of these for it. A block of E2M1 codes has
// its scale made subnormal.
func faintBlock(pool []byte, l cache.Layout, slot int64, rng *rand.Rand) {
	size, blocks := blockDim, blocksV4
	switch l.Record {
	case cache.RecordFP8:
		size, blocks = 32, 16
	case cache.RecordFP4:
		pool[l.ScaleOffset(slot)+rng.Int64N(32)] = byte(1 + rng.IntN(7))
		return
	}
	block := rng.IntN(blocks)
	codes := pool[l.RowOffset(slot)+int64(block*size):][:size]
	for i := range codes {
		codes[i] &= 0x87
	}
	const quarter = 134 // of a unit, which the least code is then worth
	pool[l.ScaleOffset(slot)+int64(block)] = quarter
}

// randomSink makes sinks of every kind.
func randomSink(rng *rand.Rand, heads int) Array {
	s := make([]float32, heads)
	inf := float32(math.Inf(1))
	for h := range s {
		s[h] = []float32{-inf, 0, inf, 3e38, -3e38, 60, -60, float32(rng.NormFloat64())}[(h+int(rng.Uint32()%3))%8]
	}
	return vectors.FromF32(s, heads)
}

// slotsInput reads one set of a decode case; nil if the case lacks it. Without lengths
// every row has its whole width.
func slotsInput(in *vectors.Input, name string, tokens int) *attention.Slots {
	if !in.Has(name+"_cache") && !in.Has(name+"_indices") {
		return nil
	}
	pool := in.Array(name+"_cache", vectors.U8, -1, -1)
	idx := in.Array(name+"_indices", vectors.I32, tokens, -1)
	s := &attention.Slots{
		Pool: pool.Data, Layout: cache.Layout{Page: in.Int(name + "_block_size"), Stride: pool.Dim(1), Record: recordOf(in, name+"_record")},
		Indices: idx.I32(), Width: idx.Dim(1), Lens: in.Optional(name+"_lens", vectors.I32, tokens).I32(),
	}
	if !in.Has(name+"_lens") && in.Err() == nil {
		s.Lens = slices.Repeat([]int32{int32(s.Width)}, tokens)
	}
	if want := in.IntOr(name+"_block_stride_bytes", s.Layout.Stride); want != s.Layout.Stride {
		in.Array(name+"_cache", vectors.U8, -1, want) // fails, and says what was expected
	}
	return s
}

// SlotSet uploads a set. Where it is timed, its rows lie in this many slots.
func SlotSet(r *Rig, s *attention.Slots, slots int) attention.SlotSet {
	if s == nil || s.Width == 0 {
		return attention.SlotSet{}
	}
	tokens, pages := len(s.Lens), len(s.Pool)/s.Layout.Stride
	pool := r.Pool(vectors.FromU8(s.Pool, pages, s.Layout.Stride), Pages{Page: s.Layout.Page, Spread: SpreadRandom, Slots: slots})
	return attention.SlotSet{
		Cache:   kvCache(pool.Tensor, s.Layout),
		Indices: r.Index(pool, vectors.FromI32(s.Indices, tokens, s.Width), tensor.I32, true),
		Lens:    r.Shared(vectors.FromI32(s.Lens, tokens), tensor.I32),
	}
}

// setRecord returns the record of a set that may be absent.
func setRecord(s *attention.Slots) cache.Record {
	if s == nil {
		return cache.RecordV4
	}
	return s.Layout.Record
}

// width and page of a set that may be absent.
func setSize(s *attention.Slots) (width, page int) {
	if s == nil {
		return 0, 0
	}
	return s.Width, s.Layout.Page
}
