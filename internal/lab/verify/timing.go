package verify

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// Timing says what a benchmark times of an operation, and how it looks at the results.
type Timing struct {
	Suite string // of vkmla bench; "": the operation is not timed
	Sizes func(o SizeOptions) []Size

	// Axes names the axes of arrays, inputs and outputs, by a letter each: of axes with the
	// same letter the same elements belong together. A check looks at some tokens (T, or P in
	// fours, to which scales are padded) and heads (H). An array that is not named, and an axis of
	// another letter, is taken whole.
	Axes map[string]string

	// Sample makes the parts of a case that a check looks at, where Axes do not say enough.
	Sample func(c Case) []Piece
}

// Size is a size of an operation to be timed.
type Size struct {
	Name string // sizes as name=value, with slashes between
	Make func(rng *rand.Rand) Case
	Work
	Parts map[string]Work // of a launch's Parts

	Touched  int    // bytes that a launch moves: sets of operands go beyond a cache together
	MostSets int    // 0: 64
	MaxBytes uint64 // of the largest tensor; 0: it is far below what a descriptor can hold
	Launches int    // in a sample; 0: as their time suggests
	Floor    bool   // bytes and launches take the time: it stands beside launches that only read
}

// Work is the least that an operation has to read and write, and the floating-point operations
// of its matrix products.
type Work struct{ Bytes, Flop float64 }

// SizeOptions choose among the sizes of operations. What is nil or 0 is left to the operation.
type SizeOptions struct {
	Slow       bool // sizes for a processor
	Heads      []int
	IndexHeads int
	TopK       []int
	Batches    []int // tokens of a decode step
	Prefill    []int // tokens of a prefill step
	Contexts   []int // tokens of a request
	Rows       []int // of a workspace, or to gather
	Products   []Product
	Weights    []string
}

// Product is a matrix product of a model's layer.
type Product struct {
	Model, Matrix string
	N, K, Groups  int
}

// pick returns what was asked for, or a default.
func (o SizeOptions) pick(given, gpu, slow []int) []int {
	switch {
	case given != nil:
		return given
	case o.Slow:
		return slow
	}
	return gpu
}

// indexHeads returns the number of the indexer's heads.
func (o SizeOptions) indexHeads() int {
	if o.IndexHeads == 0 {
		return 64
	}
	return o.IndexHeads
}

func (o SizeOptions) batches() []int { return o.pick(o.Batches, []int{1, 32, 128}, []int{1, 2}) }
func (o SizeOptions) prefill() []int { return o.pick(o.Prefill, []int{4096}, []int{256}) }
func (o SizeOptions) contexts() []int {
	return o.pick(o.Contexts, []int{16384, 131072, 1 << 20}, []int{4096})
}
func (o SizeOptions) steps() []int { return slices.Concat(o.batches(), o.prefill()) }

// Piece is a part of a case that is small enough for the reference: of each output named in
// Out the indices along its axes, nil standing for all of an axis.
type Piece struct {
	Case Case
	Out  map[string][][]int
}

// Most tokens and heads that a check looks at.
const (
	pieceTokens = 4
	pieceHeads  = 8
)

// Pieces returns the parts of a case that a check looks at.
func (op Op) Pieces(c Case) []Piece {
	if op.Sample != nil {
		return op.Sample(c)
	}
	return []Piece{op.sampled(c, pieceTokens, pieceHeads)}
}

// sampled takes some tokens and heads.
func (op Op) sampled(c Case, tokens, heads int) Piece {
	most := map[byte]int{'T': tokens, 'P': tokens, 'H': heads}
	chosen := map[byte][]int{}
	for name, a := range c.In {
		for i, axis := range []byte(op.Axes[name]) {
			if n := most[axis]; n > 0 && chosen[axis] == nil {
				chosen[axis] = Some(n, a.Dim(i))
				for axis == 'P' && len(chosen[axis])%4 > 0 {
					chosen[axis] = append(chosen[axis], a.Dim(i)-1)
				}
			}
		}
	}
	along := func(name string) (at [][]int) {
		for _, axis := range []byte(op.Axes[name]) {
			at = append(at, chosen[axis])
		}
		return at
	}
	p := Piece{Case: c, Out: map[string][][]int{}}
	p.Case.In = Arrays{}
	for name, a := range c.In {
		p.Case.In[name] = Take(a, along(name))
	}
	for name := range op.Axes {
		if _, input := c.In[name]; !input {
			p.Out[name] = along(name)
		}
	}
	return p
}

// Some are up to n indices below of, the first and the last among them.
func Some(n, of int) []int {
	n = min(n, of)
	at := make([]int, n)
	for i := range at {
		at[i] = i * (of - 1) / max(n-1, 1)
	}
	return at
}

// Take picks elements along the first axes of an array; nil picks all.
func Take(a Array, along [][]int) Array {
	whole := true
	for _, at := range along {
		whole = whole && at == nil
	}
	if whole {
		return a
	}
	out := Array{Type: a.Type, Shape: slices.Clone(a.Shape)}
	for i, at := range along {
		if at != nil {
			out.Shape[i] = len(at)
		}
	}
	out.Data = make([]byte, 0, out.Len()*a.Type.Size())
	var copyFrom func(axis, at int)
	copyFrom = func(axis, at int) {
		size := a.Type.Size()
		for _, d := range a.Shape[axis:] {
			size *= d
		}
		if axis == len(along) {
			out.Data = append(out.Data, a.Data[at*size:][:size]...)
			return
		}
		if along[axis] == nil {
			for i := range a.Shape[axis] {
				copyFrom(axis+1, at*a.Shape[axis]+i)
			}
			return
		}
		for _, i := range along[axis] {
			copyFrom(axis+1, at*a.Shape[axis]+i)
		}
	}
	copyFrom(0, 0)
	return out
}

// distinct counts the different random numbers of a large array, which repeats them. The prime
// keeps rows from repeating at distances that a wrong index might have.
const distinct = 1<<21 - 9

// normalBF16 makes bf16 values of a normal distribution.
func normalBF16(rng *rand.Rand, deviation float64, shape ...int) Array {
	a := vectors.New(vectors.U16, shape...)
	v := make([]float32, min(a.Len(), distinct))
	FillNormal(rng, v)
	for i := range v {
		v[i] *= float32(deviation)
	}
	repeat(a.Data, vectors.FromBF16(v, len(v)).Data)
	return a
}

// normals returns 2^16 numbers of a normal distribution.
var normals = sync.OnceValue(func() *[1 << 16]float32 {
	rng, table := rand.New(rand.NewPCG(1, 2)), new([1 << 16]float32)
	for i := range table {
		table[i] = float32(rng.NormFloat64())
	}
	return table
})

// FillNormal makes numbers of a normal distribution that are to be rounded to few bits: it picks
// each from as many as bf16 has.
func FillNormal(rng *rand.Rand, v []float32) {
	table := normals()
	for ; len(v) >= 4; v = v[4:] {
		u := rng.Uint64()
		v[0], v[1], v[2], v[3] = table[uint16(u)], table[uint16(u>>16)], table[uint16(u>>32)], table[u>>48]
	}
	for i := range v {
		v[i] = table[uint16(rng.Uint64())]
	}
}

// FillBytes makes random bytes.
func FillBytes(rng *rand.Rand, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
	}
	for i := range b {
		b[i] = byte(rng.Uint64())
	}
}

// fillE4M3 makes random codes of E4M3 that are numbers.
func fillE4M3(rng *rand.Rand, codes []byte) {
	FillBytes(rng, codes)
	for i, c := range codes {
		if c&0x7F == 0x7F {
			codes[i] = c ^ byte(1+i%0x7F)
		}
	}
}

// normalF32 makes f32 values of a normal distribution.
func normalF32(rng *rand.Rand, shape ...int) Array {
	a := vectors.New(vectors.F32, shape...)
	v := make([]float32, min(a.Len(), distinct))
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	repeat(a.Data, vectors.FromF32(v, len(v)).Data)
	return a
}

// repeat fills data with a pattern over and over.
func repeat(data, pattern []byte) {
	for n := copy(data, pattern); n < len(data); n *= 2 {
		copy(data[n:], data[:n])
	}
}

// tableRowsOf counts the positions of the tables of angles of timed cases.
const tableRowsOf = 65536

// manyTurns returns a table of angles, and positions of tokens in it.
func manyTurns(rng *rand.Rand, tokens int) (table, positions Array) {
	at := make([]int64, tokens)
	for i := range at {
		at[i] = rng.Int64N(tableRowsOf)
	}
	return manyAngles(), vectors.FromI64(at, tokens)
}

// manyAngles makes the table of all timed cases.
var manyAngles = sync.OnceValue(func() Array {
	const half = 32
	rows := make([]float32, tableRowsOf*2*half)
	for i := range tableRowsOf * half {
		sin, cos := math.Sincos(float64(i) * 1.37)
		rows[i/half*2*half+i%half], rows[i/half*2*half+half+i%half] = float32(cos), float32(sin)
	}
	return vectors.FromF32(rows, tableRowsOf, 2*half)
})
