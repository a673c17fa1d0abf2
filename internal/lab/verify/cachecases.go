package verify

import (
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
)

// pageShapes are the pages that random cases use: those of the two kinds of cache,
// and others with the smallest and with odd strides that are still legal.
var pageShapes = []cache.Layout{
	{Page: 64, Stride: 37440}, {Page: 2, Stride: 1728}, {Page: 64, Stride: 37376}, {Page: 16, Stride: 16*584 + 8},
	{Page: 1, Stride: 584 + 40}, {Page: 3, Stride: 3 * 584}, {Page: 2, Stride: 2*584 + 24}, {Page: 64, Stride: 40000},
}

// recordShapes are pages of the records of DeepSeek-V4.1, likewise.
var recordShapes = []cache.Layout{
	{Page: 32, Stride: 16896, Record: cache.RecordFP8}, {Page: 64, Stride: 18432, Record: cache.RecordFP4},
	{Page: 3, Stride: 3*528 + 16, Record: cache.RecordFP8}, {Page: 5, Stride: 5*288 + 32, Record: cache.RecordFP4},
}

// layoutParams returns the parameters from which a case's layout is known.
func layoutParams(l cache.Layout) map[string]any {
	p := map[string]any{"block_size": l.Page, "block_stride_bytes": l.Stride}
	if l.Record != cache.RecordV4 {
		p["record"] = int(l.Record)
	}
	return p
}

// rowKinds make rows that a quantiser is likely to get wrong. Each fills 512
// values; amax and codes of a block are at the edges where rounding decides.
var rowKinds = []struct {
	name string
	fill func(rng *rand.Rand, x []float32)
}{
	{"normal", each(func(r *rand.Rand, _ int) float64 { return r.NormFloat64() })},
	{"zeros", each(func(*rand.Rand, int) float64 { return 0 })},
	{"powers of two", each(func(r *rand.Rand, _ int) float64 { return math.Ldexp(sign(r), r.IntN(30)-15) })},
	{"ties", func(r *rand.Rand, x []float32) { // every code's midpoints, under an amax of 448 * 2^k
		k := r.IntN(40) - 20
		for i := range x {
			v := math.Ldexp(float64(17+2*r.IntN(8)), r.IntN(19)-14)
			x[i] = float32(sign(r) * math.Ldexp(min(v, 448), k))
			if i%64 == r.IntN(64) || i%64 == 63 {
				x[i] = float32(math.Ldexp(448, k))
			}
		}
	}},
	{"just above 448 * 2^k", func(r *rand.Rand, x []float32) {
		for b := 0; b < len(x); b += 64 {
			k := r.IntN(40) - 20
			for i := range x[b : b+64] {
				x[b+i] = float32(math.Ldexp(450*r.Float64()-225, k))
			}
			x[b+r.IntN(64)] = float32(math.Ldexp(450, k)) // the next bf16
		}
	}},
	{"subnormal", each(func(r *rand.Rand, i int) float64 {
		if i%3 == 0 {
			return sign(r) * 1e-30
		}
		return math.Ldexp(sign(r)*float64(1+r.IntN(127)), -133)
	})},
	{"wide", each(func(r *rand.Rand, _ int) float64 { return math.Ldexp(sign(r)*(1+r.Float64()), r.IntN(240)-120) })},
	{"huge", each(func(r *rand.Rand, _ int) float64 { return sign(r) * 3.3895314e38 * (0.5 + r.Float64()/2) })},
	{"negative zero", each(func(r *rand.Rand, _ int) float64 { return math.Copysign(0, sign(r)) * float64(1+r.IntN(2)) })},
	{"around 1e-4", each(func(r *rand.Rand, _ int) float64 { return sign(r) * (0.9e-4 + 0.2e-4*r.Float64()) })},
	{"ties of E2M1", func(r *rand.Rand, x []float32) { // midpoints and the largest of blocks of 16, under scales of E4M3
		for b := 0; b < len(x); b += 16 {
			s := float64(numfmt.E4M3Decode(byte(1 + r.IntN(0x7E))))
			for i := range x[b : b+16] {
				x[b+i] = float32(sign(r) * s * []float64{0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 5.5, 0.5}[r.IntN(11)])
			}
			x[b+r.IntN(16)] = float32(6 * s * (1 + 0.05*float64(r.IntN(2)))) // beyond six scales now and then
		}
	}},
	{"outlier", func(r *rand.Rand, x []float32) {
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		x[r.IntN(len(x))] = 1000
	}},
}

func each(f func(*rand.Rand, int) float64) func(*rand.Rand, []float32) {
	return func(r *rand.Rand, x []float32) {
		for i := range x {
			x[i] = float32(f(r, i))
		}
	}
}

func sign(r *rand.Rand) float64 { return float64(1 - 2*r.IntN(2)) }

// randomRows makes n rows of 512 bf16 values, of the kinds in turn.
func randomRows(rng *rand.Rand, n int) Array {
	k := make([]uint16, 0, n*cache.D)
	row := make([]float32, cache.D)
	for i := range n {
		rowKinds[i%len(rowKinds)].fill(rng, row)
		for _, v := range row {
			k = append(k, finiteBF16(v))
		}
	}
	return vectors.FromU16(k, n, cache.D)
}

// finiteBF16 rounds to bf16 but does not leave the finite numbers.
func finiteBF16(v float32) uint16 {
	b := numfmt.BF16Encode(v)
	if b&0x7FFF >= 0x7F80 {
		b = b&0x8000 | 0x7F7F
	}
	return b
}

// poisonedPool makes a pool of pages whose every byte is 0xFF: a NaN wherever a
// kernel reads one that it should not.
func poisonedPool(pages int, l cache.Layout) Array {
	return vectors.Filled(0xFF, vectors.U8, pages, l.Stride)
}

// fillSlot gives a slot random bytes that are legal: any code but NaN, scales that
// finite rows can have, any bf16 bits.
func fillSlot(rng *rand.Rand, pool Array, l cache.Layout, slot int64) {
	data := pool.Data[l.RowOffset(slot):][:l.Record.RowBytes()]
	scales := pool.Data[l.ScaleOffset(slot):][:l.Record.ScaleBytes()]
	FillBytes(rng, data)
	switch l.Record {
	case cache.RecordFP8:
		fillE4M3(rng, data)
	case cache.RecordV4:
		fillE4M3(rng, data[:cache.NopeDim])
	}
	low, span := 105, 43
	if rng.IntN(4) == 0 {
		span = 142 // up to 246, where 448 is still finite
	}
	if l.Record == cache.RecordFP4 {
		low, span = 1, 0x7E // every scale that is written, subnormal ones too
	}
	for b := range scales {
		scales[b] = byte(low + rng.IntN(span))
	}
	if l.Record == cache.RecordV4 {
		scales[blocksV4] = 0
	}
}

// leastLayout returns the smallest layout of pages of this size.
func leastLayout(page int) cache.Layout {
	l, err := cache.NewLayout(page, 0)
	if err != nil {
		panic(err) // a page of this package that cannot be
	}
	return l
}

// permutation returns n different numbers of 0..of-1 in random order.
func permutation[T int32 | int64](rng *rand.Rand, n, of int) []T {
	ids := make([]T, n)
	for i, p := range rng.Perm(of)[:n] {
		ids[i] = T(p)
	}
	return ids
}

// randomSlots makes a pool that is not written yet, with pages to spare, and different slots of
// tokens in it; a number of tokens has a slot of padding, or one that only a broken host makes.
func randomSlots(rng *rand.Rand, tokens, invalid int, l cache.Layout) (pool, slots Array) {
	pages := (tokens+l.Page-1)/l.Page + 2
	at := permutation[int64](rng, tokens, pages*l.Page)
	for i := range invalid {
		at[rng.IntN(tokens)] = []int64{-1, -7, int64(pages * l.Page), 1 << 40, -1 << 63}[i%5]
	}
	return poisonedPool(pages, l), vectors.FromI64(at, tokens)
}

// turnRows counts the positions of a random table of angles.
const turnRows = 40

// randomTurns makes a table of angles and positions in it, or, for a few, outside.
func randomTurns(rng *rand.Rand, tokens int) (table, positions Array) {
	positions = randomPositions(rng, tokens)
	return randomCosSin(rng), positions
}

// randomPositions makes positions in a table of angles: many of row 0, and some that only a broken
// host makes.
func randomPositions(rng *rand.Rand, tokens int) Array {
	at := make([]int64, tokens)
	for i := range at {
		at[i] = rng.Int64N(turnRows)
		switch {
		case i%3 == 1:
			at[i] = 0
		case i%17 == 16:
			at[i] = []int64{-5, turnRows, 1<<31 - 1, -1 << 31}[rng.IntN(4)]
		}
	}
	return vectors.FromI64(at, tokens)
}

// randomCosSin makes a table of cosines and sines: row 0 turns nothing, as position 0
// does, the others turn each pair by an angle of its own.
func randomCosSin(rng *rand.Rand) Array {
	const half = cache.RopeDim / 2
	table := make([]float32, turnRows*2*half)
	for i := range turnRows * half {
		sin, cos := math.Sincos(float64(min(i/half, 1)) * 2 * math.Pi * rng.Float64())
		table[i/half*2*half+i%half], table[i/half*2*half+half+i%half] = float32(cos), float32(sin)
	}
	return vectors.FromF32(table, turnRows, 2*half)
}

func reshaped(a Array, shape ...int) Array {
	a.Shape = shape
	return a
}

// recordOf returns the record that a parameter names by number; recorded cases of V4 name none.
func recordOf(in *vectors.Input, name string) cache.Record {
	return cache.Record(max(0, min(in.IntOr(name, 0), 255)))
}

// kvCache makes a cache of a tensor on a rig.
func kvCache(t tensor.Tensor, l cache.Layout) cache.KVCache { return cache.KVCache{Pool: t, Layout: l} }
